"""Definitions: declared by the code, changed by an operator, and their effect on used permits."""

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import Stale, UnknownLimit
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import PAUSED, PAUSED_US, Notice, Wait
from leaseway.domain.limits.limit import Limit
from leaseway.ports.limiter import Limiter
from leaseway.testing.clock import FakeClock
from leaseway.testing.limiter_contract.fixtures import (
    MAIL,
    MAPS,
    MAPS_BURST,
    MAPS_TOKEN_US,
    PHONE,
    TWO,
    ask,
    drained,
    granted,
    left,
    ready,
    seated,
    waits,
)

FASTER = Limit("maps", "1000/minute")
SLOWER = Limit("maps", "50/minute")


async def test_what_was_declared_is_in_force(limiter: Limiter) -> None:
    """Definitions must be listed by name, with their version and exactly as declared."""
    rich = Limit("rich", "5/second", "100k/day", concurrency=7, burst=0.25, cost_max=3, lease=0.5, delay=2)
    await limiter.definitions.declare([rich.definition, MAPS.definition])
    assert await limiter.definitions.all() == [(MAPS.definition, 1), (rich.definition, 1)]


async def test_a_restart_changes_nothing(limiter: Limiter) -> None:
    """Every worker declares the limits of the code each time it starts."""
    for _ in range(3):
        await limiter.definitions.declare([MAPS.definition])
    assert await limiter.definitions.all() == [(MAPS.definition, 1)]


async def test_a_restart_does_not_undo_an_operators_change(limiter: Limiter) -> None:
    """The operator slowed it down at night for a reason; the next deployment of the same code must not undo that."""
    await limiter.definitions.declare([MAPS.definition])
    assert await limiter.definitions.change(SLOWER.definition) == 2
    await limiter.definitions.declare([MAPS.definition])
    assert await limiter.definitions.all() == [(SLOWER.definition, 2)]


async def test_new_code_counts(limiter: Limiter) -> None:
    """A new declaration in the code is newer than the operator's change."""
    await limiter.definitions.declare([MAPS.definition])
    await limiter.definitions.change(SLOWER.definition)
    await limiter.definitions.declare([FASTER.definition])
    assert await limiter.definitions.all() == [(FASTER.definition, 3)]


async def test_an_operator_may_come_before_the_code(limiter: Limiter) -> None:
    """The operator's limit must be in force, and a later declaration by the code is new."""
    assert await limiter.definitions.change(SLOWER.definition) == 1
    assert await limiter.definitions.all() == [(SLOWER.definition, 1)]
    await limiter.definitions.declare([MAPS.definition])
    assert await limiter.definitions.all() == [(MAPS.definition, 2)]


async def test_a_change_is_in_force_at_once(limiter: Limiter, clock: FakeClock) -> None:
    """The change must apply to every caller from now on."""
    await ready(limiter, clock, MAPS)
    await limiter.definitions.change(FASTER.definition)
    assert (await granted(limiter, ask(MAPS), most=50)).count == 50


async def test_a_slower_pace_keeps_used_tokens_used(limiter: Limiter, clock: FakeClock) -> None:
    """Otherwise changing a busy limit would grant a fresh burst."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    await limiter.definitions.change(SLOWER.definition)
    assert await left(limiter, SLOWER) == [0]
    wait = await waits(limiter, ask(MAPS))
    # A bucket of three with five used: two are owed before the next permit is available.
    assert 3 * 1_281_250 - 5 <= wait.wait_us <= 3 * 1_281_250 + 5


async def test_a_faster_pace_keeps_used_tokens_used(limiter: Limiter, clock: FakeClock) -> None:
    """Five of fifty were used and must stay used."""
    await ready(limiter, clock, MAPS)
    await drained(limiter, ask(MAPS))
    await limiter.definitions.change(FASTER.definition)
    assert await left(limiter, FASTER) == [45]


async def test_a_new_window_starts_empty(limiter: Limiter, clock: FakeClock) -> None:
    """The requests in the new window so far were not counted."""
    await ready(limiter, clock, Limit("two", "60/minute"))
    await granted(limiter, ask(TWO))
    await limiter.definitions.change(TWO.definition)
    wait = await waits(limiter, ask(TWO))
    assert "86400 s" in wait.why
    assert wait.wait_us > 60 * SECOND_US


async def test_a_window_that_is_gone_hinders_nobody(limiter: Limiter, clock: FakeClock) -> None:
    """If the window returns later, it must be a new one."""
    await ready(limiter, clock, TWO)
    await granted(limiter, ask(TWO))
    await limiter.definitions.change(Limit("two", "60/minute").definition)
    await granted(limiter, ask(TWO))
    await limiter.definitions.change(TWO.definition)
    await waits(limiter, ask(TWO))


async def test_fewer_seats_send_nobody_away(limiter: Limiter, clock: FakeClock) -> None:
    """Calls in flight continue; new ones must wait until there is room."""
    await ready(limiter, clock, PHONE)
    await seated(limiter, "one", ask(PHONE), most=3)
    await limiter.definitions.change(Limit("phone", concurrency=2).definition)
    await limiter.end_calls([ask(PHONE)], "one", 1)
    await waits(limiter, ask(PHONE))
    await limiter.end_calls([ask(PHONE)], "one", 1)
    await granted(limiter, ask(PHONE))


async def test_a_forgotten_limit_is_unknown(limiter: Limiter, clock: FakeClock) -> None:
    """Its whole state must be deleted, and no other limit may be affected."""
    await ready(limiter, clock, MAPS, MAIL)
    await drained(limiter, ask(MAPS))
    assert await limiter.definitions.forget(MAPS.name)
    assert not await limiter.definitions.forget(MAPS.name)
    with pytest.raises(UnknownLimit, match="maps"):
        await limiter.acquire([ask(MAPS)])
    assert await limiter.definitions.all() == [(MAIL.definition, 1)]
    await granted(limiter, ask(MAIL))


async def test_an_unknown_limit_is_named_and_nothing_is_taken(limiter: Limiter, clock: FakeClock) -> None:
    """Without a definition the rate is unknown, and it must never be treated as unlimited."""
    await ready(limiter, clock, MAPS)
    with pytest.raises(UnknownLimit, match="nobody:defined"):
        await limiter.acquire([ask(MAPS), ask(Limit("nobody:defined", "1/day"))])
    assert await left(limiter, MAPS) == [MAPS_BURST]
    with pytest.raises(UnknownLimit, match="mail"):
        await limiter.levels([ask(MAPS), ask(MAIL)])


async def test_a_notice_about_an_unknown_limit_is_refused(limiter: Limiter, clock: FakeClock) -> None:
    """A limiter that has lost its definitions would otherwise drop what the provider said, and other workers would call
    although the provider has asked them to wait."""
    await ready(limiter, clock, MAPS)
    notice = Notice(name=MAIL.name, limit=MAIL.name, generation=0, throttled=True, retry_after_us=SECOND_US)
    with pytest.raises(UnknownLimit, match="mail"):
        await limiter.observe(notice)


async def test_a_changed_lease_is_told_with_the_next_grant(limiter: Limiter, clock: FakeClock) -> None:
    """Workers must use the lifetime in the grant instead of a constant."""
    await ready(limiter, clock, MAPS)
    await limiter.definitions.change(Limit("maps", "100/minute", lease=3, delay=2).definition)
    assert (await granted(limiter, ask(MAPS))).lease_us == 4 * SECOND_US


async def test_the_tenant_of_a_changed_definition_feels_it(limiter: Limiter, clock: FakeClock) -> None:
    """A change of a definition with fields must apply to all its limits."""
    each = Limit("maps:{tenant}", "100/minute")
    await ready(limiter, clock, each)
    one = ask(each, name="maps:one")
    await drained(limiter, one)
    await limiter.definitions.change(Limit("maps:{tenant}", "1000/minute").definition)
    assert (await drained(limiter, one)).count == 45
    assert await limiter.definitions.forget(each.name)
    await limiter.definitions.declare([each.definition])
    clock.advance_us(MAPS_BURST * MAPS_TOKEN_US)
    assert (await drained(limiter, one)).count == MAPS_BURST


PAUSED_MAPS = replace(MAPS.definition, paused=True)


async def test_a_paused_limit_grants_nothing_until_it_is_resumed(limiter: Limiter, clock: FakeClock) -> None:
    """An operator must be able to stop calls to a provider immediately, and refused requests must not use permits."""
    await ready(limiter, clock, MAPS)
    before = await left(limiter, MAPS)
    await limiter.definitions.change(PAUSED_MAPS)
    assert await limiter.acquire([ask(MAPS)]) == Wait(PAUSED_US, MAPS.name, PAUSED)
    assert await limiter.acquire([ask(MAPS)], most=5) == Wait(PAUSED_US, MAPS.name, PAUSED)
    await limiter.definitions.change(MAPS.definition)
    assert await left(limiter, MAPS) == before
    await granted(limiter, ask(MAPS))


async def test_new_code_does_not_resume(limiter: Limiter, clock: FakeClock) -> None:
    """A deployment does not know the reason for the pause."""
    await ready(limiter, clock, MAPS)
    await limiter.definitions.change(PAUSED_MAPS)
    await limiter.definitions.declare([FASTER.definition])
    assert await limiter.definitions.all() == [(replace(FASTER.definition, paused=True), 3)]
    assert isinstance(await limiter.acquire([ask(MAPS)]), Wait)
    await limiter.definitions.change(FASTER.definition)
    assert await limiter.definitions.all() == [(FASTER.definition, 4)]


async def test_of_two_who_saw_the_same_version_one_is_refused(limiter: Limiter) -> None:
    """The second change would silently overwrite the first."""
    await limiter.definitions.declare([MAPS.definition])
    assert await limiter.definitions.change(FASTER.definition, expected=1) == 2
    with pytest.raises(Stale, match="limit maps"):
        await limiter.definitions.change(PAUSED_MAPS, expected=1)
    assert await limiter.definitions.all() == [(FASTER.definition, 2)]
    assert await limiter.definitions.change(PAUSED_MAPS, expected=2) == 3


async def test_who_wants_to_be_the_first_is_refused_if_he_is_not(limiter: Limiter) -> None:
    """A change that expects a deleted limit must not create it again."""
    assert await limiter.definitions.change(MAPS.definition, expected=0) == 1
    with pytest.raises(Stale):
        await limiter.definitions.change(FASTER.definition, expected=0)
    await limiter.definitions.forget(MAPS.name)
    with pytest.raises(Stale):
        await limiter.definitions.change(FASTER.definition, expected=1)
    assert await limiter.definitions.all() == []
