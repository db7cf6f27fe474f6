"""The arguments and the reply of `exchange`, which settles finished jobs and claims new ones in one transaction."""

from msgspec import Struct

from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
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


class Closing(Struct, frozen=True):
    """What a worker learned from the limiter or the ledger: a gate stays closed for this time at least. A time of 0
    opens the gate."""

    gate: Gate
    wait_us: int
    why: str


class Wants(Struct, frozen=True):
    """How many jobs a worker can take, and from which queues. Every lease that is granted gets this token."""

    queues: tuple[str, ...]
    count: int
    token: Token
    admits: tuple[Admit, ...] = ()
    """Lanes behind a gate are served up to the number given here, and not at all if their gate is not listed."""
    closed: tuple[Closing, ...] = ()
    """Gates whose lanes the store closes, for all workers of these queues. A lane that is closed already keeps its
    time."""
    tenant: str | None = None
    """Only this tenant's lanes are claimed and closed; None: those of all tenants. A repeat returns what was granted
    before in any case."""
    repeat_max: int | None = None
    """The most leases that a repeat returns; None: all. A client that used its token for one claim, as it should, was
    granted fewer."""


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
    """Gates behind which jobs of these queues are still ready, if jobs were wanted, except gates of closed lanes: a
    bounded number, in the order in which their lanes are served."""


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


CLAIM_MAX = 10_000
"""The most jobs that one exchange claims."""

GRANT_MAX = 64
"""The most leases in one answer of a service. Payload and cursor have up to 256 KiB each, and up to twice as much as
JSON strings, so that an answer has about 64 MiB at most. A worker that wants more sends the next exchange at once."""

SETTLEMENTS_MAX = 1_000
"""The most settlements of one exchange, so that its transaction stays short on a slow machine."""

CHILDREN_MAX = 10_000
"""The most children of all settlements of one exchange, and so of one job."""

SETTLED_LENGTH_MAX = 3_500_000
"""The most characters of the texts in one exchange of a worker. With four bytes each they fit into a request."""

QUEUES_MAX = 1_000
"""The most queues of one worker."""

GATES_MAX = 1_000
"""The most gates that a worker remembers, and that one exchange admits or closes. The store reports the others again
when their lanes open."""

RECLAIM_MAX = 1_000
"""The most expired leases that one exchange reclaims. Of the first `BACKLOG_MAX` of them, lanes take turns."""

REOPEN_MAX = 1_000
"""The most closed lanes that one exchange opens because their time has come. Of the first `BACKLOG_MAX` of them,
tenants take turns."""

BACKLOG_MAX = 10_000
"""How many expired leases or closed lanes one exchange looks at."""

PROMOTE_MAX = 500
"""One exchange makes so many scheduled jobs ready because they are due: the earliest ones. If more are due, it visits
as many lanes, starting behind the lane that the last visit ended with, and makes as many jobs ready there: the same
number in each lane, the earliest ones of the lane."""

LANES_MAX = 100
"""The most lanes that one exchange claims from, and the most gates that it reports. Tenants take turns."""

CLOSED_US_MAX = 60 * SECOND_US
"""A lane stays closed for this time at most, because the definition of a limit may have changed. Then a worker asks the
limiter again."""

WHY_LENGTH_MAX = 500
"""The most characters of a reason that is stored with a closed lane."""

ERRORS_MAX = 10
"""The failed attempts that are kept per job; older ones are deleted."""
