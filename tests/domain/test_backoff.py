"""The delay before the next attempt: it grows, stays within bounds, and is spread by jitter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.outcome import Backoff

backoffs = st.builds(
    Backoff,
    first_seconds=st.floats(0, 60),
    factor=st.floats(1, 10),
    seconds_max=st.floats(60, 10 * 366 * 86_400),
    jitter=st.floats(0, 1),
)
attempts = st.integers(0, 10_000)
chances = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("first_seconds", -1),
        ("first_seconds", 3_601),
        ("first_seconds", math.nan),
        ("seconds_max", math.nan),
        ("factor", 0.99),
        ("factor", math.nan),
        ("jitter", -0.01),
        ("jitter", 1.01),
        ("jitter", math.nan),
    ],
)
def test_an_impossible_value_is_refused_when_it_is_written(field: str, value: float) -> None:
    """Found at the first failure in production, it would turn a retry into a crash."""
    with pytest.raises(BadValue, match="backoff"):
        Backoff(**{field: value})


@pytest.mark.parametrize(
    "backoff",
    [
        {"factor": 1e10},
        {"factor": math.inf},
        {"factor": math.inf, "first_seconds": 0},
        {"seconds_max": math.inf, "factor": 1e4},
        {"seconds_max": math.inf, "first_seconds": math.inf},
        {"seconds_max": 1e30},
    ],
    ids=str,
)
def test_no_backoff_that_can_be_made_fails_or_leaves_the_range_of_a_store(backoff: dict[str, float]) -> None:
    """An accepted setting must work: a delay that overflows would break the settlement of a failed job."""
    try:
        made = Backoff(**backoff)
    except BadValue:
        return
    delays_us = [made.delay_us(attempts, chance) for attempts in (0, 1, 2, 65, 10_000) for chance in (0, 0.999)]
    # A store adds the delay to the current time and keeps the sum in 64 bits.
    assert all(0 <= delay_us < 2**62 for delay_us in delays_us)


@given(backoffs, attempts, chances)
def test_a_delay_stays_between_its_bounds(backoff: Backoff, attempts: int, chance: float) -> None:
    """A delay must never be negative or above the maximum, and jitter must not remove more than its share."""
    delay_us = backoff.delay_us(attempts, chance)
    full_us = backoff.delay_us(attempts, 0)
    assert 0 <= delay_us <= full_us <= backoff.seconds_max * SECOND_US
    assert delay_us >= full_us * (1 - backoff.jitter) - 2


@given(backoffs, attempts)
def test_a_later_attempt_never_waits_less(backoff: Backoff, attempts: int) -> None:
    """This holds apart from jitter."""
    assert backoff.delay_us(attempts, 0) <= backoff.delay_us(attempts + 1, 0)


def test_the_default_doubles_from_a_second_to_an_hour() -> None:
    """A readable example."""
    backoff = Backoff()
    seconds = [backoff.delay_us(attempts, 0) / SECOND_US for attempts in (0, 1, 2, 3, 12, 13, 1_000)]
    assert seconds == [1, 1, 2, 4, 2_048, 3_600, 3_600]
    assert backoff.delay_us(1, 0.5) == 875_000
