"""The outcome of an attempt, and the settlement that follows from it.

A handler returns, raises, or is stopped; each of these is one outcome below. `decide` turns an outcome into a
settlement. It is the only place that decides between retry and failure.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.exchange import CHILDREN_MAX, SETTLED_LENGTH_MAX, SETTLEMENTS_MAX
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import LEASE_US_MAX, LEASE_US_MIN, Failure, Lease, NewJob, Settlement, State
from leaseway.domain.limits.rate_limit_headers import Throttled
from leaseway.domain.validators import SECONDS_MAX, Seconds, parse_duration_us, parse_instant

FACTOR_MAX = 1_000
THROTTLED_US = 10 * SECOND_US
"""How long a job waits if the provider throttles it without saying for how long."""
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


def parse_backoff(field: str, value: object) -> Backoff:
    """A backoff, or the delay after the first failure."""
    if isinstance(value, Backoff):
        return value
    if isinstance(value, timedelta):
        return Backoff(first_seconds=value.total_seconds())
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadValue(field, f"must be a Backoff, seconds or a timedelta (is {value!r})")
    return Backoff(first_seconds=value)


class Snooze(Exception):
    """Raise it in a handler to run the job later, at a point in time or after a delay. The attempt is not counted."""

    run_at: Instant | None = None
    delay_us: int = 0

    def __init__(self, until: datetime | Seconds) -> None:
        super().__init__(f"snoozed until {until}")
        self.run_at, self.delay_us = snooze_time(until)


class Deferred(Snooze):
    """Raised before a call to a provider when a limit or a budget asks for a long wait. The attempt is not counted."""

    def __init__(self, why: str, *, run_at: Instant | None = None, delay_us: int = 0, by_limit: bool = False) -> None:
        Exception.__init__(self, why)
        self.run_at, self.delay_us, self.by_limit = run_at, delay_us, by_limit


class Interruption(BaseException):
    """Carries an error of leaseway through an SDK that catches every `Exception` and repeats the request. The worker
    takes the error out again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def find_deferral(error: BaseException) -> Deferred | None:
    """The deferral by which an attempt ended: a limit, a budget or the provider asks for a wait. Calls that a handler
    makes at once in a task group raise a group of them; a group that contains another error is a failure."""
    if isinstance(error, Interruption):
        error = error.error
    if isinstance(error, Deferred):
        return error
    if isinstance(error, Throttled):
        # The limit is closed for the whole fleet by now. The job waits with the others and keeps its attempt.
        return Deferred(str(error), delay_us=error.retry_after_us or THROTTLED_US, by_limit=True)
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [find_deferral(each) for each in error.exceptions]
    deferrals = [each for each in found if each is not None]
    return max(deferrals, key=lambda each: (each.run_at or 0, each.delay_us)) if len(deferrals) == len(found) else None


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
    failure: Failure | None = None
    """Why the job could not run here, although the attempt is not counted."""


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
        case Snoozed(run_at, delay_us, failure):
            # The attempt is not counted, because waiting is not a failure.
            return Settlement(
                id=job, token=token, state=State.PENDING, delay_us=delay_us, run_at=run_at, returns_attempt=True,
                failure=failure,
            )  # fmt: skip
        case Cancelled():
            return Settlement(id=job, token=token, state=State.CANCELLED)
        case Released():
            return Settlement(id=job, token=token, state=State.PENDING, returns_attempt=True)
        case Abandoned():
            return None


LEASE_EXPIRED = "lease_expired"
UNKNOWN_KIND = "unknown_kind"
"""The worker has no function for the job."""
BAD_PAYLOAD = "bad_payload"
"""The stored arguments do not match the worker's function."""
UNKNOWN_KEY = "unknown_key"
"""The job is encrypted, and the worker does not have the key."""


def state_after_expiry(attempts: int, attempts_max: int, cancel_requested: bool) -> State:
    """The next state of a job whose lease has expired. The attempt counts; a requested cancellation takes effect."""
    if cancel_requested:
        return State.CANCELLED
    return State.PENDING if attempts < attempts_max else State.FAILED


def usable_lease_us(stored: int) -> int:
    """The length of a lease, whatever number is stored. A lease without length would end before its job starts, and
    the job would be leased again for ever."""
    return min(max(stored, LEASE_US_MIN), LEASE_US_MAX)


def expired_lease(owner: str | None) -> Failure:
    """The failure that a store records for an attempt whose lease has expired."""
    return Failure(LEASE_EXPIRED, f"worker {owner} stopped renewing its lease")


def fail_for_child(settlement: Settlement, error: str) -> Settlement:
    """The settlement of a job that succeeded, but whose child the store refuses. It fails for good, because the next
    attempt would submit the same child."""
    failure = Failure("child_refused", f"a child of the job was refused: {error}")
    return replace(settlement, state=State.FAILED, result=None, children=(), failure=failure)


def count_fitting(settlements: Sequence[Settlement]) -> int:
    """How many of these settlements, from the first on, one exchange carries: at least one."""
    children, room = CHILDREN_MAX, SETTLED_LENGTH_MAX
    for number, settlement in enumerate(settlements[:SETTLEMENTS_MAX]):
        children -= len(settlement.children)
        room -= text_length(settlement)
        if number and (children < 0 or room < 0):
            return number
    return min(len(settlements), SETTLEMENTS_MAX)


def text_length(settlement: Settlement) -> int:
    length = len(settlement.result or "") + len(settlement.progress or "")
    if settlement.failure is not None:
        length += len(settlement.failure.message) + len(settlement.failure.traceback)
    return length + sum(len(child.payload) + len(child.cursor or "") for child in settlement.children)
