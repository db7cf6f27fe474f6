"""Questions about jobs, and the answers to commands on single jobs."""

from enum import StrEnum

from msgspec import Struct

from leaseway.domain.ids import JobId
from leaseway.domain.job import State

PAGE_MAX = 1_000

KEYS_PER_JOB = 20
"""How many expired keys may leave with each old job: keys without jobs must not gather faster than they go."""


class JobFilter(Struct, frozen=True, kw_only=True):
    """All conditions must hold; None means any."""

    ids: tuple[JobId, ...] | None = None
    states: tuple[State, ...] | None = None
    kind: str | None = None
    queue: str | None = None
    tenant: str | None = None
    error_code: str | None = None
    shard_key: str | None = None


class Cancelling(StrEnum):
    """What became of the wish to cancel a job."""

    CANCELLED = "cancelled"
    """It was pending and will not run."""
    REQUESTED = "requested"
    """It is running; its worker is told. It ends as cancelled, unless it finishes first."""
    FINISHED = "finished"
    """It had ended before."""
    UNKNOWN = "unknown"
    """There is no such job."""
