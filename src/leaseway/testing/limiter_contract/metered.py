"""Limits on tokens: what calls reserve and what they used, together never more than the limit."""

import pytest

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, Never
from leaseway.domain.limits.limit import Limit
from leaseway.domain.limits.sliding_log import counts_until
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.fixtures import SEAT_US, ask, left, level_of, ready, seated, throttled, waits

TOKENS = Limit("tokens", "1000/minute", unit="tokens")
MINUTE_US = 60 * SECOND_US


async def reserved(limiter: Limiter, cost: int, holder: str = "one", in_flight_us: int = SEAT_US) -> None:
    assert isinstance(await seated(limiter, holder, ask(TOKENS, cost), in_flight_us=in_flight_us), Granted)


async def test_reservations_and_use_fill_the_limit_together(limiter: Limiter, clock: FakeClock) -> None:
    """Calls in flight will use what they reserved, so it cannot be granted twice."""
    await ready(limiter, clock, TOKENS)
    await reserved(limiter, 600)
    await limiter.end_calls([ask(TOKENS, 600)], "one", 1, [100])
    assert await left(limiter, TOKENS) == [900]
    await reserved(limiter, 900)
    await waits(limiter, ask(TOKENS))
    await limiter.end_calls([ask(TOKENS, 900)], "one", 1)
    assert (await waits(limiter, ask(TOKENS, 901))).wait_us == counts_until(MINUTE_US, clock.now_us()) - clock.now_us()


async def test_use_counts_from_the_end_of_the_call(limiter: Limiter, clock: FakeClock) -> None:
    """The provider may have counted it at the last moment."""
    await ready(limiter, clock, TOKENS)
    await reserved(limiter, 1_000, in_flight_us=90 * SECOND_US)
    clock.advance(59)
    await limiter.end_calls([ask(TOKENS, 1_000)], "one", 1, [1_000])
    clock.advance(59)
    await waits(limiter, ask(TOKENS))
    clock.advance(2)
    await reserved(limiter, 1_000)


async def test_use_beyond_the_estimate_is_debt(limiter: Limiter, clock: FakeClock) -> None:
    """Without it, estimates that are too low would exceed the limit in every window."""
    await ready(limiter, clock, TOKENS)
    await reserved(limiter, 10)
    await limiter.end_calls([ask(TOKENS, 10)], "one", 1, [3_000])
    assert await left(limiter, TOKENS) == [0]
    clock.advance(59)
    await waits(limiter, ask(TOKENS))
    clock.advance(2)
    assert await left(limiter, TOKENS) == [1_000]


async def test_a_reservation_that_is_not_reported_is_used(limiter: Limiter, clock: FakeClock) -> None:
    """Its worker has died, and nobody can say what the call used."""
    await ready(limiter, clock, TOKENS)
    await reserved(limiter, 700)
    clock.advance_us(SEAT_US)
    level = await level_of(limiter, TOKENS)
    assert (level.in_flight, [use.amount for use in level.used]) == ({}, [700])
    clock.advance(59)
    assert await left(limiter, TOKENS) == [300]


async def test_a_report_replaces_the_reservation_and_never_shortens_it(limiter: Limiter, clock: FakeClock) -> None:
    """A worker reports what it has in flight every few seconds, and one of its calls may last longer."""
    await ready(limiter, clock, TOKENS)
    await reserved(limiter, 700, in_flight_us=50 * SECOND_US)
    await limiter.renew_calls([ask(TOKENS)], "one", 650, 20 * SECOND_US)
    clock.advance(49)
    level = await level_of(limiter, TOKENS)
    assert {holder: calls.count for holder, calls in level.in_flight.items()} == {"one": 650}
    await limiter.end_calls([ask(TOKENS)], "one", 0, [40])
    assert await left(limiter, TOKENS) == [310]


async def test_a_call_above_the_limit_is_never_granted(limiter: Limiter, clock: FakeClock) -> None:
    """It would wait forever."""
    await ready(limiter, clock, TOKENS)
    assert await limiter.acquire([ask(TOKENS, 1_001)]) == Never("tokens", 0)


async def test_a_refusal_leaves_less_of_the_limit(limiter: Limiter, clock: FakeClock) -> None:
    """The provider allows less than was declared."""
    await ready(limiter, clock, TOKENS)
    await throttled(limiter, TOKENS, seconds=0)
    assert await left(limiter, TOKENS) == [700]


async def test_amounts_that_fit_no_request_are_refused(limiter: Limiter, clock: FakeClock) -> None:
    """They would be logged for another limit."""
    await ready(limiter, clock, TOKENS)
    for used in ([1, 2], [-1]):
        with pytest.raises(BadValue, match="used"):
            await limiter.end_calls([ask(TOKENS)], "one", 1, used)
