"""What follows an attempt: the only place that decides between retry and failure."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.exchange import CHILDREN_MAX, SETTLED_LENGTH_MAX, SETTLEMENTS_MAX
from leaseway.domain.ids import SECOND_US, JobId, Token
from leaseway.domain.job import Failure, Lease, NewJob, Settlement, State
from leaseway.domain.outcome import (
    Abandoned,
    Backoff,
    Cancelled,
    Done,
    Failed,
    Outcome,
    Released,
    Snooze,
    Snoozed,
    count_fitting,
    decide,
    snooze_time,
)

BROKEN = Failure("broken", "it broke")
BACKOFF = Backoff(first_seconds=2, jitter=0.5)


def lease(attempts: int = 1, attempts_max: int = 3) -> Lease:
    return Lease(
        id=JobId("job"),
        token=Token("token"),
        fence=7,
        kind="kind",
        queue="queue",
        tenant="tenant",
        payload="{}",
        attempts=attempts,
        attempts_max=attempts_max,
        lease_us=1,
        timeout_us=None,
        shard_key=None,
        cursor=None,
    )


def decided(outcome: Outcome, attempts: int = 1, chance: float = 0.0) -> Settlement:
    settlement = decide(lease(attempts), outcome, BACKOFF, chance)
    assert settlement is not None
    assert (settlement.id, settlement.token) == ("job", "token")
    return settlement


def test_the_last_attempt_that_fails_is_not_retried() -> None:
    """attempts_max limits the cost of a job, so it must never be exceeded."""
    settlement = decided(Failed(BROKEN), attempts=3)
    assert (settlement.state, settlement.failure) == (State.FAILED, BROKEN)
    assert decided(Failed(BROKEN), attempts=4).state is State.FAILED


def test_what_will_not_help_is_not_retried() -> None:
    """A handler that knows that a retry is useless saves the other attempts."""
    settlement = decided(Failed(BROKEN, may_retry=False), attempts=1)
    assert (settlement.state, settlement.failure) == (State.FAILED, BROKEN)


def test_a_failure_with_attempts_left_waits_longer_each_time() -> None:
    """The attempt is used, because the failure was the job's own."""
    first, second = decided(Failed(BROKEN), attempts=1), decided(Failed(BROKEN), attempts=2)
    assert (first.state, first.failure, first.returns_attempt) == (State.PENDING, BROKEN, False)
    assert (first.delay_us, second.delay_us, first.run_at) == (2 * SECOND_US, 4 * SECOND_US, None)
    assert decided(Failed(BROKEN), attempts=1, chance=0.5).delay_us == 1.5 * SECOND_US


@given(st.integers(0, 20), st.integers(1, 20), st.booleans())
def test_a_failed_attempt_is_retried_if_and_only_if_attempts_are_left(
    attempts: int, attempts_max: int, may_retry: bool
) -> None:
    """This is the rule itself, for any input."""
    settlement = decide(lease(attempts, attempts_max), Failed(BROKEN, may_retry), BACKOFF, 0)
    assert settlement is not None
    assert (settlement.state is State.PENDING) == (may_retry and attempts < attempts_max)


def test_a_lost_lease_writes_nothing() -> None:
    """The store would refuse the write, because another worker holds the lease."""
    assert decide(lease(), Abandoned(), BACKOFF, 0) is None


def test_a_result_brings_its_children() -> None:
    """Result and children must be written in one transaction."""
    child = NewJob(id=JobId("child"), kind="kind", payload="{}")
    settlement = decided(Done('"well"', (child,)))
    assert (settlement.state, settlement.result) == (State.DONE, '"well"')
    assert (settlement.children, settlement.failure) == ((child,), None)


@pytest.mark.parametrize("outcome", [Snoozed(None, 5), Snoozed(9, 0), Released()], ids=str)
def test_waiting_is_never_an_attempt(outcome: Outcome) -> None:
    """This includes the last attempt: a job that waited a hundred times has not failed once."""
    settlement = decided(outcome, attempts=3)
    assert (settlement.state, settlement.returns_attempt, settlement.failure) == (State.PENDING, True, None)


def test_a_snooze_keeps_its_time() -> None:
    """An instant must stay an instant and a duration a duration, because only the store knows the current time."""
    at, after = decided(Snoozed(9, 0)), decided(Snoozed(None, 5))
    assert (at.run_at, after.run_at, after.delay_us) == (9, None, 5)
    assert decided(Released()).delay_us == 0


def test_a_cancelled_job_is_neither_failed_nor_retried() -> None:
    """The job did what it was asked to do."""
    settlement = decided(Cancelled())
    assert (settlement.state, settlement.failure, settlement.returns_attempt) == (State.CANCELLED, None, False)


@pytest.mark.parametrize(
    "until",
    [datetime(2030, 1, 1), -1, float("nan"), float("inf"), timedelta(seconds=-1), timedelta(days=4_000)],  # noqa: DTZ001
    ids=str,
)
def test_a_snooze_without_a_sensible_time_is_refused(until: datetime | timedelta | float) -> None:
    """The error must appear inside the handler, not in the store."""
    with pytest.raises(BadValue, match="until"):
        Snooze(until)


def test_a_snooze_in_words_of_either_kind() -> None:
    """A snooze takes an instant or a duration."""
    assert snooze_time(datetime(2030, 1, 1, tzinfo=UTC)) == (1_893_456_000 * SECOND_US, 0)
    assert snooze_time(timedelta(minutes=1)) == snooze_time(60) == snooze_time(60.0) == (None, 60 * SECOND_US)
    assert snooze_time(0) == (None, 0)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_a_snooze_is_exact_to_the_microsecond(until: datetime) -> None:
    """A job that wakes a microsecond early finds the window that it waited for still closed."""
    run_at, _ = snooze_time(until)
    assert run_at == (until - EPOCH) // timedelta(microseconds=1)


@given(st.integers(0, 10 * 366 * 86_400 * SECOND_US - 1))
def test_a_duration_is_exact_to_the_microsecond(duration_us: int) -> None:
    """The same holds for a timedelta."""
    assert snooze_time(timedelta(microseconds=duration_us)) == (None, duration_us)


def settled(number: int, **texts: str) -> Settlement:
    return Settlement(id=JobId(str(number)), token=Token("t"), state=State.DONE, **texts)  # type: ignore[arg-type]


def test_an_exchange_carries_a_bounded_number_of_settlements() -> None:
    """A service refuses a larger one as a whole, and the worker would send it again and again."""
    assert count_fitting([]) == 0
    assert count_fitting([settled(n) for n in range(SETTLEMENTS_MAX)]) == SETTLEMENTS_MAX
    assert count_fitting([settled(n) for n in range(SETTLEMENTS_MAX + 1)]) == SETTLEMENTS_MAX


def test_an_exchange_carries_texts_up_to_the_size_of_a_request() -> None:
    """A hundred results of 256 KiB are more than a service reads."""
    half = "x" * (SETTLED_LENGTH_MAX // 2)
    assert count_fitting([settled(n, result=half) for n in range(5)]) == 2
    assert count_fitting([settled(n, progress=half) for n in range(5)]) == 2
    assert count_fitting([settled(1, result=half * 3), settled(2)]) == 1, "the first is sent in any case"


def test_an_exchange_carries_a_bounded_number_of_children() -> None:
    """They are stored in the same transaction."""
    child = NewJob(id=JobId("child"), kind="k", payload="{}")
    parents = [replace(settled(n), children=(child,) * (CHILDREN_MAX // 2)) for n in range(4)]
    assert count_fitting(parents) == 2
