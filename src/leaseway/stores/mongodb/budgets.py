"""Budgets in MongoDB, in the database of the jobs: `domain.budgets` decides, each time within one transaction.

Calls of one event loop share a transaction (`group_commit`), so that many calls on one busy budget cost few conflicts.
Everything that a call needs is read in one round trip, together with the server's time. A transaction that conflicts
with another process is repeated for a bounded time. A commit whose reply is lost is sent again; if its outcome stays
unknown, the caller repeats the call under the same id.

`now_us` is for tests that move time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from bson import ObjectId

from leaseway.domain.budgets.balances import (
    Audit,
    BudgetWindow,
    Evidence,
    JournalEntry,
    apply_limit,
    fresh_window,
    is_balanced,
    sum_balances,
)
from leaseway.domain.budgets.budget import (
    BudgetDefinition,
    Charge,
    Crossed,
    HoldAnswer,
    StoredBudget,
    change_budget,
    check_budget,
    check_change,
    declare_budget,
    is_template,
)
from leaseway.domain.budgets.holds import (
    OPEN,
    Correction,
    Hold,
    HoldState,
    Lines,
    check_evidence,
    check_lines,
    still_held,
    void_hold,
)
from leaseway.domain.budgets.rebooking import FIRST_BOOKED, BookedPlace
from leaseway.domain.errors import LeasewayError, TerminalError, UsageError
from leaseway.domain.ids import Instant
from leaseway.domain.inspection import only_usable
from leaseway.ports.ledger import (
    BALANCES_MAX,
    RESERVED_MAX,
    BudgetDefinitions,
    BudgetReads,
    Expired,
    HoldRequest,
    Posted,
    SettleHoldRequest,
)
from leaseway.stores.group_commit import GroupCommit
from leaseway.stores.mongodb.budget_transaction import (
    BudgetBatch,
    WindowRecord,
    batch_stages,
    bulk_write,
    drop_counters,
    drop_window,
    entries_of,
    find_windows,
    parse_budget,
    parse_entry,
    parse_hold,
    parse_sums,
    parse_usable_budget,
    parse_window,
    pruning,
    render_budget,
    render_window,
    replacement,
    show_window,
    window_id,
)
from leaseway.stores.mongodb.connection import Connections, Database, Document, Session, Transaction, lookup
from leaseway.stores.mongodb.schema import BUDGET_JOURNAL, BUDGET_WINDOWS, BUDGETS, HOLDS, migrate

LAST = chr(0x10FFFF)
"""The last character: every text that begins with a prefix comes before the prefix with this character."""

T = TypeVar("T")


class LedgerCall(NamedTuple):
    """One call: the holds and budgets that it needs, and what it does."""

    ids: Sequence[str]
    charges: Sequence[Charge]
    verb: Callable[[BudgetBatch], Any]


class MongoBudgetDefinitions:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        await self._change(definitions, declare_budget)

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        (kept,) = await self._change([definition], lambda kept, said: change_budget(kept, said, expected))
        return kept.version

    async def _change(
        self,
        definitions: Sequence[BudgetDefinition],
        decide: Callable[[StoredBudget | None, BudgetDefinition], StoredBudget | None],
    ) -> list[StoredBudget]:
        for definition in definitions:
            check_budget(definition)

        async def work(transaction: Transaction) -> list[StoredBudget]:
            known = {each["_id"]: parse_budget(each) for each in transaction.found["budgets"]}
            changed: dict[str, StoredBudget] = {}
            for definition in definitions:
                before = changed.get(definition.name) or known.get(definition.name)
                check_change(before.definition if before else None, definition)
                kept = decide(before, definition)
                changed |= {} if kept is None else {definition.name: kept}
            await write_definitions(transaction, changed, is_new=not changed.keys() <= known.keys())
            return list(changed.values())

        names = [definition.name for definition in definitions]
        return await self._connections.transaction(work, [lookup(BUDGETS, "budgets", {"_id": {"$in": names}})])

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        async def query(database: Database) -> list[tuple[BudgetDefinition, int]]:
            found = await database[BUDGETS].find().sort("_id").to_list()
            return [(kept.definition, kept.version) for kept in only_usable(found, parse_usable_budget)]

        return await self._connections.read(query)

    async def forget(self, name: str) -> bool:
        async def work(transaction: Transaction) -> bool:
            budgets = await transaction.database[BUDGETS].delete_one({"_id": name}, session=transaction.session)
            if not budgets.deleted_count:
                return False
            windows = await find_windows(transaction, {"budget": name})
            await self._release(transaction, name, windows)
            for each in windows:
                await drop_window(transaction, each)
            await drop_counters(transaction, windows)
            return True

        return await self._connections.transaction(work)

    async def _release(self, transaction: Transaction, name: str, windows: Sequence[WindowRecord]) -> None:
        """Void the open holds of these windows. Lines in windows of other budgets are freed, too."""
        ids = [window_id(*each.key) for each in windows]
        holds = lookup(HOLDS, "holds", {"lines.window": {"$in": ids}, "state": {"$in": [each.value for each in OPEN]}})
        stages = batch_stages(holds, (), self._connections.now_micros)
        _, found = await self._connections.look(transaction.database, stages, transaction.session)
        open_ = [parse_hold(each) for each in found["holds"]]
        if any(hold.state is HoldState.DISPATCHED for hold in open_):
            raise still_held(name)
        batch = BudgetBatch(transaction.now, found)
        for hold in open_:
            batch.apply(void_hold(hold))
        await batch.write(transaction)


class MongoBudgetReads:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        async def query(database: Database) -> list[BudgetWindow]:
            now = await self._connections.now(database)
            where: dict[str, Any] = {"_id.end": {"$gt": now if since is None else since}}
            where |= {} if names is None else {"_id.name": {"$in": list(names)}}
            order = [("_id.name", 1), ("_id.start", 1), ("_id.end", 1), ("_id.label", 1)]
            found = database[BUDGET_WINDOWS].find(where).sort(order).limit(BALANCES_MAX)
            accounts = [show_window(parse_window(each), now) async for each in found]
            kept = only_usable(await database[BUDGETS].find().to_list(), parse_usable_budget)
            defined = [each.definition for each in kept]
            wanted = [each for each in defined if not is_template(each.name) and (names is None or each.name in names)]
            there = {(account.name, account.window) for account in accounts}
            fresh = [fresh_window(each, now) for each in wanted]
            accounts += [each for each in fresh if (each.name, each.window) not in there]
            return sorted(accounts, key=lambda account: (account.name, account.window))[:BALANCES_MAX]

        return await self._connections.read(query)

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        found = await self._find(BUDGET_JOURNAL, lambda _: entries_of(name), [("_id", -1)], limit)
        return [parse_entry(each) for each in found]

    async def holds(self, name: str, limit: int = 100) -> list[Hold]:
        where = {"lines.name": name, "is_unsettled": True}
        return await self._holds(lambda _: where, [("deadline", -1), ("_id", 1)], limit)

    async def booked(self, budget: str, *, after: BookedPlace = FIRST_BOOKED, limit: int = 100) -> list[Hold]:
        start, id_ = after
        later = {"$or": [{"start": {"$gt": start}}, {"start": start, "_id": {"$gt": id_}}]}

        def where(now: Instant) -> Document:
            return {"budgets": budget, "state": HoldState.HELD.value, "start": {"$gt": now, "$gte": start}} | later

        return await self._holds(where, [("start", 1), ("_id", 1)], limit)

    async def booked_for(self, prefix: str, limit: int = 100) -> list[Hold]:
        ids = {"$gte": prefix, "$lt": f"{prefix}{LAST}"}
        held = {"_id": ids, "state": HoldState.HELD.value}
        return await self._holds(lambda now: held | {"start": {"$gt": now}}, [("start", 1), ("_id", 1)], limit)

    async def reserved(self, prefix: str) -> list[str]:
        where = {"_id": {"$gte": prefix, "$lt": f"{prefix}{LAST}"}, "state": HoldState.HELD.value}
        found = await self._find(HOLDS, lambda _: where, [("_id", 1)], RESERVED_MAX)
        return [each["_id"] for each in found]

    async def _holds(
        self, where: Callable[[Instant], Document], order: Sequence[tuple[str, int]], limit: int
    ) -> list[Hold]:
        return [parse_hold(each) for each in await self._find(HOLDS, where, order, limit)]

    async def _find(
        self, collection: str, where: Callable[[Instant], Document], order: Sequence[tuple[str, int]], limit: int
    ) -> list[dict[str, Any]]:
        async def query(database: Database) -> list[dict[str, Any]]:
            condition = where(await self._connections.now(database))
            return await database[collection].find(condition).sort(order).limit(limit).to_list()

        return await self._connections.read(query) if limit > 0 else []

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        stages = batch_stages(holds_stage(()), charges, self._connections.now_micros)

        async def query(database: Database) -> int:
            return BudgetBatch(*await self._connections.look(database, stages)).wait_us(charges)

        return await self._connections.read(query) if charges else 0

    async def audit(self) -> Audit:
        async def query(database: Database, session: Session) -> Audit:
            records = [parse_window(each) async for each in database[BUDGET_WINDOWS].find(session=session)]
            windows = [show_window(each, 0) for each in records]
            unbalanced = tuple((each.name, each.window) for each in windows if not is_balanced(each.balance))
            journal = await (await database[BUDGET_JOURNAL].aggregate(JOURNAL_SUMS, session=session)).to_list()
            holds = await (await database[HOLDS].aggregate(HOLD_SUMS, session=session)).to_list()
            sums = parse_sums(BUDGET_JOURNAL, journal), parse_sums(HOLDS, holds)
            return Audit(sum_balances(windows), *sums, unbalanced)

        return await self._connections.snapshot(query)


class MongoLedger:
    """Any event loop may call it."""

    def __init__(
        self, url: str, now_us: Callable[[], Instant] | None = None, *, connections: Connections | None = None
    ) -> None:
        self.connections = connections or Connections(url, now_us)
        self._is_owner = connections is None
        self.definitions: BudgetDefinitions = MongoBudgetDefinitions(self.connections)
        self.reads: BudgetReads = MongoBudgetReads(self.connections)
        self._calls: GroupCommit[LedgerCall, Any] = GroupCommit(self._serve)

    async def open(self) -> None:
        await migrate(self.connections)

    async def close(self) -> None:
        if self._is_owner:
            await self.connections.close()

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        check_lines(id, lines, ttl_us)
        request = HoldRequest(id, tuple(lines), ttl_us, owner, dispatch)
        return await self._call([id], lambda batch: batch.hold(request), [charge for charge, _ in lines])

    async def dispatch(self, id: str) -> bool:
        return await self._call([id], lambda batch: batch.dispatch(id))

    async def settle(self, id: str, actuals: Mapping[str, int], *, owner: str | None = None) -> Crossed:
        request = SettleHoldRequest(id, dict(actuals), owner)
        return await self._call([id], lambda batch: batch.settle(request))

    async def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        ids = [*(each.id for each in settlements), *(each.id for each in holds)]
        charges = [charge for each in holds for charge, _ in each.lines]
        return await self._call(ids, lambda batch: batch.post(holds, settlements), charges)

    async def correct(self, id: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        check_evidence(evidence, actuals)
        return await self._call([id], lambda batch: batch.correct(id, actuals, evidence))

    async def void(self, id: str) -> bool:
        return await self._call([id], lambda batch: batch.void(id))

    async def expire(self, limit: int) -> Expired:
        if limit <= 0:
            return Expired()
        late = {"due": {"$exists": True}, "$expr": {"$lte": ["$due", self.connections.now_micros]}}
        first = [{"$match": late}, {"$sort": {"due": 1, "_id": 1}}, {"$limit": limit}]
        holds = {"$lookup": {"from": HOLDS, "pipeline": first, "as": "holds"}}
        return await self._write(holds, (), lambda batch: batch.expire())

    async def prune(self, keep_us: int, limit: int) -> int:
        async def query(database: Database) -> list[dict[str, Any]]:
            before = await self.connections.now(database) - keep_us
            over = database[BUDGET_WINDOWS].find({"_id.end": {"$lte": before}, "held_micros": 0})
            return await over.sort([("_id.end", 1), ("_id.name", 1)]).limit(limit).to_list()

        found = await self.connections.read(query) if limit > 0 else []
        # One transaction per window: each may have many holds.
        return sum([await self.connections.transaction(pruning(each)) for each in found])

    # -- transactions -----------------------------------------------------------------------------------------------

    async def _call(self, ids: Sequence[str], verb: Callable[[BudgetBatch], T], charges: Sequence[Charge] = ()) -> T:
        answer: T = await self._calls.call(LedgerCall(ids, charges, verb))
        return answer

    async def _serve(self, calls: Sequence[LedgerCall]) -> list[Any]:
        try:
            charges = [charge for call in calls for charge in call.charges]
            holds = holds_stage([id_ for call in calls for id_ in call.ids])
            return await self._write(holds, charges, lambda batch: [answer(call, batch) for call in calls])
        except (UsageError, TerminalError) as error:
            if len(calls) == 1:
                return [error]
        # A document that one of them needs is not valid. Alone, only that one fails.
        return [each for call in calls for each in await self._serve([call])]

    async def _write(self, holds: Document, charges: Sequence[Charge], verb: Callable[[BudgetBatch], T]) -> T:
        async def work(transaction: Transaction) -> T:
            batch = BudgetBatch(transaction.now, transaction.found)
            answer = verb(batch)
            await batch.write(transaction)
            return answer

        return await self.connections.transaction(work, batch_stages(holds, charges, self.connections.now_micros))


def answer(call: LedgerCall, batch: BudgetBatch) -> Any:
    """The answer of one call. A call that is refused has changed nothing, and the others go on."""
    try:
        return call.verb(batch)
    except LeasewayError as error:
        return error


def holds_stage(ids: Sequence[str]) -> Document:
    return lookup(HOLDS, "holds", {"_id": {"$in": list(ids)}})


# -- definitions ----------------------------------------------------------------------------------------------------


async def write_definitions(transaction: Transaction, changed: Mapping[str, StoredBudget], *, is_new: bool) -> None:
    """Windows that are not over take the new limit."""
    await bulk_write(transaction, BUDGETS, [replacement(render_budget(kept)) for kept in changed.values()])
    if is_new:
        # A name of its own takes precedence over a name with fields: a window that is opened meanwhile under the other
        # definition must conflict.
        await transaction.database[BUDGETS].update_many(
            {"_id": {"$regex": r"\{", "$nin": list(changed)}},
            {"$inc": {"windows_opened": 1}},
            session=transaction.session,
        )
    for name, kept in changed.items():
        where = {"$or": [{"budget": name}, {"_id.name": name}], "_id.end": {"$gt": transaction.now}}
        under = [
            WindowRecord(
                each.name, each.window, name, each.unit, apply_limit(each.balance, kept.definition.limit_micros)
            )
            for each in await find_windows(transaction, where)
        ]
        # Also if nothing else changes: a hold that has read the old definition must conflict.
        documents = [render_window(each) | {"defined": ObjectId()} for each in under]
        await bulk_write(transaction, BUDGET_WINDOWS, [replacement(each) for each in documents])


# -- the audit ------------------------------------------------------------------------------------------------------

JOURNAL_SUMS: list[Document] = [
    {"$match": {"_id.name": {"$exists": True}}},
    {"$group": {"_id": "$window", "held_micros": {"$sum": "$held_micros"}, "spent_micros": {"$sum": "$spent_micros"}}},
]
IS_OPEN = {"$in": ["$state", [state.value for state in OPEN]]}
HOLD_SUMS: list[Document] = [
    {"$unwind": "$lines"},
    {
        "$group": {
            "_id": "$lines.window",
            "held_micros": {"$sum": {"$cond": [IS_OPEN, "$lines.amount_micros", 0]}},
            "spent_micros": {"$sum": {"$ifNull": ["$lines.actual_micros", 0]}},
        }
    },
]
