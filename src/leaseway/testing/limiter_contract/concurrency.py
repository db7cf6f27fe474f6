"""Concurrency limits: how many calls may be in flight at once, and what happens to the calls of dead workers."""

from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, Never, Wait
from leaseway.domain.limits.limit import Limit
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.fixtures import (
    MAPS,
    MAPS_BURST,
    PHONE,
    SEAT_US,
    ask,
    drained,
    left,
    level_of,
    ready,
    seated,
)


async def test_no_more_calls_than_seats(limiter: Limiter, clock: FakeClock) -> None:
    """The provider counts connections of all workers together."""
    await ready(limiter, clock, PHONE)
    assert isinstance(await seated(limiter, "one", ask(PHONE)), Granted)
    more = await seated(limiter, "two", ask(PHONE), most=9)
    assert isinstance(more, Granted)
    assert more.count == 2
    wait = await seated(limiter, "three", ask(PHONE))
    assert isinstance(wait, Wait)
    assert "concurrency" in wait.why
    assert 0 < wait.wait_us <= SECOND_US


async def test_more_seats_than_there_are_are_never_granted(limiter: Limiter, clock: FakeClock) -> None:
    """Waiting would not help."""
    await ready(limiter, clock, PHONE)
    verdict = await limiter.acquire([ask(PHONE)], least=4, most=4, holder="one", in_flight_us=SEAT_US)
    assert verdict == Never(PHONE.name, 3)


async def test_a_seat_that_was_left_is_free(limiter: Limiter, clock: FakeClock) -> None:
    """Only the place of the finished call may be freed."""
    await ready(limiter, clock, PHONE)
    await seated(limiter, "one", ask(PHONE), most=3)
    await limiter.end_calls([ask(PHONE)], "one", 1)
    assert isinstance(await seated(limiter, "two", ask(PHONE)), Granted)
    assert isinstance(await seated(limiter, "two", ask(PHONE)), Wait)


async def test_leaving_more_than_one_has_frees_nobody_elses(limiter: Limiter, clock: FakeClock) -> None:
    """A worker that releases twice must not let others exceed the limit."""
    await ready(limiter, clock, PHONE)
    await seated(limiter, "one", ask(PHONE))
    await seated(limiter, "two", ask(PHONE), most=2)
    await limiter.end_calls([ask(PHONE)], "one", 3)
    await limiter.end_calls([ask(PHONE)], "one", 1)
    await limiter.end_calls([ask(PHONE)], "nobody", 1)
    verdict = await seated(limiter, "three", ask(PHONE), most=3)
    assert isinstance(verdict, Granted)
    assert verdict.count == 1


async def test_the_seats_of_the_dead_are_free_in_the_end(limiter: Limiter, clock: FakeClock) -> None:
    """A killed worker does not release its calls; their places must not be lost forever."""
    await ready(limiter, clock, PHONE)
    await seated(limiter, "one", ask(PHONE), most=3)
    clock.advance_us(SEAT_US - 1)
    assert isinstance(await seated(limiter, "two", ask(PHONE)), Wait)
    clock.advance_us(1)
    verdict = await seated(limiter, "two", ask(PHONE), most=3)
    assert isinstance(verdict, Granted)
    assert verdict.count == 3


async def test_a_seat_that_is_kept_stays_taken(limiter: Limiter, clock: FakeClock) -> None:
    """A long call must keep its place as long as its worker renews it."""
    await ready(limiter, clock, PHONE)
    await seated(limiter, "one", ask(PHONE), most=3)
    clock.advance_us(SEAT_US - 1)
    await limiter.renew_calls([ask(PHONE)], "one", 3, SEAT_US)
    clock.advance_us(SEAT_US - 1)
    assert isinstance(await seated(limiter, "two", ask(PHONE)), Wait)
    clock.advance_us(1)
    assert isinstance(await seated(limiter, "two", ask(PHONE)), Granted)


async def test_seats_are_kept_even_if_they_were_lost(limiter: Limiter, clock: FakeClock) -> None:
    """Calls in flight are a fact, whatever the store knows: no further call may start beside them."""
    await ready(limiter, clock, PHONE)
    await limiter.renew_calls([ask(PHONE)], "one", 2, SEAT_US)
    verdict = await seated(limiter, "two", ask(PHONE), most=3)
    assert isinstance(verdict, Granted)
    assert verdict.count == 1
    await limiter.renew_calls([ask(PHONE)], "three", 2, SEAT_US)  # five of three: this cannot be prevented
    assert isinstance(await seated(limiter, "two", ask(PHONE)), Wait)
    await limiter.end_calls([ask(PHONE)], "one", 2)
    assert isinstance(await seated(limiter, "two", ask(PHONE)), Wait)


async def test_keeping_says_how_many_not_how_many_more(limiter: Limiter, clock: FakeClock) -> None:
    """Renewals repeat the total number."""
    await ready(limiter, clock, PHONE)
    await seated(limiter, "one", ask(PHONE), most=2)
    for count in (2, 2, 1):
        await limiter.renew_calls([ask(PHONE)], "one", count, SEAT_US)
    level = await level_of(limiter, PHONE)
    assert {holder: calls.count for holder, calls in level.in_flight.items()} == {"one": 1}
    assert level.in_flight["one"].until == clock.now_us() + SEAT_US


async def test_seats_and_rates_are_taken_together(limiter: Limiter, clock: FakeClock) -> None:
    """Without a free place no permit may be used, and without a permit no place may be taken."""
    both = Limit("both", "100/minute", concurrency=2)
    await ready(limiter, clock, both, MAPS)
    verdict = await seated(limiter, "one", ask(both), most=9)
    assert isinstance(verdict, Granted)
    assert verdict.count == 2
    assert isinstance(await seated(limiter, "two", ask(MAPS), ask(both)), Wait)
    assert await left(limiter, both) == [3]
    assert await left(limiter, MAPS) == [MAPS_BURST]
    await limiter.end_calls([ask(both)], "one", 2)
    await drained(limiter, ask(MAPS))
    assert isinstance(await seated(limiter, "two", ask(both), ask(MAPS)), Wait)
    assert (await level_of(limiter, both)).in_flight == {}


async def test_a_call_is_in_flight_until_it_ends_even_if_its_permit_is_returned(
    limiter: Limiter, clock: FakeClock
) -> None:
    """Returned permits say nothing about calls in flight."""
    both = Limit("both", "100/minute", concurrency=2)
    await ready(limiter, clock, both)
    verdict = await seated(limiter, "one", ask(both), most=2)
    assert isinstance(verdict, Granted)
    await limiter.return_unused(verdict, 2)
    assert (await level_of(limiter, both)).in_flight["one"].count == 2
