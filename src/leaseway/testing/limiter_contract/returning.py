"""Returning tokens that were not used: worth less with every moment, and nothing under another fence."""

from msgspec.structs import replace

from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.actors import (
    MAIL,
    MAIL_BURST,
    MAPS,
    MAPS_BURST,
    MAPS_TOKEN_US,
    ask,
    drained,
    granted,
    left,
    ready,
    throttled,
)


async def test_what_is_returned_at_once_counts_in_full(limiter: Limiter, clock: FakeClock) -> None:
    """A worker that took ahead and found nothing to do must not cost the fleet its tokens."""
    await ready(limiter, clock, MAPS, MAIL)
    taken = await granted(limiter, ask(MAPS), ask(MAIL, 4), most=5)
    await limiter.return_unused(taken, 3)
    assert await left(limiter, MAPS) == [3]
    assert await left(limiter, MAIL) == [MAIL_BURST - 2 * 4]


async def test_a_return_is_worth_less_with_its_age(limiter: Limiter, clock: FakeClock) -> None:
    """Had they never been taken, a full bucket would have refilled nothing: one for one breaks the window."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    clock.advance_us(2 * MAPS_TOKEN_US)
    await limiter.return_unused(taken, 5)  # two came back by themselves meanwhile
    assert await left(limiter, MAPS) == [MAPS_BURST]
    taken = await drained(limiter, ask(MAPS))
    clock.advance_us(2 * MAPS_TOKEN_US)
    await limiter.return_unused(taken, 3)
    assert await left(limiter, MAPS) == [3]


async def test_an_old_return_is_worth_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """And it must not become a debt either."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    clock.advance_us(2 * MAPS_TOKEN_US)
    await limiter.return_unused(taken, 1)
    assert await left(limiter, MAPS) == [2]


async def test_a_return_of_nothing_changes_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """Most leases are used up."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    await limiter.return_unused(taken, 0)
    assert await left(limiter, MAPS) == [0]


async def test_a_return_under_another_fence_counts_for_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """The bucket from which they came is lost: what it knew counts as used."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    await limiter.return_unused(replace(taken, since=taken.since - 1), 5)
    assert await left(limiter, MAPS) == [0]


async def test_a_return_from_the_future_counts_for_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """The clock stepped back: nobody knows how old the tokens are."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    clock.advance_us(-1)
    await limiter.return_unused(taken, 5)
    clock.advance_us(1)
    assert await left(limiter, MAPS) == [0]


async def test_a_return_never_fills_beyond_the_burst(limiter: Limiter, clock: FakeClock) -> None:
    """Whatever comes back, a bucket is only so large."""
    await ready(limiter, clock, MAPS)
    first, second = await granted(limiter, ask(MAPS), most=3), await granted(limiter, ask(MAPS), most=1)
    clock.advance_us(MAPS_TOKEN_US)
    await limiter.return_unused(first, 3)
    clock.advance_us(MAPS_TOKEN_US // 2)
    await limiter.return_unused(second, 1)
    clock.advance_us(MAPS_TOKEN_US)
    assert await left(limiter, MAPS) == [MAPS_BURST]
    assert (await drained(limiter, ask(MAPS))).count == MAPS_BURST
    assert await left(limiter, MAPS) == [0]


async def test_a_return_after_a_refusal_counts_for_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """The limit reopens with one token; what workers still held from before must not make it a burst."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    await throttled(limiter, MAPS, seconds=10)
    await limiter.return_unused(taken, 5)
    clock.advance(10)
    assert await left(limiter, MAPS) == [1]


async def test_a_return_to_a_forgotten_limit_is_not_missed(limiter: Limiter, clock: FakeClock) -> None:
    """Workers tidy up after an operator who was faster."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    await limiter.definitions.forget(MAPS.name)
    await limiter.return_unused(taken, 5)
    await limiter.end_calls([ask(MAPS)], "worker", 1)
    assert await limiter.definitions.all() == []
