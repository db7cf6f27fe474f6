"""The words of the worker's one hot verb: settlements in, new leases out, in one transaction."""

from msgspec import Struct

from leaseway.domain.ids import JobId, Token, WorkerId
from leaseway.domain.job import Lease, Settlement


class Gate(Struct, frozen=True, order=True):
    """Lanes of one tenant with the same needs. Their jobs start only when they are admitted."""

    needs: str
    tenant: str


class Admit(Struct, frozen=True):
    """So many jobs behind this gate may start: the worker has what they need."""

    gate: Gate
    count: int


class Gated(Struct, frozen=True):
    """Jobs that are ready behind a gate."""

    gate: Gate
    ready: int


class Wants(Struct, frozen=True):
    """How many jobs a worker can take, and from where. The token becomes the token of every lease granted."""

    queues: tuple[str, ...]
    count: int
    token: Token
    admits: tuple[Admit, ...] = ()
    """Lanes behind a gate are served as far as it is admitted, and not at all if it is not named here."""
    closed: tuple[Gate, ...] = ()
    """Gates of which the worker needs no word: it knows when to try them again."""
    tenant: str | None = None
    """Only this tenant's lanes; None: those of all. A repeat is handed what was granted before, whatever this is."""


class Exchange(Struct, frozen=True):
    worker: WorkerId
    settlements: tuple[Settlement, ...] = ()
    wants: Wants | None = None
    repeat: bool = False
    """This exchange was sent before and its reply was lost: leases granted then are handed out again."""


class ExchangeReply(Struct, frozen=True):
    leases: tuple[Lease, ...] = ()
    lost: tuple[JobId, ...] = ()
    """Settlements that were refused, because the lease had ended before."""
    cancelled: tuple[JobId, ...] = ()
    """Jobs that this worker holds and that somebody wants to be stopped."""
    gated: tuple[Gated, ...] = ()
    """Behind which gates jobs of these queues are still ready, if some were wanted; a bounded number, in the order in
    which their lanes are served."""


class HeldLease(Struct, frozen=True):
    """A lease as far as renewing it needs to know."""

    id: JobId
    token: Token
    lease_us: int


class Renewed(Struct, frozen=True):
    lost: tuple[JobId, ...] = ()
    cancelled: tuple[JobId, ...] = ()


class ProgressReport(Struct, frozen=True):
    """How far a running job has come, for people to look at."""

    id: JobId
    token: Token
    progress: str


RECLAIM_MAX = 1_000
"""Expired leases that one exchange takes back."""

PROMOTE_MAX = 1_000
"""Scheduled jobs that one exchange makes ready because their time has come."""

LANES_MAX = 100
"""Lanes that one exchange claims from, those furthest behind; and gates that it tells of."""

ERRORS_MAX = 10
"""Failed attempts that are remembered for one job; older ones are forgotten."""
