"""What became of an attempt, and what the store must write for it.

A handler ends by returning, by raising, or by being stopped; each way is one outcome below. `decide` turns the
outcome into a settlement. It is the one place where the rule "retry or fail" is written.
"""

from datetime import datetime

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import Failure, Lease, NewJob, Settlement, State
from leaseway.domain.validators import SECONDS_MAX, Seconds, parse_duration_us, parse_instant

FACTOR_MAX = 1_000
DOUBLINGS_MAX = 64
"""Later attempts wait as long as this one: by then every sensible factor has reached the maximum."""


class Backoff(Struct, frozen=True):
    """Exponential, bounded, spread by chance so that jobs that failed together do not return together."""

    first_seconds: float = 1.0
    factor: float = 2.0
    seconds_max: float = 3_600.0
    jitter: float = 0.25
    """The share of the delay that chance may take away: 0 none, 1 all of it."""

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
        """The wait after this many attempts; `chance` lies in [0, 1)."""
        seconds = self.first_seconds
        for _ in range(min(attempts - 1, DOUBLINGS_MAX)):
            seconds = min(seconds * self.factor, self.seconds_max)
        return int(seconds * (1 - self.jitter * chance) * SECOND_US)


class Snooze(Exception):
    """Raised by a handler: not now. The attempt is given back, and the job waits until the given time."""

    run_at: Instant | None = None
    delay_us: int = 0

    def __init__(self, until: datetime | Seconds) -> None:
        super().__init__(f"snoozed until {until}")
        self.run_at, self.delay_us = snooze_time(until)


class Deferred(Snooze):
    """Raised on the way to a provider: a limit or a budget says "later", and says when. Waiting is not an attempt."""

    def __init__(self, why: str, *, run_at: Instant | None = None, delay_us: int = 0) -> None:
        Exception.__init__(self, why)
        self.run_at, self.delay_us = run_at, delay_us


class Fail(Exception):
    """Raised by a handler: trying again will not help. The job goes to the dead letter at once."""

    code = "failed"

    def __init__(self, message: str, *, code: str = "failed") -> None:
        super().__init__(message)
        self.code = str(code)


def snooze_time(until: datetime | Seconds) -> tuple[Instant | None, int]:
    """An instant for a point in time, a duration for everything else."""
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
    """Somebody asked for it, and the handler stopped."""


class Released(Struct, frozen=True):
    """The job never had its chance: the worker is going away."""


class Abandoned(Struct, frozen=True):
    """The lease is lost. Whatever we would write is refused, so nothing is written."""


Outcome = Done | Failed | Snoozed | Cancelled | Released | Abandoned


def decide(lease: Lease, outcome: Outcome, backoff: Backoff, chance: float) -> Settlement | None:
    """What the store must write for this outcome; None when the job is no longer ours."""
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
            # The attempt is given back: waiting is not the job's failure.
            return Settlement(
                id=job, token=token, state=State.PENDING, delay_us=delay_us, run_at=run_at, gives_back=True
            )
        case Cancelled():
            return Settlement(id=job, token=token, state=State.CANCELLED)
        case Released():
            return Settlement(id=job, token=token, state=State.PENDING, gives_back=True)
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
