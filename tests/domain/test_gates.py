"""Why a gate is closed: the explanation must match what a worker would be told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from leaseway.domain.budgets.balances import Balance, BudgetWindow
from leaseway.domain.budgets.budget import Budget, Charge
from leaseway.domain.budgets.calendar_windows import Every, window_at
from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import (
    Closure,
    LevelReading,
    closed_by_budget,
    closed_by_limit,
    gate_requests,
    limit_label,
    longest_closure,
    undefined_limit,
)
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Acquisition, CallHolder, Granted, Notice, Wait, refresh, take
from leaseway.domain.limits.level import NEW, InFlight, Level
from leaseway.domain.limits.limit import Limit, PermitRequest, size_limit
from leaseway.domain.limits.throttling import apply_notice
from leaseway.domain.requirements import UNREADABLE, Needs, render_needs
from leaseway.domain.tenant import Tenant

NOW = 1_700_000_000 * SECOND_US
SINCE = NOW - 3_600 * SECOND_US
MAPS = PermitRequest("maps", "maps")


def seen(limit: Limit, level: Level = NEW, now: int = NOW, since: int = SINCE) -> LevelReading:
    return LevelReading(refresh(level, size_limit(limit.definition), now, since), now)


def shut(limit: Limit, level: Level = NEW, now: int = NOW, since: int = SINCE, cost: int = 1) -> Closure | None:
    return closed_by_limit(PermitRequest("maps", "maps", cost), limit.definition, seen(limit, level, now, since))


# -- limits ---------------------------------------------------------------------------------------------------------


def test_a_limit_with_tokens_keeps_nobody_waiting() -> None:
    """A limit with permits left must not be shown as a cause."""
    assert shut(Limit("maps", "100/minute")) is None


def test_a_used_rate_is_named_as_the_user_wrote_it_with_the_time_to_the_next_token() -> None:
    """The user must recognize the limit and know how long it takes."""
    limit = Limit("maps", "100/minute")
    _, (used,) = take([Acquisition(MAPS, size_limit(limit.definition), NEW)], NOW, SINCE, 1, 100)
    found = shut(limit, used)
    assert found is not None
    assert (found.what, found.name, found.why) == ("limit", "maps", "100/minute is used up")


def test_a_limit_that_nobody_has_used_yet_is_not_called_used_up() -> None:
    """The first job of a new user waits for the first permit. Nothing was used yet, and the explanation must not say
    otherwise.
    """
    limit = Limit("maps", "3/second", "100/minute")
    found = shut(limit, since=NOW)
    assert found is not None
    assert found.why == "100/minute starts empty, because earlier use is not known"
    assert found.wait_us == -(-size_limit(limit.definition).windows[1].permit_ns // 1_000)
    assert found.then == "The next permit is free"


def test_a_heavy_call_waits_for_all_its_tokens() -> None:
    """A time for one permit would promise too much for a call that needs three."""
    found = shut(Limit("maps", "100/minute", cost_max=5), since=NOW, cost=3)
    assert found is not None
    assert found.then == "The 3 permits for one call are free"


def test_a_provider_that_asked_to_wait_is_named_as_the_reason() -> None:
    """The provider closed the limit, so raising its numbers would not help."""
    limit = Limit("maps", "100/minute")
    notice = Notice("maps", "maps", 0, throttled=True, retry_after_us=90 * SECOND_US)
    level = apply_notice(Acquisition(MAPS, size_limit(limit.definition), NEW), notice, NOW, SINCE)
    found = shut(limit, level)
    assert found is not None
    assert found.why == "the provider asked for a wait, and it is slowed to 70 % because the provider throttled calls"
    assert found.wait_us == 90 * SECOND_US


def test_nobody_knows_when_a_seat_is_left() -> None:
    """A call in flight has no known end, so a time would be a false promise."""
    found = shut(Limit("maps", concurrency=2), Level(since=SINCE, in_flight={"a": InFlight(2, NOW + SECOND_US)}))
    assert found == Closure("limit", "maps", "all its 2 calls are in flight")
    assert shut(Limit("maps", concurrency=3), Level(since=SINCE, in_flight={"a": InFlight(2, NOW + SECOND_US)})) is None


def test_a_call_that_never_fits_is_told_with_the_way_out() -> None:
    """Otherwise the job would wait forever while the user believes that it only takes time."""
    found = shut(Limit("maps", "100/minute", burst=0.01), cost=5)
    assert found is not None
    assert found.wait_us is None
    assert "never grants more than 2 at once" in found.why
    assert "leaseway limits set maps --cost-max 5" in str(found.advice)


def test_a_window_that_came_with_a_newer_definition_is_no_reason_to_fail() -> None:
    """The definition and the level are read one after the other, and the definition may change in between."""
    old = seen(Limit("maps", "100/minute"))
    found = closed_by_limit(MAPS, Limit("maps", "100/minute", "1000/day").definition, old)
    assert found is not None
    assert found.why == "1,000/day is used up"


@given(
    level=st.builds(
        Level,
        since=st.just(SINCE),
        blocked_until=st.integers(NOW - SECOND_US, NOW + SECOND_US),
        percent=st.sampled_from([5, 70, 100]),
        slowed_at=st.just(NOW),
        in_flight=st.dictionaries(
            st.sampled_from("ab"), st.builds(InFlight, st.integers(1, 2), st.just(NOW + 1)), max_size=2
        ),
    ),
    used=st.integers(0, 8),
    cost=st.integers(1, 5),
)
def test_people_are_told_what_a_worker_would_be_told(level: Level, used: int, cost: int) -> None:
    """Reporting an open gate as closed, or the reverse, sends operators to the wrong place."""
    limit = Limit("maps", "3/second", "100/minute", concurrency=3, cost_max=3)
    sizing, ask = size_limit(limit.definition), PermitRequest("maps", "maps", cost)
    for _ in range(used):
        _, (level,) = take(
            [Acquisition(MAPS, sizing, level)], NOW - SECOND_US, SINCE, caller=CallHolder("w", 5 * SECOND_US)
        )
    verdict, _ = take([Acquisition(ask, sizing, level)], NOW, SINCE, caller=CallHolder("me", SECOND_US))
    found = closed_by_limit(ask, limit.definition, seen(limit, level))
    assert (found is None) == isinstance(verdict, Granted)
    if found is not None and found.wait_us is not None:
        # A worker may be sent to the end of the queue; it is never admitted earlier.
        assert isinstance(verdict, Wait)
        assert found.wait_us <= verdict.wait_us


def test_a_tenants_caps_are_called_its_own() -> None:
    """The user never defined a limit named tenant:acme."""
    assert limit_label(PermitRequest("tenant:acme", "tenant:acme")) == ("tenant", "acme")
    assert limit_label(PermitRequest("tenant:acme", "tenant:{tenant}")) == ("limit", "tenant:acme")
    assert undefined_limit(PermitRequest("tenant:acme", "tenant:acme")).what == "tenant"


def test_a_gate_asks_for_its_limits_and_for_the_caps_of_its_tenant() -> None:
    """A forgotten cap would show an open gate that stays closed."""
    needs = render_needs(Needs((MAPS,)))
    capped = {"acme": Tenant(name="acme", concurrency=2), "free": Tenant(name="free", weight=3)}
    assert gate_requests(Gate(needs, "acme"), capped) == (MAPS, PermitRequest("tenant:acme", "tenant:acme"))
    assert gate_requests(Gate(needs, "free"), capped) == (MAPS,)
    assert gate_requests(Gate("", "unknown"), capped) == ()
    damaged = gate_requests(Gate("what is this?", "free"), capped)
    assert damaged == (UNREADABLE,), "damage must not hide the rest, and must not open the lane"
    assert "submit them again" in (undefined_limit(UNREADABLE).advice or "")


# -- budgets --------------------------------------------------------------------------------------------------------

DAY = Budget("spend", usd=25, every="day").definition
CHARGE = Charge("spend", "spend")


def account(spent: int, day: int = 0, held: int = 0) -> BudgetWindow:
    window = window_at(Every.DAY, "UTC", NOW + day * 86_400 * SECOND_US)
    book = Balance(limit_micros=DAY.limit_micros, spent_micros=spent * 1_000_000, held_micros=held * 1_000_000)
    return BudgetWindow(name="spend", budget="spend", unit="usd", window=window, balance=book, has_begun=day == 0)


def test_a_spent_budget_tells_how_much_and_when_the_next_window_begins() -> None:
    """The user decides by these numbers whether to wait or to raise the budget."""
    found = closed_by_budget(CHARGE, [DAY], [account(25)], NOW)
    assert found is not None
    assert (found.what, found.name, found.why) == ("budget", "spend", "25 of 25 usd are spent")
    assert NOW + (found.wait_us or 0) == account(25).window.end


def test_a_later_window_that_is_spent_as_well_is_passed_over() -> None:
    """The next window may be booked ahead; promising it would be wrong."""
    found = closed_by_budget(CHARGE, [DAY], [account(25), account(25, day=1)], NOW)
    assert found is not None
    assert NOW + (found.wait_us or 0) == account(25, day=1).window.end


@pytest.mark.parametrize("accounts", [[], [account(24)], [account(24, held=1)]])
def test_a_budget_with_something_left_keeps_nobody_waiting(accounts: list[BudgetWindow]) -> None:
    """Held money may be held for the very job that is being explained."""
    assert closed_by_budget(CHARGE, [DAY], accounts, NOW) is None


def test_where_waiting_does_not_help_a_budget_is_no_reason_to_wait() -> None:
    """The job starts and fails, so it must not be reported as waiting until tomorrow."""
    failing = Budget("spend", usd=25, every="day", over="fail").definition
    assert closed_by_budget(CHARGE, [failing], [account(25)], NOW) is None


def test_a_budget_that_nobody_has_defined_needs_somebody() -> None:
    """Such a job never starts by itself, so the advice must say what to do."""
    found = closed_by_budget(Charge("spend:acme", "spend:{tenant}"), [DAY], [], NOW)
    assert found is not None
    assert "leaseway budgets set 'spend:{tenant}'" in str(found.advice)


# -- which reason is reported ---------------------------------------------------------------------------------------


def test_what_does_not_end_by_itself_comes_before_what_lasts_long() -> None:
    """Waiting does not help there, so it must be shown first."""
    stuck, long, short = (
        Closure("limit", "a", "x", advice="do it"),
        Closure("limit", "b", "x", 99),
        Closure("limit", "c", "x", 1),
    )
    assert longest_closure([short, long]) is long
    assert longest_closure([long, stuck]) is stuck
    assert longest_closure([Closure("limit", "d", "seats"), short]) is short
    assert replace(stuck, advice=None).wait_us is None
