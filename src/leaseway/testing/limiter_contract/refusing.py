"""Nonsense is refused by name, before anything is looked at or changed."""

from typing import Any

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.domain.limits.buckets import Notice
from leaseway.domain.limits.limit import Rate
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.actors import MAPS, PHONE, ask, drained, picture, ready

ONE = [ask(MAPS)]


async def test_a_limit_is_named_once(limiter: Limiter, clock: FakeClock) -> None:
    """Decided one after the other, each would see tokens that the other has taken."""
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
        (ONE, {"seat_us": -1}),
        ([ask(MAPS, 0)], {}),
        ([ask(MAPS, -1)], {}),
        ([ask(MAPS, 10**12)], {}),
        ([ask(MAPS, name="x" * 500)], {}),
    ],
)
async def test_an_impossible_ask_is_refused(
    limiter: Limiter, clock: FakeClock, asks: Any, options: dict[str, Any]
) -> None:
    """A negative cost would hand out tokens that nobody has."""
    await ready(limiter, clock, MAPS)
    before = await picture(limiter, [MAPS])
    with pytest.raises(BadValue):
        await limiter.acquire(asks, **options)
    assert await picture(limiter, [MAPS]) == before


@pytest.mark.parametrize("unused", [-1, 6, 1.5])
async def test_nobody_returns_what_was_not_granted(limiter: Limiter, clock: FakeClock, unused: Any) -> None:
    """More than was taken would be a gift; less than nothing, a theft."""
    await ready(limiter, clock, MAPS)
    taken = await drained(limiter, ask(MAPS))
    before = await picture(limiter, [MAPS])
    with pytest.raises(BadValue, match="unused"):
        await limiter.return_unused(taken, unused)
    assert await picture(limiter, [MAPS]) == before


@pytest.mark.parametrize(("holder", "count", "seat_us"), [("", 1, 1), ("one", 0, 1), ("one", -1, 1), ("one", 1, 0)])
async def test_impossible_seats_are_refused(
    limiter: Limiter, clock: FakeClock, holder: str, count: int, seat_us: int
) -> None:
    """Fewer than no seats would make room for others."""
    await ready(limiter, clock, PHONE)
    with pytest.raises(BadValue):
        await limiter.renew_calls([ask(PHONE)], holder, count, seat_us)
    if seat_us:
        with pytest.raises(BadValue):
            await limiter.end_calls([ask(PHONE)], holder, count)


@pytest.mark.parametrize(
    "said", [{"retry_after_us": -1}, {"remaining": -1}, {"reset_us": -1}, {"retry_after_us": 10**16}]
)
async def test_an_impossible_notice_is_refused(limiter: Limiter, clock: FakeClock, said: dict[str, int]) -> None:
    """Whoever reads replies says what is in them; a limit that is closed for three centuries helps nobody."""
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
    """By the operator's verb as well as by the code's; and together with others none of them counts."""
    await ready(limiter, clock, MAPS)
    bad = replace(MAPS.definition, **changes)
    with pytest.raises(BadValue, match="limit"):
        await limiter.definitions.change(bad)
    with pytest.raises(BadValue, match="limit"):
        await limiter.definitions.declare([PHONE.definition, bad])
    assert await limiter.definitions.all() == [(MAPS.definition, 1)]
