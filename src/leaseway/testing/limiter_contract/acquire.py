"""Acquiring permits: all or nothing, never more than the windows allow, and the effects of a refusal."""

from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Granted, Never, Wait
from leaseway.domain.limits.limit import Limit
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.fixtures import (
    DAY_SECONDS,
    MAIL,
    MAIL_BURST,
    MANY,
    MAPS,
    MAPS_BURST,
    MAPS_TOKEN_US,
    TWO,
    ask,
    drained,
    granted,
    left,
    level_of,
    picture,
    ready,
    throttled,
    waits,
)


async def test_a_new_limiter_grants_nothing_at_once(limiter: Limiter, clock: FakeClock) -> None:
    """Requests that were sent before the limiter started are unknown, so everything counts as used."""
    await limiter.definitions.declare([MAPS.definition])
    wait = await waits(limiter, ask(MAPS))
    assert 0 < wait.wait_us <= MAPS_TOKEN_US
    clock.advance_us(wait.wait_us)
    await granted(limiter, ask(MAPS))


async def test_a_limit_that_starts_full_grants_its_burst_at_once(limiter: Limiter) -> None:
    """The user knows that nothing was used before. More than the burst would exceed the limit in its first window."""
    full = Limit("maps", "100/minute", start="full")
    await limiter.definitions.declare([full.definition])
    assert await left(limiter, full) == [MAPS_BURST]
    assert (await drained(limiter, ask(full))).count == MAPS_BURST
    assert (await waits(limiter, ask(full))).wait_us == MAPS_TOKEN_US


async def test_a_limit_that_starts_empty_fills_from_its_first_request_on(limiter: Limiter, clock: FakeClock) -> None:
    """The provider may have served another system until now, however long this limiter has been running."""
    empty = Limit("maps", "100/minute", start="empty")
    clock.advance(2 * DAY_SECONDS)
    await limiter.definitions.declare([empty.definition])
    assert (await waits(limiter, ask(empty))).wait_us == MAPS_TOKEN_US
    clock.advance_us(MAPS_TOKEN_US)
    assert (await drained(limiter, ask(empty))).count == 1
    clock.advance(DAY_SECONDS)
    assert (await drained(limiter, ask(empty))).count == MAPS_BURST


async def test_another_start_of_a_limit_in_use_changes_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """The start is for limits without state. Used permits must stay used."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    await limiter.definitions.change(Limit("maps", "100/minute", start="full").definition)
    assert (await waits(limiter, ask(MAPS))).wait_us == MAPS_TOKEN_US


async def test_no_more_than_the_burst_at_once(limiter: Limiter, clock: FakeClock) -> None:
    """This must hold however long the limit was idle."""
    await ready(limiter, clock, MAPS)
    clock.advance(30 * DAY_SECONDS)
    assert (await drained(limiter, ask(MAPS))).count == MAPS_BURST
    assert (await waits(limiter, ask(MAPS))).wait_us == MAPS_TOKEN_US


async def test_tokens_come_back_one_by_one(limiter: Limiter, clock: FakeClock) -> None:
    """A window that opened all at once would let twice the rate through at its border."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    clock.advance_us(MAPS_TOKEN_US - 1)
    await waits(limiter, ask(MAPS))
    clock.advance_us(1)
    assert (await drained(limiter, ask(MAPS))).count == 1
    clock.advance_us(3 * MAPS_TOKEN_US)
    assert (await drained(limiter, ask(MAPS))).count == 3


async def test_any_window_holds_the_rate(limiter: Limiter, clock: FakeClock) -> None:
    """The main guarantee: a client that takes all it can at every moment stays below the rate in every window."""
    await ready(limiter, clock, MAPS)
    sends: list[int] = []
    while len(sends) < 250:
        verdict = await limiter.acquire([ask(MAPS)], most=MANY)
        if isinstance(verdict, Granted):
            sends += [verdict.granted_at] * verdict.count
        clock.advance_us(MAPS_TOKEN_US // 3)
    minute_us = 60 * SECOND_US
    assert max(sum(start <= at < start + minute_us for at in sends) for start in sends) <= 100


async def test_a_grant_tells_what_the_worker_needs(limiter: Limiter, clock: FakeClock) -> None:
    """The worker needs the lifetime of its permits, and the values to send when it returns them."""
    await ready(limiter, clock, MAPS, MAIL)
    asks = (ask(MAPS), ask(MAIL, 3))
    verdict = await granted(limiter, *asks)
    assert verdict.asks == asks
    assert (verdict.count, verdict.granted_at, verdict.lease_us) == (1, clock.now_us(), SECOND_US * 5 // 4)
    assert verdict.generations == (0, 0)


async def test_all_or_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """A refused call that had used up another limit would waste permits that others could have used."""
    await ready(limiter, clock, MAPS, MAIL)
    await drained(limiter, ask(MAPS))
    before = await left(limiter, MAIL)
    wait = await waits(limiter, ask(MAIL), ask(MAPS))
    assert wait.name == MAPS.name
    assert await left(limiter, MAIL) == before == [MAIL_BURST]


async def test_a_refusal_names_the_limit_that_takes_longest(limiter: Limiter, clock: FakeClock) -> None:
    """A caller that came back for the other limit would be refused again."""
    slow = Limit("slow", "10/minute")
    await ready(limiter, clock, MAPS, slow)
    await drained(limiter, ask(MAPS))
    await drained(limiter, ask(slow))
    wait = await waits(limiter, ask(MAPS), ask(slow))
    assert wait.name == slow.name
    assert wait.wait_us > 5 * SECOND_US
    assert "60 s" in wait.why


async def test_a_refusal_changes_nothing_but_the_turn(limiter: Limiter, clock: FakeClock) -> None:
    """A refused request must not delay others, or frequent callers would starve the rest."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    before = await left(limiter, MAPS)
    for _ in range(5):
        await waits(limiter, ask(MAPS))
    assert await left(limiter, MAPS) == before
    clock.advance_us(MAPS_TOKEN_US)
    await granted(limiter, ask(MAPS))


async def test_those_who_wait_get_turns(limiter: Limiter, clock: FakeClock) -> None:
    """Sixty workers that came back at the same instant for one permit would send sixty times as many requests as
    needed.
    """
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    waits_us = [(await waits(limiter, ask(MAPS))).wait_us for _ in range(4)]
    assert waits_us == [MAPS_TOKEN_US, 2 * MAPS_TOKEN_US, 3 * MAPS_TOKEN_US, 4 * MAPS_TOKEN_US]


async def test_turns_do_not_run_away(limiter: Limiter, clock: FakeClock) -> None:
    """A caller with a turn beyond a whole window has left long ago, and others must not wait behind it."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    for _ in range(200):
        wait = await waits(limiter, ask(MAPS))
        assert wait.wait_us <= 62 * SECOND_US


async def test_never_is_said_at_once_and_changes_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """A job that can never run must fail now, and an oversized request must not delay the turns of others."""
    await ready(limiter, clock, MAPS, MAIL)
    before = await picture(limiter, [MAPS, MAIL])
    assert await limiter.acquire([ask(MAIL), ask(MAPS, 6)]) == Never(MAPS.name, 0)
    assert await limiter.acquire([ask(MAIL, 20)], least=3, most=9) == Never(MAIL.name, 40)
    assert await picture(limiter, [MAPS, MAIL]) == before


async def test_never_is_said_of_an_empty_bucket_too(limiter: Limiter, clock: FakeClock) -> None:
    """Waiting would not help."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    assert isinstance(await limiter.acquire([ask(MAPS)], least=6, most=6), Never)


async def test_as_many_as_there_are_between_least_and_most(limiter: Limiter, clock: FakeClock) -> None:
    """A worker takes ahead what it can use, and accepts less."""
    await ready(limiter, clock, MAPS)
    assert (await granted(limiter, ask(MAPS), most=2)).count == 2
    assert (await granted(limiter, ask(MAPS), least=2, most=9)).count == 3
    clock.advance_us(2 * MAPS_TOKEN_US)
    wait = await waits(limiter, ask(MAPS), least=3)
    assert wait.wait_us == MAPS_TOKEN_US


async def test_the_scarcest_limit_decides_how_many(limiter: Limiter, clock: FakeClock) -> None:
    """All limits are acquired as often as the call is made."""
    await ready(limiter, clock, MAPS, MAIL)
    assert (await drained(limiter, ask(MAIL, 20), ask(MAPS))).count == 2
    assert await left(limiter, MAPS) == [3]
    assert await left(limiter, MAIL) == [10]


async def test_a_call_may_weigh_more_than_one(limiter: Limiter, clock: FakeClock) -> None:
    """Providers count weights, such as tokens of a language model or units of a map."""
    await ready(limiter, clock, MAIL)
    for _ in range(2):
        await granted(limiter, ask(MAIL, 20))
    assert await left(limiter, MAIL) == [10]
    await waits(limiter, ask(MAIL, 20))
    await granted(limiter, ask(MAIL, 10))


async def test_every_window_of_a_limit_holds(limiter: Limiter, clock: FakeClock) -> None:
    """The minute refills quickly; the day must not."""
    await ready(limiter, clock, TWO)
    taken = 0
    for _ in range(60):
        verdict = await limiter.acquire([ask(TWO)], most=MANY)
        if isinstance(verdict, Granted):
            taken += verdict.count
        clock.advance(60)
    assert taken <= 50 + 3_600 / 90
    verdict = await limiter.acquire([ask(TWO)], most=MANY)
    clock.advance(10)
    wait = await waits(limiter, ask(TWO))
    assert "86400 s" in wait.why
    assert wait.wait_us > 20 * SECOND_US


async def test_limits_with_fields_are_apart(limiter: Limiter, clock: FakeClock) -> None:
    """One definition creates one limit per value, so a tenant cannot use up another's."""
    each = Limit("maps:{tenant}", "100/minute")
    await ready(limiter, clock, each)
    await drained(limiter, ask(each, name="maps:one"))
    await waits(limiter, ask(each, name="maps:one"))
    assert (await drained(limiter, ask(each, name="maps:two"))).count == MAPS_BURST


async def test_the_smallest_limit_makes_progress(limiter: Limiter, clock: FakeClock) -> None:
    """One per minute needs a bucket of one that is refilled slightly slower than once per window."""
    single = Limit("single", "1/minute")
    await ready(limiter, clock, single)
    await granted(limiter, ask(single))
    clock.advance(60)
    wait = await waits(limiter, ask(single))
    assert 0 < wait.wait_us < 2 * SECOND_US
    clock.advance_us(wait.wait_us)
    await granted(limiter, ask(single))
    assert isinstance(await limiter.acquire([ask(single)]), Wait)


async def test_a_clock_that_steps_back_grants_nothing_extra(limiter: Limiter, clock: FakeClock) -> None:
    """When a clock is set back, old permits must neither look new nor block the limit forever."""
    await ready(limiter, clock, MAPS)
    start_us = clock.now_us()
    await drained(limiter, ask(MAPS))
    clock.set_us(start_us - 10 * SECOND_US)
    wait = await waits(limiter, ask(MAPS))
    assert wait.wait_us == 10 * SECOND_US + MAPS_TOKEN_US
    clock.set_us(start_us + MAPS_TOKEN_US)
    assert (await drained(limiter, ask(MAPS))).count == 1


async def waits_after_draining(limiter: Limiter) -> None:
    await drained(limiter, ask(MAPS))
    await waits(limiter, ask(MAPS))


async def test_looking_changes_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """Dashboards read limits all day, and a read must not cost a permit or a turn."""
    await ready(limiter, clock, MAPS)
    await waits_after_draining(limiter)
    clock.advance_us(MAPS_TOKEN_US)
    levels = [await level_of(limiter, MAPS) for _ in range(3)]
    assert levels[0] == levels[1] == levels[2]
    now, _ = await limiter.levels([ask(MAPS)])
    assert now == clock.now_us()
    assert await left(limiter, MAPS) == [1]
    await granted(limiter, ask(MAPS))


async def test_what_is_returned_at_once_counts_in_full(limiter: Limiter, clock: FakeClock) -> None:
    """A worker that took permits ahead without using them must not cost the fleet its permits."""
    await ready(limiter, clock, MAPS, MAIL)
    taken = await granted(limiter, ask(MAPS), ask(MAIL, 4), most=5)
    await limiter.return_unused(taken, 3)
    assert await left(limiter, MAPS) == [3]
    assert await left(limiter, MAIL) == [MAIL_BURST - 2 * 4]


async def test_a_return_is_worth_less_with_its_age(limiter: Limiter, clock: FakeClock) -> None:
    """If they had never been taken, a full bucket would not have refilled: returning one for one would exceed the
    window.
    """
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    clock.advance_us(2 * MAPS_TOKEN_US)
    await limiter.return_unused(taken, 5)  # two were refilled meanwhile
    assert await left(limiter, MAPS) == [MAPS_BURST]
    taken = await drained(limiter, ask(MAPS))
    clock.advance_us(2 * MAPS_TOKEN_US)
    await limiter.return_unused(taken, 3)
    assert await left(limiter, MAPS) == [3]


async def test_an_old_return_is_worth_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """The return must not become a debt either."""
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
    """The bucket that granted them is lost, so everything counts as used."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    await limiter.return_unused(replace(taken, since=taken.since - 1), 5)
    assert await left(limiter, MAPS) == [0]


async def test_a_return_from_the_future_counts_for_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """The clock was set back, so the age of the permits is unknown."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    clock.advance_us(-1)
    await limiter.return_unused(taken, 5)
    clock.advance_us(1)
    assert await left(limiter, MAPS) == [0]


async def test_a_return_never_fills_beyond_the_burst(limiter: Limiter, clock: FakeClock) -> None:
    """Whatever is returned, a bucket never exceeds its size."""
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
    """The limit reopens with one permit; earlier permits of workers must not turn it into a burst."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    await throttled(limiter, MAPS, seconds=10)
    await limiter.return_unused(taken, 5)
    clock.advance(10)
    assert await left(limiter, MAPS) == [1]


async def test_a_return_to_a_forgotten_limit_is_not_missed(limiter: Limiter, clock: FakeClock) -> None:
    """A worker may return permits after an operator deleted the limit."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    await limiter.definitions.forget(MAPS.name)
    await limiter.return_unused(taken, 5)
    await limiter.end_calls([ask(MAPS)], "worker", 1)
    assert await limiter.definitions.all() == []
