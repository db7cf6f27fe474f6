"""The same random history on the reference ledger and on each store: every result and every balance must be equal.

Hypothesis generates the history: holds of one or two budgets, including repeated, foreign and too large ones,
dispatches, settlements of every kind, sweeps, changed definitions, and time, which often stops just before midnight.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from msgspec import Struct
from tests.budgets.conftest import empty, empty_budgets

from leaseway.domain.budgets.balances import Evidence, is_balanced
from leaseway.domain.budgets.budget import MICRO, Budget, BudgetDefinition, Charge, HoldGranted
from leaseway.domain.budgets.holds import Lines
from leaseway.domain.errors import BadValue, UnknownBudget
from leaseway.domain.ids import SECOND_US
from leaseway.ports.ledger import HoldRequest, Ledger, SettleHoldRequest
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.mongodb.budgets import MongoLedger
from leaseway.stores.postgres.budgets import PostgresLedger
from leaseway.stores.sqlite.budgets import SqliteLedger
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.mongodb import MongoServer
from leaseway.testing.postgres import PostgresServer

pytestmark = pytest.mark.timeout(300)

HOUR_US = 3_600 * SECOND_US
CHARGES = (
    Charge("spend", "spend"),
    Charge("tenant:a", "tenant:{tenant}"),
    Charge("tenant:b", "tenant:{tenant}"),
    Charge("tokens", "tokens"),
)


class Step(Struct, frozen=True):
    verb: str
    arguments: tuple[Any, ...]


def some(verb: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(verb), st.tuples(*arguments))


ids = st.sampled_from(["a", "b", "c", "d", "e"])
amounts = st.sampled_from([0, 1, 2, 3, 5, 8, 11]).map(lambda each: each * MICRO)
lines = st.dictionaries(st.sampled_from(CHARGES), amounts, min_size=1, max_size=3).map(lambda each: tuple(each.items()))
ttls_us = st.sampled_from([1, 10 * SECOND_US, 2 * HOUR_US])
owners = st.sampled_from(["1", "1", "2"])
actuals = st.dictionaries(st.sampled_from(["usd", "usd", "tokens", "tenant:a", "eur"]), amounts, max_size=2)


def spend(usd: int, every: str, over: str, overdraft: int) -> BudgetDefinition:
    return Budget("spend", usd=usd, every=every, over=over, overdraft=overdraft).definition


words = st.one_of(
    st.builds(
        spend,
        st.sampled_from([2, 6, 10, 14]),
        st.sampled_from(["minute", "hour", "day", "day"]),
        st.sampled_from(["wait", "wait", "fail"]),
        st.sampled_from([0, 0, 3]),
    ),
    st.sampled_from([4, 8]).map(lambda usd: Budget("tenant:{tenant}", usd=usd, every="hour").definition),
    st.sampled_from([3, 9]).map(lambda usd: Budget("tenant:b", usd=usd, every="hour").definition),
    st.sampled_from([3, 9]).map(lambda count: Budget("tokens", tokens=count).definition),
    st.just(Budget("tokens", usd=1).definition),
)
holds = some("hold", ids, lines, ttls_us, owners, st.booleans())
hold_requests = st.lists(st.builds(HoldRequest, ids, lines, ttls_us, owners, st.booleans()), max_size=4)
settle_requests = st.lists(st.builds(SettleHoldRequest, ids, actuals, st.none() | owners), max_size=4)
steps = st.lists(
    st.one_of(
        holds,
        holds,
        some("post", hold_requests, settle_requests),
        some("post", hold_requests, settle_requests),
        some("dispatch", ids),
        some("settle", ids, actuals),
        some("correct", ids, actuals, st.builds(Evidence, st.sampled_from(["alice", "bob"]))),
        some("void", ids),
        some("expire", st.sampled_from([1, 10])),
        some("definitions.change", words),
        some("definitions.declare", words.map(lambda word: [word])),
        some("definitions.forget", st.sampled_from(["tokens", "tenant:b", "nothing"])),
        some("prune", st.sampled_from([0, HOUR_US]), st.sampled_from([1, 10])),
        some("reads.wait_us", st.lists(st.sampled_from(CHARGES), max_size=2)),
        some("reads.booked", st.sampled_from(["spend", "tenant:{tenant}", "tenant:b"])),
        some("reads.booked_for", st.sampled_from(["", "a", "b"])),
        some("pass", st.sampled_from([1, 5 * SECOND_US, 20 * SECOND_US, HOUR_US])),
        some("pass_to", st.sampled_from([HOUR_US, 24 * HOUR_US]), st.sampled_from([-1, 0])),
    ),
    min_size=3,
    max_size=25,
)


def begin() -> list[BudgetDefinition]:
    return [
        spend(10, "day", "wait", 0),
        Budget("tenant:{tenant}", usd=6, every="hour").definition,
        Budget("tokens", tokens=9).definition,
    ]


async def taken(ledger: Ledger, step: Step) -> Any:
    """The result of one step; an error for the caller is a result as well."""
    try:
        if step.verb == "hold":
            id_, asked, ttl_us, owner, dispatch = step.arguments
            return await ledger.hold(id_, asked, ttl_us, owner=owner, dispatch=dispatch)
        if step.verb == "settle":
            id_, costs, *by_owner = step.arguments
            return await ledger.settle(id_, costs, owner=by_owner[0] if by_owner else None)
        return await attrgetter(step.verb)(ledger)(*step.arguments)
    except (BadValue, UnknownBudget) as error:
        return type(error), str(error)


def passed(clock: FakeClock, step: Step) -> bool:
    if step.verb == "pass":
        clock.advance_us(step.arguments[0])
    elif step.verb == "pass_to":
        length_us, offset_us = step.arguments
        clock.set_us(max((clock.now_us() // length_us + 1) * length_us + offset_us, clock.now_us()))
    else:
        return False
    return True


async def live(ledgers: Sequence[Ledger], clock: FakeClock, life: Sequence[Step]) -> None:
    for ledger in ledgers:
        await ledger.definitions.declare(begin())
    for step in life:
        if passed(clock, step):
            continue
        if step.verb == "post":
            await post_to_both(ledgers, *step.arguments)
        else:
            first, *others = [await taken(ledger, step) for ledger in ledgers]
            for other in others:
                assert other == first
        shown = [await seen(ledger) for ledger in ledgers]
        for other in shown[1:]:
            assert other == shown[0]


async def post_to_both(
    ledgers: Sequence[Ledger], asked: Sequence[HoldRequest], settled: Sequence[SettleHoldRequest]
) -> None:
    """What a ledger answers in one transaction, the reference answers in the same way. What is left has had no effect,
    and is made by itself."""
    reference, ledger = ledgers
    posted = await ledger.post(asked, settled)
    both = [*zip(settled, posted.settlements, strict=True), *zip(asked, posted.holds, strict=True)]
    answered = [request for request, answer in both if answer is not None]
    same = await reference.post(
        [each for each in answered if isinstance(each, HoldRequest)],
        [each for each in answered if isinstance(each, SettleHoldRequest)],
    )
    assert [*same.settlements, *same.holds] == [answer for _, answer in both if answer is not None]
    assert await seen(ledger) == await seen(reference)
    for request in [request for request, answer in both if answer is None]:
        verb = "hold" if isinstance(request, HoldRequest) else "settle"
        step = Step(verb, tuple(getattr(request, field) for field in request.__struct_fields__))
        assert await taken(ledger, step) == await taken(reference, step)


async def seen(ledger: Ledger) -> Any:
    """The visible state of a ledger after its audit. Windows without any booking may be present or absent."""
    accounts = await ledger.reads.balances(since=0)
    assert all(is_balanced(account.balance) for account in accounts)
    assert (await ledger.reads.audit()).wrong() == []
    used = [each for each in accounts if each.balance.used_micros]
    journal = [await ledger.reads.journal(charge.name) for charge in CHARGES]
    moves = [
        [(each.at, each.hold, each.window, each.kind, each.crossed, each.by, each.from_micros) for each in entries]
        for entries in journal
    ]
    unsettled = [
        (each.id, each.state, each.owner, each.deadline, line.name, line.window, line.amount_micros, line.actual_micros)
        for charge in CHARGES
        for each in await ledger.reads.holds(charge.name)
        for line in each.lines
    ]
    return used, moves, unsettled, await ledger.definitions.all()


@asynccontextmanager
async def sqlite_ledger(clock: FakeClock) -> AsyncIterator[Ledger]:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(str(Path(folder) / "work.db"), now_us=clock.now_us, durable=False, inline=True)
        await store.open()
        try:
            yield SqliteLedger(store.database)
        finally:
            await store.close()


quick = settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    derandomize=True,
    database=None,
)


@quick
@given(steps)
def test_sqlite_lives_like_the_specification(life: list[Step]) -> None:
    """A single different result would make budgets depend on the store."""

    async def both() -> None:
        clock = FakeClock()
        async with sqlite_ledger(clock) as ledger:
            await live([MemoryLedger(clock.now_us), ledger], clock, life)

    asyncio.run(both())


@settings(quick, max_examples=40)
@given(life=steps)
def test_postgres_lives_like_the_specification(server: PostgresServer, life: list[Step]) -> None:
    """PostgreSQL implements the rules in SQL, so a difference would show here."""

    async def both() -> None:
        clock = FakeClock()
        ledger = PostgresLedger(server.url, clock.now_us)
        await ledger.open()
        try:
            await empty(ledger)
            await live([MemoryLedger(clock.now_us), ledger], clock, life)
        finally:
            await ledger.close()

    asyncio.run(both())


@settings(quick, max_examples=30)
@given(life=steps)
def test_mongodb_lives_like_the_specification(mongodb: MongoServer, life: list[Step]) -> None:
    """Documents hold what other stores keep in rows, and dropped windows leave parts of holds behind."""

    async def both() -> None:
        clock = FakeClock()
        ledger = MongoLedger(mongodb.url, clock.now_us)
        await ledger.open()
        try:
            await empty_budgets(ledger)
            await live([MemoryLedger(clock.now_us), ledger], clock, life)
        finally:
            await ledger.close()

    asyncio.run(both())


class Provider:
    """An oracle without knowledge of ledgers: the actual cost of calls by budget and day of the call."""

    def __init__(self) -> None:
        self.cost: dict[tuple[str, int], int] = {}

    def call(self, lines: Lines, now: int) -> None:
        for charge, amount_micros in lines:
            length_us = {"spend": 24 * HOUR_US, "tokens": 2**62}.get(charge.budget, HOUR_US)
            place = (charge.name, now // length_us)
            self.cost[place] = self.cost.get(place, 0) + amount_micros


calls = st.lists(
    st.tuples(ids, lines, st.booleans(), st.sampled_from(["settles", "crashes", "is late", "never calls"]), ttls_us)
    | some("pass", st.sampled_from([1, 5 * SECOND_US, HOUR_US]))
    | some("pass_to", st.sampled_from([HOUR_US, 24 * HOUR_US]), st.sampled_from([-1, 0]))
    | some("expire", st.just(10)),
    max_size=60,
)


@settings(quick, max_examples=200)
@given(calls)
def test_no_window_ever_pays_more_than_it_has(life: list[Any]) -> None:
    """Despite crashes, delays and repeated calls, the provider's own count must stay within every budget."""

    async def run() -> None:
        clock, provider = FakeClock(), Provider()
        ledger = MemoryLedger(clock.now_us)
        await ledger.definitions.declare(begin())
        for number, each in enumerate(life):
            if isinstance(each, Step):
                if not passed(clock, each):
                    await taken(ledger, each)
                continue
            id_, asked, dispatch, ending, ttl_us = each
            answer = await ledger.hold(id_, asked, ttl_us, owner=str(number), dispatch=dispatch)
            if not isinstance(answer, HoldGranted) or ending == "never calls" or not await ledger.dispatch(id_):
                continue
            provider.call(asked, clock.now_us())
            if ending == "is late":
                clock.advance_us(ttl_us)
                await ledger.expire(10)
            if ending != "crashes":
                await ledger.settle(id_, {})
        limits = {"spend": 10, "tokens": 9, "tenant:a": 6, "tenant:b": 6}
        for (name, _), cost in provider.cost.items():
            assert cost <= limits[name] * MICRO

    asyncio.run(run())
