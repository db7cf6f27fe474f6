"""The arguments and the reply of `exchange`, which settles finished jobs and claims new ones in one transaction."""

from msgspec import Struct

from leaseway.domain.ids import JobId, Token, WorkerId
from leaseway.domain.job import Lease, Settlement


class Gate(Struct, frozen=True, order=True):
    """Lanes of one tenant with the same needs. Their jobs start only when a worker admits them."""

    needs: str
    tenant: str


class Admit(Struct, frozen=True):
    """How many jobs behind a gate may start, because the worker has what they need."""

    gate: Gate
    count: int


class Gated(Struct, frozen=True):
    """How many jobs are ready behind a gate."""

    gate: Gate
    ready: int


class Wants(Struct, frozen=True):
    """How many jobs a worker can take, and from which queues. Every lease that is granted gets this token."""

    queues: tuple[str, ...]
    count: int
    token: Token
    admits: tuple[Admit, ...] = ()
    """Lanes behind a gate are served up to the number given here, and not at all if their gate is not listed."""
    closed: tuple[Gate, ...] = ()
    """Gates that the reply may leave out: the worker knows when to try them again."""
    tenant: str | None = None
    """Only this tenant's lanes; None: those of all tenants. A repeat returns what was granted before in any case."""


class Exchange(Struct, frozen=True):
    worker: WorkerId
    settlements: tuple[Settlement, ...] = ()
    wants: Wants | None = None
    repeat: bool = False
    """This exchange was sent before and its reply was lost: leases that were granted then are returned again."""


class ExchangeReply(Struct, frozen=True):
    leases: tuple[Lease, ...] = ()
    lost: tuple[JobId, ...] = ()
    """Jobs whose settlements were refused, because their lease had ended before."""
    cancelled: tuple[JobId, ...] = ()
    """Jobs that this worker holds and that were cancelled."""
    gated: tuple[Gated, ...] = ()
    """Gates behind which jobs of these queues are still ready, if jobs were wanted: a bounded number, in the order in
    which their lanes are served."""


class HeldLease(Struct, frozen=True):
    """The parts of a lease that a renewal needs."""

    id: JobId
    token: Token
    lease_us: int


class Renewed(Struct, frozen=True):
    lost: tuple[JobId, ...] = ()
    cancelled: tuple[JobId, ...] = ()


class ProgressReport(Struct, frozen=True):
    """The progress of a running job, for display."""

    id: JobId
    token: Token
    progress: str


RECLAIM_MAX = 1_000
"""The most expired leases that one exchange reclaims."""

PROMOTE_MAX = 1_000
"""The most scheduled jobs that one exchange makes ready because they are due."""

LANES_MAX = 100
"""The most lanes that one exchange claims from, those furthest behind first; and the most gates that it reports."""

ERRORS_MAX = 10
"""The failed attempts that are kept per job; older ones are deleted."""
