"""Feedback from the provider: closed for all, slowed once, reopened with one permit, and faster step by step."""

from typing import Any

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Notice, Wait
from leaseway.domain.limits.limit import PERCENT_MIN, Rate
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.fixtures import (
    MAIL,
    MAPS,
    MAPS_BURST,
    MAPS_TOKEN_US,
    PHONE,
    SEAT_US,
    TWO,
    ask,
    drained,
    granted,
    left,
    level_of,
    picture,
    ready,
    seated,
    throttled,
    waits,
)


async def test_a_refusal_closes_the_limit_for_all(limiter: Limiter, clock: FakeClock) -> None:
    """One worker was refused, and the others must not be refused as well."""
    await ready(limiter, clock, MAPS)
    await throttled(limiter, MAPS, seconds=10)
    wait = await waits(limiter, ask(MAPS))
    assert wait.wait_us == 10 * SECOND_US
    assert "provider" in wait.why
    clock.advance_us(10 * SECOND_US - 1)
    await waits(limiter, ask(MAPS))
    clock.advance_us(1)
    await granted(limiter, ask(MAPS))


async def test_a_shorter_refusal_does_not_open_early(limiter: Limiter, clock: FakeClock) -> None:
    """Responses arrive in any order."""
    await ready(limiter, clock, MAPS)
    await throttled(limiter, MAPS, seconds=10)
    await throttled(limiter, MAPS, seconds=1)
    assert (await waits(limiter, ask(MAPS))).wait_us == 10 * SECOND_US


async def test_a_refusal_without_a_time_closes_for_a_while(limiter: Limiter, clock: FakeClock) -> None:
    """It closes for a tenth of the shortest window: a call that is repeated at once would be refused again."""
    await ready(limiter, clock, MAPS)
    await throttled(limiter, MAPS, seconds=None)
    assert (await waits(limiter, ask(MAPS))).wait_us == 6 * SECOND_US


async def test_it_reopens_with_one_token(limiter: Limiter, clock: FakeClock) -> None:
    """A full bucket would send a burst to the provider and be refused again."""
    await ready(limiter, clock, MAPS)
    await throttled(limiter, MAPS, seconds=10)
    clock.advance(10)
    assert (await drained(limiter, ask(MAPS))).count == 1
    assert (await waits(limiter, ask(MAPS))).wait_us > MAPS_TOKEN_US


async def test_a_refusal_slows_once_for_all_who_saw_it(limiter: Limiter, clock: FakeClock) -> None:
    """Sixty workers see one overload; if each slowed the limit, it would stop."""
    await ready(limiter, clock, MAPS)
    for _ in range(20):
        await throttled(limiter, MAPS, generation=0, seconds=1)
    level = await level_of(limiter, MAPS)
    assert (level.percent, level.generation) == (70, 1)
    clock.advance(1)
    assert (await granted(limiter, ask(MAPS))).generations == (1,)
    await throttled(limiter, MAPS, generation=1, seconds=1)
    level = await level_of(limiter, MAPS)
    assert (level.percent, level.generation) == (49, 2)


async def test_a_slowed_limit_refills_slower(limiter: Limiter, clock: FakeClock) -> None:
    """Slowing must reduce the refill rate."""
    await ready(limiter, clock, MAPS)
    await throttled(limiter, MAPS, seconds=0)
    await granted(limiter, ask(MAPS))
    clock.advance_us(MAPS_TOKEN_US)
    await waits(limiter, ask(MAPS))
    clock.advance_us(MAPS_TOKEN_US * 3 // 7 + 2)
    await granted(limiter, ask(MAPS))


async def test_it_is_never_slowed_to_a_stop(limiter: Limiter, clock: FakeClock) -> None:
    """Some calls must continue, or the fleet would never learn that the provider has recovered."""
    await ready(limiter, clock, MAPS)
    for generation in range(20):
        await throttled(limiter, MAPS, generation, seconds=0)
    assert (await level_of(limiter, MAPS)).percent == PERCENT_MIN
    clock.advance(60)
    await granted(limiter, ask(MAPS))


async def test_it_recovers_step_by_step_in_quiet_times(limiter: Limiter, clock: FakeClock) -> None:
    """Five percent per quiet minute: full speed at once would be refused at once."""
    await ready(limiter, clock, MAPS)
    await throttled(limiter, MAPS, seconds=10)
    clock.advance(10 + 60)
    clock.advance_us(-1)
    assert (await level_of(limiter, MAPS)).percent == 70
    clock.advance_us(1)
    assert (await level_of(limiter, MAPS)).percent == 75
    await granted(limiter, ask(MAPS))
    clock.advance(2 * 60)
    assert (await level_of(limiter, MAPS)).percent == 85
    clock.advance(60 * 60)
    assert (await level_of(limiter, MAPS)).percent == 100
    assert await left(limiter, MAPS) == [MAPS_BURST]


async def test_a_refusal_keeps_used_tokens_used(limiter: Limiter, clock: FakeClock) -> None:
    """At any rate, sent requests must still count."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    await throttled(limiter, MAPS, seconds=0)
    level = await level_of(limiter, MAPS)
    bucket = level.buckets[60 * SECOND_US]
    assert bucket.tat - clock.now_us() >= MAPS_BURST * MAPS_TOKEN_US * 100 // 70


async def test_others_go_on(limiter: Limiter, clock: FakeClock) -> None:
    """A refusal concerns one limit only."""
    await ready(limiter, clock, MAPS, MAIL)
    await throttled(limiter, MAPS)
    await granted(limiter, ask(MAIL))
    wait = await waits(limiter, ask(MAIL), ask(MAPS))
    assert wait.name == MAPS.name


async def test_seats_are_closed_too(limiter: Limiter, clock: FakeClock) -> None:
    """A provider that counts connections may also send a wait."""
    await ready(limiter, clock, PHONE)
    await throttled(limiter, PHONE, seconds=None)
    wait = await seated(limiter, "one", ask(PHONE), in_flight_us=SEAT_US)
    assert isinstance(wait, Wait)
    assert wait.wait_us == SECOND_US


async def test_less_than_we_thought_is_believed(limiter: Limiter, clock: FakeClock) -> None:
    """Another program may use the same account."""
    await ready(limiter, clock, MAPS)
    await limiter.observe(Notice(MAPS.name, MAPS.name, 0, remaining=2))
    assert await left(limiter, MAPS) == [2]
    await limiter.observe(Notice(MAPS.name, MAPS.name, 0, remaining=0))
    wait = await waits(limiter, ask(MAPS))
    assert wait.wait_us == MAPS_TOKEN_US


async def test_more_than_we_thought_is_not_believed(limiter: Limiter, clock: FakeClock) -> None:
    """The provider has not counted the requests that are still on their way."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    await limiter.observe(Notice(MAPS.name, MAPS.name, 0, remaining=90))
    assert await left(limiter, MAPS) == [0]


async def test_what_is_left_belongs_to_the_window_that_begins_anew_then(limiter: Limiter, clock: FakeClock) -> None:
    """Three requests left today are not three requests left in this minute."""
    await ready(limiter, clock, TWO)
    await limiter.observe(Notice(TWO.name, TWO.name, 0, remaining=20, reset_us=3_600 * SECOND_US))
    assert await left(limiter, TWO) == [3, 20]
    await limiter.observe(Notice(TWO.name, TWO.name, 0, remaining=2, reset_us=30 * SECOND_US))
    assert await left(limiter, TWO) == [2, 20]
    await limiter.observe(Notice(TWO.name, TWO.name, 0, remaining=1, reset_us=5 * 86_400 * SECOND_US))
    assert await left(limiter, TWO) == [2, 1]


async def test_a_reply_that_says_nothing_changes_nothing(limiter: Limiter, clock: FakeClock) -> None:
    """Most responses contain no rate-limit information."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    before = await picture(limiter, [MAPS])
    await limiter.observe(Notice(MAPS.name, MAPS.name, 0))
    assert await picture(limiter, [MAPS]) == before


ONE = [ask(MAPS)]


async def test_a_limit_is_named_once(limiter: Limiter, clock: FakeClock) -> None:
    """Decided one after the other, each request would see permits that the other has taken."""
    await ready(limiter, clock, MAPS)
    with pytest.raises(BadValue, match="twice"):
        await limiter.acquire([ask(MAPS), ask(MAPS, 2)])


@pytest.mark.parametrize(
    ("asks", "options"),
    [
        ([], {}),
        (ONE, {"least": 0}),
        (ONE, {"least": -1}),
        (ONE, {"least": 2, "most": 1}),
        (ONE, {"most": 2_000_000_000}),
        (ONE, {"least": True}),
        (ONE, {"in_flight_us": -1}),
        ([ask(MAPS, 0)], {}),
        ([ask(MAPS, -1)], {}),
        ([ask(MAPS, 10**12)], {}),
        ([ask(MAPS, name="x" * 500)], {}),
    ],
)
async def test_an_impossible_ask_is_refused(
    limiter: Limiter, clock: FakeClock, asks: Any, options: dict[str, Any]
) -> None:
    """A negative cost would create permits."""
    await ready(limiter, clock, MAPS)
    before = await picture(limiter, [MAPS])
    with pytest.raises(BadValue):
        await limiter.acquire(asks, **options)
    assert await picture(limiter, [MAPS]) == before


@pytest.mark.parametrize("unused", [-1, 6, 1.5])
async def test_nobody_returns_what_was_not_granted(limiter: Limiter, clock: FakeClock, unused: Any) -> None:
    """Returning more than was taken would create permits; a negative number would remove them."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    before = await picture(limiter, [MAPS])
    with pytest.raises(BadValue, match="unused"):
        await limiter.return_unused(taken, unused)
    assert await picture(limiter, [MAPS]) == before


@pytest.mark.parametrize(
    ("holder", "count", "in_flight_us"), [("", 1, 1), ("one", 0, 1), ("one", -1, 1), ("one", 1, 0)]
)
async def test_impossible_seats_are_refused(
    limiter: Limiter, clock: FakeClock, holder: str, count: int, in_flight_us: int
) -> None:
    """A negative number of calls would make room for others."""
    await ready(limiter, clock, PHONE)
    with pytest.raises(BadValue):
        await limiter.renew_calls([ask(PHONE)], holder, count, in_flight_us)
    if in_flight_us:
        with pytest.raises(BadValue):
            await limiter.end_calls([ask(PHONE)], holder, count)


@pytest.mark.parametrize(
    "said", [{"retry_after_us": -1}, {"remaining": -1}, {"reset_us": -1}, {"retry_after_us": 10**16}]
)
async def test_an_impossible_notice_is_refused(limiter: Limiter, clock: FakeClock, said: dict[str, Any]) -> None:
    """Values come from responses of providers; a limit that is closed for three centuries is useless."""
    await ready(limiter, clock, MAPS)
    before = await picture(limiter, [MAPS])
    with pytest.raises(BadValue, match="notice about maps"):
        await limiter.observe(Notice(MAPS.name, MAPS.name, 0, throttled=True, **said))
    assert await picture(limiter, [MAPS]) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"rates": ()},
        {"rates": (Rate(1_000_000, 1), Rate(1_000_000, 2))},
        {"concurrency": 0},
        {"burst_share": -0.1},
        {"burst_share": 1.1},
        {"cost_max": 101},
        {"cost_max": 0},
        {"lease_us": -1},
        {"delay_us": 10**9},
        {"name": ""},
    ],
)
async def test_an_impossible_definition_is_refused(limiter: Limiter, clock: FakeClock, changes: dict[str, Any]) -> None:
    """This applies to the operator's method and to the code's; with one invalid definition, none of the batch may be
    stored.
    """
    await ready(limiter, clock, MAPS)
    bad = replace(MAPS.definition, **changes)
    with pytest.raises(BadValue, match="limit"):
        await limiter.definitions.change(bad)
    with pytest.raises(BadValue, match="limit"):
        await limiter.definitions.declare([PHONE.definition, bad])
    assert await limiter.definitions.all() == [(MAPS.definition, 1)]
