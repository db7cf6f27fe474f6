"""Budgets in MongoDB: concurrent processes, conflicts, lost replies, what the server itself refuses, and indexes."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pymongo.errors import OperationFailure, WriteError
from tests.budgets.conftest import empty_budgets
from tests.mongodb_faults import BREAKABLE, LOST_COMMIT, commits, failing, leave_a_transaction

from leaseway.domain.budgets.balances import Evidence
from leaseway.domain.budgets.budget import MICRO, Budget, Charge, HoldAnswer, HoldDenied, HoldGranted
from leaseway.domain.errors import BadValue, StoreBusy, StoreRefused, UnknownOutcome
from leaseway.domain.health import FindingLevel
from leaseway.domain.ids import SECOND_US
from leaseway.ports.ledger import HoldRequest, SettleHoldRequest
from leaseway.stores.mongodb import connection
from leaseway.stores.mongodb.budget_transaction import BudgetBatch, batch_stages
from leaseway.stores.mongodb.budgets import MongoLedger, holds_stage
from leaseway.stores.mongodb.connection import Transaction
from leaseway.stores.mongodb.database import JobDatabase
from leaseway.stores.mongodb.health import check_health
from leaseway.stores.mongodb.schema import BUDGET_JOURNAL, BUDGET_WINDOWS, BUDGETS, HOLDS
from leaseway.testing.clock import FakeClock
from leaseway.testing.ledger_contract.fixtures import (
    MINUTE_US,
    SPEND,
    account,
    agrees,
    budget,
    daily,
    held,
    micros,
    numbers,
    to_next_day,
    usd,
)
from leaseway.testing.mongodb import MongoServer, mongodb_server

ROOT = Path(__file__).parents[2]
ACME = Charge("spend:acme", "spend:{tenant}")


@pytest.fixture(scope="module")
def breakable() -> Iterator[MongoServer]:
    """A server that can be told to fail, and killed without affecting other tests."""
    with mongodb_server(*BREAKABLE) as server:
        yield server


@asynccontextmanager
async def opened(server: MongoServer, clock: FakeClock | None = None) -> AsyncIterator[MongoLedger]:
    ledger = MongoLedger(server.url, None if clock is None else clock.now_us)
    try:
        await ledger.open()
        yield ledger
    finally:
        await ledger.close()


@pytest.fixture
async def ledger(breakable: MongoServer, clock: FakeClock) -> AsyncIterator[MongoLedger]:
    async with opened(breakable, clock) as ledger:
        await empty_budgets(ledger)
        yield ledger


@pytest.fixture
async def other(breakable: MongoServer, clock: FakeClock) -> AsyncIterator[MongoLedger]:
    """Another process, as far as the server can tell."""
    async with opened(breakable, clock) as ledger:
        yield ledger


# -- many at once -----------------------------------------------------------------------------------------------------

SPENDER = """
import asyncio, sys
from leaseway.domain.budgets.budget import Charge, HoldGranted
from leaseway.stores.mongodb.budgets import MongoLedger

async def spend(url, name):
    ledger = MongoLedger(url)
    await ledger.open()
    granted = 0
    lines = ((Charge("spend", "spend"), 1_000_000),)

    async def call(number):
        nonlocal granted
        answer = await ledger.hold(f"{name}-{number}", lines, 60_000_000, owner=name, dispatch=True)
        if isinstance(answer, HoldGranted):
            granted += 1
            await ledger.settle(f"{name}-{number}", {})

    for start in range(0, 100, 10):
        await asyncio.gather(*(call(number) for number in range(start, start + 10)))
    await ledger.close()
    print(granted)

asyncio.run(spend(*sys.argv[1:]))
"""


def process(program: str, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=ROOT, stdout=subprocess.PIPE)


async def test_two_processes_spend_a_budget_to_its_end_and_never_more(breakable: MongoServer) -> None:
    """Each of them reads what is left before it spends; only the transaction keeps them from spending it twice."""
    async with opened(breakable) as ledger:
        await empty_budgets(ledger)
        await ledger.definitions.declare([Budget("spend", usd=137, over="fail").definition])
        running = [process(SPENDER, breakable.url, name) for name in ("one", "two")]
        granted = [int((await asyncio.to_thread(each.communicate))[0]) for each in running]
        assert sum(granted) == 137
        assert min(granted) > 0, "one process has spent all of it, so nothing was tested"
        assert await numbers(ledger) == (137, 0, 0)
        await agrees(ledger)


HOLDER = """
import asyncio, sys, time
from leaseway.domain.budgets.budget import Charge
from leaseway.stores.mongodb.budgets import MongoLedger

async def hold(url):
    ledger = MongoLedger(url)
    await ledger.open()
    await ledger.hold("call", ((Charge("spend", "spend"), 3_000_000),), 1, owner="worker", dispatch=True)
    print("dispatched", flush=True)
    await asyncio.sleep(60)

asyncio.run(hold(sys.argv[1]))
"""


async def test_a_killed_holder_has_spent_what_it_held(breakable: MongoServer) -> None:
    """Nobody knows whether its call was made. The server's own clock ends the hold."""
    async with opened(breakable) as ledger:
        await empty_budgets(ledger)
        await ledger.definitions.declare([Budget("spend", usd=10).definition])
        with process(HOLDER, breakable.url) as holder:
            assert holder.stdout is not None
            assert await asyncio.to_thread(holder.stdout.readline) == b"dispatched\n"
            holder.kill()
        expired = await ledger.expire(10)
        assert (expired.captured, expired.voided) == (1, 0)
        assert await numbers(ledger) == (3, 0, 0)
        await ledger.settle("call", {"usd": MICRO}, owner="worker")
        assert await numbers(ledger) == (1, 0, 0), "the cost is booked when it becomes known"
        await agrees(ledger)


async def test_calls_of_one_process_share_transactions(breakable: MongoServer, ledger: MongoLedger) -> None:
    """Many workers on one budget must not cost a transaction and a conflict per call."""
    await ledger.definitions.declare([budget("spend", usd=100, every="day")])
    before = commits(breakable)
    await asyncio.gather(*(held(ledger, f"call-{number}", 1) for number in range(40)))
    assert commits(breakable) - before <= 3
    await asyncio.gather(*(ledger.settle(f"call-{number}", {}) for number in range(40)))
    assert commits(breakable) - before <= 6
    assert await numbers(ledger) == (40, 0, 0)
    await agrees(ledger)


async def test_calls_that_share_a_transaction_do_not_fail_together(ledger: MongoLedger) -> None:
    """A settlement of an unknown hold, or a budget that is not defined, concerns one caller."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    answers = await asyncio.gather(
        ledger.hold("b", usd(2), MINUTE_US),
        ledger.settle("unknown", {}),
        ledger.hold("c", ((Charge("nothing", "nothing"), 1),), MINUTE_US),
        ledger.settle("a", {"eur": 1}),
        ledger.void("a"),
        return_exceptions=True,
    )
    assert [type(each).__name__ for each in answers] == ["HoldGranted", "BadValue", "UnknownBudget", "BadValue", "bool"]
    assert await numbers(ledger) == (0, 2, 0)
    await agrees(ledger)


# -- conflicts --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def locked(ledger: MongoLedger) -> AsyncIterator[None]:
    """Another transaction has changed the window and is not over."""
    database = await ledger.connections.database()
    async with database.client.start_session() as session, await session.start_transaction():
        await database[BUDGET_WINDOWS].update_many({}, {"$inc": {"threshold_percent": 1}}, session=session)
        yield
        await session.abort_transaction()


async def test_a_conflict_is_repeated_until_the_other_transaction_is_over(ledger: MongoLedger) -> None:
    """The server aborts the later one of two transactions, and its caller must not notice."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    async with locked(ledger):
        waiting = asyncio.ensure_future(ledger.hold("b", usd(2), MINUTE_US))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
    assert isinstance(await waiting, HoldGranted)
    assert await numbers(ledger) == (0, 3, 0)


async def test_conflicts_are_repeated_for_a_bounded_time(ledger: MongoLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller must not wait for ever for a transaction that a dead client has left behind."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    monkeypatch.setattr(connection, "REPEAT_SECONDS_MAX", 0.05)
    async with locked(ledger):
        with pytest.raises(StoreBusy):
            await ledger.hold("b", usd(2), MINUTE_US)
    assert await numbers(ledger) == (0, 1, 0), "nothing was written"
    await held(ledger, "b", 2)
    await agrees(ledger)


async def test_a_transaction_of_a_killed_process_does_not_close_a_budget(
    breakable: MongoServer, ledger: MongoLedger
) -> None:
    """The server would keep its locks for more than a minute, and no worker could spend anything for so long."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    leave_a_transaction(breakable.url, BUDGET_WINDOWS)
    await held(ledger, "b", 2)
    assert await numbers(ledger) == (0, 3, 0)
    await agrees(ledger)


async def test_a_transaction_of_a_frozen_process_does_not_close_a_budget(
    ledger: MongoLedger, other: MongoLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open. When the process goes on, its transaction is aborted, and it repeats it."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    monkeypatch.setattr(connection, "ABANDONED_SECONDS", 0.1)
    tries = 0

    async def work(transaction: Transaction) -> None:
        nonlocal tries
        tries += 1
        batch = BudgetBatch(transaction.now, transaction.found)
        batch.hold(HoldRequest("b", usd(2), MINUTE_US))
        await batch.write(transaction)
        if tries == 1:
            await held(other, "c", 3)  # this one waits until the other transaction is ended

    stages = batch_stages(holds_stage(["b"]), [SPEND], ledger.connections.now_micros)
    await ledger.connections.transaction(work, stages)
    assert tries == 2
    assert await numbers(ledger) == (0, 6, 0)
    await agrees(ledger)


@pytest.mark.parametrize("name", ["spend:{tenant}", "spend:acme"])
async def test_a_window_that_opens_during_a_change_takes_the_new_limit(
    ledger: MongoLedger, other: MongoLedger, name: str
) -> None:
    """The change cannot see the new window, and the hold has read the old limit: without a conflict, the window would
    keep it. The same holds for a definition with a name of its own, which takes precedence."""
    await ledger.definitions.declare([budget("spend:{tenant}", usd=10)])
    tries = 0

    async def work(transaction: Transaction) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await other.definitions.change(budget(name, usd=4))
        batch = BudgetBatch(transaction.now, transaction.found)
        batch.hold(HoldRequest("a", ((ACME, MICRO),), MINUTE_US))
        await batch.write(transaction)

    stages = batch_stages(holds_stage(["a"]), [ACME], ledger.connections.now_micros)
    await ledger.connections.transaction(work, stages)
    assert tries == 2
    assert (await account(ledger, "spend:acme")).balance.limit_micros == 4 * MICRO


async def test_a_hold_that_has_read_an_older_definition_conflicts(ledger: MongoLedger, other: MongoLedger) -> None:
    """After `change` has returned, no hold may be granted by a budget that is paused."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    answers: list[HoldAnswer] = []

    async def work(transaction: Transaction) -> None:
        if not answers:
            await other.definitions.change(replace(daily(10), paused=True))
        batch = BudgetBatch(transaction.now, transaction.found)
        answers.append(batch.hold(HoldRequest("b", usd(1), MINUTE_US)))
        await batch.write(transaction)

    stages = batch_stages(holds_stage(["b"]), [SPEND], ledger.connections.now_micros)
    await ledger.connections.transaction(work, stages)
    assert [type(answer) for answer in answers] == [HoldGranted, HoldDenied]
    assert await numbers(ledger) == (0, 1, 0)


async def test_the_journal_numbers_of_a_budget_are_unique_across_windows(
    ledger: MongoLedger, other: MongoLedger, clock: FakeClock
) -> None:
    """Two transactions on two windows change no common balance, but their entries need an order."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "old", 1, dispatch=True)
    to_next_day(clock)
    await held(ledger, "new", 1, dispatch=True)
    tries = 0

    async def work(transaction: Transaction) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await other.settle("new", {})
        batch = BudgetBatch(transaction.now, transaction.found)
        batch.settle(SettleHoldRequest("old", {}))
        await batch.write(transaction)

    stages = batch_stages(holds_stage(["old"]), (), ledger.connections.now_micros)
    await ledger.connections.transaction(work, stages)
    entries = await ledger.reads.journal("spend")
    assert [(each.seq, each.hold, each.kind) for each in entries] == [
        (4, "old", "settle"),
        (3, "new", "settle"),
        (2, "new", "hold"),
        (1, "old", "hold"),
    ]
    await agrees(ledger)


# -- lost replies -----------------------------------------------------------------------------------------------------


async def test_a_commit_whose_reply_is_lost_is_sent_again(breakable: MongoServer, ledger: MongoLedger) -> None:
    """The server recognizes the transaction: it is not booked twice, and the caller gets its answer."""
    await ledger.definitions.declare([daily(10)])
    with failing(breakable, LOST_COMMIT, times=1):
        await held(ledger, "a", 3)
    assert await numbers(ledger) == (0, 3, 0)
    assert len(await ledger.reads.journal("spend")) == 1


async def test_a_call_of_unknown_outcome_is_repeated_with_the_same_answer(
    breakable: MongoServer, ledger: MongoLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller repeats what it does not know, also if the budget has filled up since."""
    await ledger.definitions.declare([daily(10, over="fail")])
    monkeypatch.setattr(connection, "REPEAT_SECONDS_MAX", 0.05)
    with failing(breakable, LOST_COMMIT), pytest.raises(UnknownOutcome, match="may be repeated"):
        await ledger.hold("a", usd(3), MINUTE_US, owner="one", dispatch=True)
    await held(ledger, "rest", 7)
    first = await ledger.hold("a", usd(3), MINUTE_US, owner="one", dispatch=True)
    assert isinstance(first, HoldGranted)
    assert await ledger.hold("a", usd(3), MINUTE_US, owner="one", dispatch=True) == first
    with failing(breakable, LOST_COMMIT), pytest.raises(UnknownOutcome):
        await ledger.settle("a", {"usd": micros(2)}, owner="one")
    assert await ledger.settle("a", {"usd": micros(2)}, owner="one") == ()
    assert await numbers(ledger) == (2, 7, 0)
    assert [each.kind for each in await ledger.reads.journal("spend")] == ["settle", "hold", "hold"]
    await agrees(ledger)


async def test_a_server_that_is_lost_before_the_commit_has_written_nothing(
    breakable: MongoServer, ledger: MongoLedger
) -> None:
    """The caller may repeat the call at once: it is known that nothing was booked."""
    await ledger.definitions.declare([daily(10)])
    lost = {"failCommands": ["insert", "update"], "closeConnection": True}
    with failing(breakable, lost, times=1), pytest.raises(StoreBusy, match="nothing was written"):
        await ledger.hold("a", usd(3), MINUTE_US)
    assert await numbers(ledger) == (0, 0, 0)
    await held(ledger, "a", 3)


async def test_acknowledged_bookings_survive_a_power_cut(breakable: MongoServer, ledger: MongoLedger) -> None:
    """A hold that is gone after a restart would be spent a second time."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 3, dispatch=True)
    breakable.restart()
    async with opened(breakable, FakeClock()) as after:
        assert await numbers(after) == (0, 3, 0)
        await agrees(after)


# -- what the server itself refuses -----------------------------------------------------------------------------------


async def test_the_server_itself_refuses_more_than_the_limit(ledger: MongoLedger) -> None:
    """The validator must protect the budget even from a defect in the code."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 1)
    database = await ledger.connections.database()
    for change in ({"held_micros": 11 * MICRO}, {"spent_micros": -1}, {"held_micros": -1}, {"limit_micros": "10"}):
        with pytest.raises(OperationFailure, match="failed validation"):
            await database[BUDGET_WINDOWS].update_one({}, {"$set": change})


async def test_a_wrong_decision_is_refused_and_not_booked_as_overdraft(
    ledger: MongoLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hold must not create more overdraft than is permitted."""
    await ledger.definitions.declare([daily(10)])
    monkeypatch.setattr("leaseway.domain.budgets.holds.fits", lambda want, book: True)
    await held(ledger, "a", 10)
    with pytest.raises(StoreRefused, match="validator"):
        await ledger.hold("b", usd(1), MINUTE_US)
    assert await numbers(ledger) == (0, 10, 0)
    await agrees(ledger)


async def test_a_hold_that_was_edited_by_hand_fails_alone(ledger: MongoLedger) -> None:
    """One document that cannot be read must not stop the calls that share a transaction with it. The server refuses
    such a change, except from programs that bypass the validator."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "bad", 1)
    await held(ledger, "good", 1)
    holds, change = (await ledger.connections.database())[HOLDS], {"$set": {"lines.0.amount_micros": "one"}}
    with pytest.raises(WriteError, match="Document failed validation"):
        await holds.update_one({"_id": "bad"}, change)
    await holds.update_one({"_id": "bad"}, change, bypass_document_validation=True)
    answers = await asyncio.gather(
        ledger.settle("good", {}), ledger.settle("bad", {}), held(ledger, "new", 2), return_exceptions=True
    )
    assert answers[0] == ()
    assert isinstance(answers[1], StoreRefused)
    assert "the document 'bad' was changed by another program" in str(answers[1])
    assert isinstance(answers[2], HoldGranted)


async def test_the_health_check_finds_a_balance_that_was_edited_by_hand(
    breakable: MongoServer, ledger: MongoLedger
) -> None:
    """The journal and the holds do not agree with it any more, and nothing else would tell."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 3)
    jobs = JobDatabase(breakable.url)
    findings = {each.check: each for each in await check_health(jobs, deep=False)}
    assert findings["budgets"].level is FindingLevel.OK
    database = await ledger.connections.database()
    await database[BUDGET_WINDOWS].update_one({}, {"$set": {"held_micros": MICRO}})
    findings = {each.check: each for each in await check_health(jobs, deep=False)}
    await jobs.connections.close()
    assert findings["budgets"].level is FindingLevel.PROBLEM
    assert "spend 2025-06-15" in findings["budgets"].text


async def test_a_captured_amount_is_corrected_once(ledger: MongoLedger, clock: FakeClock) -> None:
    """The journal of MongoDB keeps who has corrected it."""
    await ledger.definitions.declare([daily(10)])
    await held(ledger, "a", 3, dispatch=True, ttl_us=SECOND_US)
    clock.advance(2)
    await ledger.correct("a", {"usd": MICRO}, Evidence("alice", "invoice 7"))
    with pytest.raises(BadValue, match="corrected once"):
        await ledger.correct("a", {"usd": 2 * MICRO}, Evidence("bob"))
    entry = (await ledger.reads.journal("spend"))[0]
    assert (entry.by, entry.reason, entry.from_micros, entry.spent_micros) == (
        "alice",
        "invoice 7",
        3 * MICRO,
        -2 * MICRO,
    )


# -- indexes ----------------------------------------------------------------------------------------------------------


def stages_of(plan: Any) -> Iterator[str]:
    """The names of all stages of a plan."""
    if isinstance(plan, dict):
        if isinstance(plan.get("stage"), str):
            yield plan["stage"]
        for part in plan.values():
            yield from stages_of(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from stages_of(part)


def queries(ledger: MongoLedger) -> dict[str, dict[str, Any]]:
    """What the ledger asks for, as commands."""
    late = {"due": {"$exists": True}, "$expr": {"$lte": ["$due", ledger.connections.now_micros]}}
    window = {"_id.name": {"$in": ["spend"]}, "$expr": {"$gt": ["$_id.end", ledger.connections.now_micros]}}
    expired = [{"$match": late}, {"$sort": {"due": 1, "_id": 1}}, {"$limit": 10}]
    entries = {"_id": {"$gt": {"name": "spend", "seq": 0}, "$lt": {"name": "spend", "seq": 10**9}}}
    booked = {"budgets": "spend", "state": "held", "start": {"$gt": 5}}
    return {
        "late holds": {"aggregate": HOLDS, "pipeline": expired, "cursor": {}},
        "current windows": {"aggregate": BUDGET_WINDOWS, "pipeline": [{"$match": window}], "cursor": {}},
        "unsettled holds": {
            "find": HOLDS,
            "filter": {"lines.name": "spend", "is_unsettled": True},
            "sort": {"deadline": -1, "_id": 1},
        },
        "booked holds": {"find": HOLDS, "filter": booked, "sort": {"start": 1, "_id": 1}},
        "journal": {"find": BUDGET_JOURNAL, "filter": entries, "sort": {"_id": -1}},
        "windows over": {"find": BUDGET_WINDOWS, "filter": {"_id.end": {"$lte": 5}, "held_micros": 0}},
        "windows of a definition": {"find": BUDGET_WINDOWS, "filter": {"budget": "spend"}},
        "holds of a window": {"find": HOLDS, "filter": {"lines.window": {"name": "spend", "start": 0}}},
    }


async def test_every_query_uses_an_index_and_sorts_by_it(ledger: MongoLedger) -> None:
    """With a million holds, a scan or a sort would stop the ledger."""
    database = await ledger.connections.database()
    for what, command in queries(ledger).items():
        found = set(stages_of(await database.command("explain", command, verbosity="queryPlanner")))
        assert found & {"IXSCAN", "IDHACK", "CLUSTERED_IXSCAN"}, (what, found)
        assert not found & {"COLLSCAN", "SORT"}, (what, found)


async def test_a_hold_reads_neither_past_windows_nor_other_budgets(ledger: MongoLedger) -> None:
    """A budget per minute has half a million windows in a year."""
    database = await ledger.connections.database()
    balance = {"limit_micros": 1, "spent_micros": 0, "held_micros": 0, "overdraft_micros": 0, "budget": "spend"} | {
        "unit": "usd"
    }
    await database[BUDGET_WINDOWS].insert_many(
        [
            {"_id": {"name": name, "start": start, "end": start + 1, "label": str(start)}, **balance}
            for name in ("spend", "rest")
            for start in range(500)
        ]
    )
    command = queries(ledger)["current windows"]
    found = await database.command("explain", command, verbosity="executionStats")
    assert found["executionStats"]["totalDocsExamined"] == 0
    await database[BUDGETS].delete_many({})
