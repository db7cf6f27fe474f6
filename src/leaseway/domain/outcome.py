"""The outcome of an attempt, and the settlement that follows from it.

A handler returns, raises, or is stopped; each of these is one outcome below. `decide` turns an outcome into a
settlement. It is the only place that decides between retry and failure.
"""

from datetime import datetime

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import Failure, Lease, NewJob, Settlement, State
from leaseway.domain.validators import SECONDS_MAX, Seconds, parse_duration_us, parse_instant

FACTOR_MAX = 1_000
DOUBLINGS_MAX = 64
"""The delay stops growing after this many attempts. By then every sensible factor has reached the maximum."""


class Backoff(Struct, frozen=True):
    """The delay before a failed job is retried: exponential, bounded, and randomized so that jobs that failed
    together do not return together.

    `first_seconds`: the delay after the first failure. `factor`: each further delay is this many times longer.
    `seconds_max`: the longest delay. `jitter`: the share of the delay that may be subtracted at random, 0 to 1.
    """

    first_seconds: float = 1.0
    factor: float = 2.0
    seconds_max: float = 3_600.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.seconds_max <= SECONDS_MAX:
            raise BadValue("backoff.seconds_max", f"must be between 0 and {SECONDS_MAX:,} (is {self.seconds_max})")
        if not 0 <= self.first_seconds <= self.seconds_max:
            raise BadValue("backoff.first_seconds", f"must be between 0 and seconds_max (is {self.first_seconds})")
        if not 1 <= self.factor <= FACTOR_MAX:
            raise BadValue("backoff.factor", f"must be between 1 and {FACTOR_MAX:,} (is {self.factor})")
        if not 0 <= self.jitter <= 1:
            raise BadValue("backoff.jitter", f"must be between 0 and 1 (is {self.jitter})")

    def delay_us(self, attempts: int, chance: float) -> int:
        """The delay after this many attempts. `chance` is a random number in [0, 1)."""
        seconds = self.first_seconds
        for _ in range(min(attempts - 1, DOUBLINGS_MAX)):
            seconds = min(seconds * self.factor, self.seconds_max)
        return int(seconds * (1 - self.jitter * chance) * SECOND_US)


class Snooze(Exception):
    """Raise it in a handler to run the job later, at a point in time or after a delay. The attempt is not counted."""

    run_at: Instant | None = None
    delay_us: int = 0

    def __init__(self, until: datetime | Seconds) -> None:
        super().__init__(f"snoozed until {until}")
        self.run_at, self.delay_us = snooze_time(until)


class Deferred(Snooze):
    """Raised before a call to a provider when a limit or a budget asks for a long wait. The attempt is not counted."""

    def __init__(self, why: str, *, run_at: Instant | None = None, delay_us: int = 0) -> None:
        Exception.__init__(self, why)
        self.run_at, self.delay_us = run_at, delay_us


class Fail(Exception):
    """Raise it in a handler if retrying cannot help. The job fails at once and becomes a dead letter."""

    code = "failed"

    def __init__(self, message: str, *, code: str = "failed") -> None:
        super().__init__(message)
        self.code = str(code)


def snooze_time(until: datetime | Seconds) -> tuple[Instant | None, int]:
    """An instant for a datetime, a delay for everything else."""
    if isinstance(until, datetime):
        return parse_instant("until", until), 0
    return None, parse_duration_us("until", until)


class Done(Struct, frozen=True):
    result: str
    children: tuple[NewJob, ...] = ()


class Failed(Struct, frozen=True):
    failure: Failure
    may_retry: bool = True


class Snoozed(Struct, frozen=True):
    run_at: Instant | None
    delay_us: int


class Cancelled(Struct, frozen=True):
    """The job was cancelled, and the handler stopped."""


class Released(Struct, frozen=True):
    """The worker gives the job back, because it stops or never started the handler. The attempt is not counted."""


class Abandoned(Struct, frozen=True):
    """The lease is lost. The store would refuse a settlement, so none is sent."""


Outcome = Done | Failed | Snoozed | Cancelled | Released | Abandoned


def decide(lease: Lease, outcome: Outcome, backoff: Backoff, chance: float) -> Settlement | None:
    """The settlement for this outcome; None if the lease is lost."""
    job, token = lease.id, lease.token
    match outcome:
        case Done(result, children):
            return Settlement(id=job, token=token, state=State.DONE, result=result, children=children)
        case Failed(failure, may_retry) if may_retry and lease.attempts < lease.attempts_max:
            delay_us = backoff.delay_us(lease.attempts, chance)
            return Settlement(id=job, token=token, state=State.PENDING, delay_us=delay_us, failure=failure)
        case Failed(failure):
            return Settlement(id=job, token=token, state=State.FAILED, failure=failure)
        case Snoozed(run_at, delay_us):
            # The attempt is not counted, because waiting is not a failure.
            return Settlement(
                id=job, token=token, state=State.PENDING, delay_us=delay_us, run_at=run_at, returns_attempt=True
            )
        case Cancelled():
            return Settlement(id=job, token=token, state=State.CANCELLED)
        case Released():
            return Settlement(id=job, token=token, state=State.PENDING, returns_attempt=True)
        case Abandoned():
            return None


LEASE_EXPIRED = "lease_expired"


def state_after_expiry(attempts: int, attempts_max: int, cancel_requested: bool) -> State:
    """The next state of a job whose lease has expired. The attempt counts; a requested cancellation takes effect."""
    if cancel_requested:
        return State.CANCELLED
    return State.PENDING if attempts < attempts_max else State.FAILED


def expired_lease(owner: str | None) -> Failure:
    """The failure that a store records for an attempt whose lease has expired."""
    return Failure(LEASE_EXPIRED, f"worker {owner} stopped renewing its lease")
