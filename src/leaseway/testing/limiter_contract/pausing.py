"""Pauses and versions: what people say to each other through a limiter."""

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import Stale
from leaseway.domain.limits.buckets import PAUSED, PAUSED_US, Wait
from leaseway.domain.limits.limit import Limit
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.actors import MAPS, ask, granted, left, ready

PAUSED_MAPS = replace(MAPS.definition, paused=True)
FASTER = Limit("maps", "1000/minute")


async def test_a_paused_limit_grants_nothing_until_it_is_resumed(limiter: Limiter, clock: FakeClock) -> None:
    """Somebody stops the calls to a provider now, whatever tokens there are; and nothing is used up by asking."""
    await ready(limiter, clock, MAPS)
    before = await left(limiter, MAPS)
    await limiter.definitions.change(PAUSED_MAPS)
    assert await limiter.acquire([ask(MAPS)]) == Wait(PAUSED_US, MAPS.name, PAUSED)
    assert await limiter.acquire([ask(MAPS)], most=5) == Wait(PAUSED_US, MAPS.name, PAUSED)
    await limiter.definitions.change(MAPS.definition)
    assert await left(limiter, MAPS) == before
    await granted(limiter, ask(MAPS))


async def test_new_code_does_not_resume(limiter: Limiter, clock: FakeClock) -> None:
    """A deployment that happens to come along knows nothing of the reason for the pause."""
    await ready(limiter, clock, MAPS)
    await limiter.definitions.change(PAUSED_MAPS)
    await limiter.definitions.declare([FASTER.definition])
    assert await limiter.definitions.all() == [(replace(FASTER.definition, paused=True), 3)]
    assert isinstance(await limiter.acquire([ask(MAPS)]), Wait)
    await limiter.definitions.change(FASTER.definition)
    assert await limiter.definitions.all() == [(FASTER.definition, 4)]


async def test_of_two_who_saw_the_same_version_one_is_refused(limiter: Limiter) -> None:
    """Each of them changes what he saw; the second would undo what the first has done, and not know it."""
    await limiter.definitions.declare([MAPS.definition])
    assert await limiter.definitions.change(FASTER.definition, expected=1) == 2
    with pytest.raises(Stale, match="limit maps"):
        await limiter.definitions.change(PAUSED_MAPS, expected=1)
    assert await limiter.definitions.all() == [(FASTER.definition, 2)]
    assert await limiter.definitions.change(PAUSED_MAPS, expected=2) == 3


async def test_who_wants_to_be_the_first_is_refused_if_he_is_not(limiter: Limiter) -> None:
    """And who expects a limit that was forgotten does not make it anew."""
    assert await limiter.definitions.change(MAPS.definition, expected=0) == 1
    with pytest.raises(Stale):
        await limiter.definitions.change(FASTER.definition, expected=0)
    await limiter.definitions.forget(MAPS.name)
    with pytest.raises(Stale):
        await limiter.definitions.change(FASTER.definition, expected=1)
    assert await limiter.definitions.all() == []
