"""Questions about jobs, and the answers to commands on single jobs."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from leaseway.domain.ids import Instant, JobId, WorkerId
from leaseway.domain.job import Job, State

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


class CancelResult(StrEnum):
    """What became of the wish to cancel a job."""

    CANCELLED = "cancelled"
    """It was pending and will not run."""
    REQUESTED = "requested"
    """It is running; its worker is told. It ends as cancelled, unless it finishes first."""
    FINISHED = "finished"
    """It had ended before."""
    UNKNOWN = "unknown"
    """There is no such job."""


SCAN_MAX = 5_000
SEARCH_LANES_MAX = 50
"""So many lanes are gone through one by one; where more fit, all jobs are, whatever their lane."""
NEWEST = JobId("~")
"""Comes after every id."""


class SearchStep(NamedTuple):
    """What one way has shown, the newest first."""

    ids: Sequence[JobId]
    upto: JobId | None
    """How far it came; None: to its end."""


class SearchPage(NamedTuple):
    jobs: list[Job]
    upto: JobId | None
    """Where to go on; None: there are no others. What is older has not been looked at, even if few were found."""


def merge_steps(ways: Sequence[SearchStep], limit: int) -> SearchStep:
    """All ways as one. It came as far as the one that came least far, which has still to show what lies behind."""
    upto = max((way.upto for way in ways if way.upto is not None), default=None)
    ids = {id_ for way in ways for id_ in way.ids if upto is None or id_ >= upto}
    newest = sorted(ids, reverse=True)[:limit]
    return SearchStep(newest, newest[-1] if len(ids) > limit else upto)


OWNERS_MAX = 1_000
ENDED_MAX = 20_000
"""About so many jobs that ended are looked at in passing."""


class LeaseOwner(Struct, frozen=True, kw_only=True):
    """A worker that has leases."""

    name: WorkerId
    leased: int
    late: int
    """Leases that have expired, and that nobody has taken back yet."""
    heard_at: Instant
    """When it last claimed or renewed one of them."""
    until: Instant
    """When the first of them expires, unless it is renewed."""


class LaneWait(Struct, frozen=True, kw_only=True):
    """A lane with something ready."""

    queue: str
    tenant: str
    needs: str = ""
    since: Instant
    """When the one that waits longest became ready."""


class EndedCount(Struct, frozen=True, kw_only=True):
    queue: str
    tenant: str
    state: State
    count: int


SUMMARIES_MAX = 1_000


class JobSummary(Struct, frozen=True, kw_only=True):
    id: JobId
    kind: str
    queue: str
    tenant: str
    state: State
    priority: int
    attempts: int
    attempts_max: int
    progress: str | None
    lease_owner: str | None
    lease_until: Instant | None
    cancel_requested: bool
    created_at: Instant
    run_at: Instant
    finished_at: Instant | None
    last_error_code: str | None
    last_error_at: Instant | None
