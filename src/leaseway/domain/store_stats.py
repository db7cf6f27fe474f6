"""How a store is doing, as numbers."""

from msgspec import Struct

from leaseway.domain.ids import Instant, WorkerId
from leaseway.domain.job import State

OWNERS_MAX = 1_000
ENDED_MAX = 20_000
"""About so many jobs that ended are looked at in passing."""


class Owner(Struct, frozen=True, kw_only=True):
    """A worker that has leases."""

    name: WorkerId
    leased: int
    late: int
    """Leases that have expired, and that nobody has taken back yet."""
    heard_at: Instant
    """When it last claimed or renewed one of them."""
    until: Instant
    """When the first of them expires, unless it is renewed."""


class Waiting(Struct, frozen=True, kw_only=True):
    """A lane with something ready."""

    queue: str
    tenant: str
    needs: str = ""
    since: Instant
    """When the one that waits longest became ready."""


class Ended(Struct, frozen=True, kw_only=True):
    queue: str
    tenant: str
    state: State
    count: int
