"""What one transaction on budgets has read, the domain's decisions on it, and what is to be written.

    stages ─► one document with everything ─► BudgetBatch: the verbs, one after the other ─► write

A transaction serves several calls. All of them are decided in memory, and their changes are written together. Windows,
holds and journal agree, because they are written in one transaction. Conflicts with other processes are found by the
server: whoever changes a document that another transaction has changed since it was read is aborted and repeated.
Documents that are only read are protected where it matters: opening a window also changes the definition, so that it
conflicts with a change of the limit.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from bson.max_key import MaxKey
from bson.min_key import MinKey
from msgspec import Struct
from pymongo import InsertOne, ReplaceOne, UpdateOne

from leaseway.domain.budgets.balances import (
    Balance,
    BudgetWindow,
    Evidence,
    HoldLine,
    JournalEntry,
    Posting,
    Sums,
    WindowKey,
    apply_posting,
)
from leaseway.domain.budgets.budget import (
    BudgetDefinition,
    Charge,
    Crossed,
    HoldAnswer,
    StoredBudget,
    check_budget,
    unknown_budget,
)
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import (
    OPEN,
    UNSETTLED,
    Correction,
    Hold,
    HoldState,
    HoldStep,
    LineRequest,
    check_lines,
    correct_hold,
    crossed_by,
    dispatch_hold,
    expire_hold,
    may_dispatch,
    place_hold,
    settle_hold,
    unknown_hold,
    void_hold,
    wait_us,
)
from leaseway.domain.budgets.rebooking import hold_again
from leaseway.domain.errors import answer_or_none
from leaseway.domain.ids import Instant
from leaseway.ports.ledger import Expired, HoldRequest, Posted, SettleHoldRequest
from leaseway.stores.mongodb.connection import Document, Transaction, lookup
from leaseway.stores.mongodb.errors import parse_document
from leaseway.stores.mongodb.schema import BUDGET_JOURNAL, BUDGET_WINDOWS, BUDGETS, HOLDS

# -- documents ------------------------------------------------------------------------------------------------------


class WindowRecord(Struct, frozen=True):
    """A window with its balance, and the definition under which it is."""

    name: str
    window: CalendarWindow
    budget: str
    unit: str
    balance: Balance

    @property
    def key(self) -> WindowKey:
        return self.name, self.window


def window_id(name: str, window: CalendarWindow) -> dict[str, Any]:
    """The fields in this order: MongoDB compares them in order."""
    return {"name": name, "start": window.start, "end": window.end, "label": window.label}


def parse_budget(document: Document) -> StoredBudget:
    return parse_document(BUDGETS, document, StoredBudget)


def parse_usable_budget(document: Document) -> StoredBudget:
    kept = parse_budget(document)
    check_budget(kept.definition)
    return kept


def render_budget(kept: StoredBudget) -> dict[str, Any]:
    return {"_id": kept.definition.name, **msgspec.to_builtins(kept)}


def parse_window(document: Document) -> WindowRecord:
    parts = {"name": document["_id"]["name"], "window": document["_id"], "balance": document}
    return parse_document(BUDGET_WINDOWS, {**document, **parts}, WindowRecord)


def render_window(record: WindowRecord) -> dict[str, Any]:
    names = {"_id": window_id(record.name, record.window), "budget": record.budget, "unit": record.unit}
    return names | msgspec.structs.asdict(record.balance)


def show_window(record: WindowRecord, now: Instant) -> BudgetWindow:
    return BudgetWindow(
        name=record.name,
        budget=record.budget,
        unit=record.unit,
        window=record.window,
        balance=record.balance,
        has_begun=record.window.start <= now,
    )


def parse_hold(document: Document) -> Hold:
    return parse_document(HOLDS, {**document, "id": document["_id"]}, Hold)


def render_hold(hold: Hold) -> dict[str, Any]:
    """With what indexes need: `due` of open holds, `is_unsettled`, and all names by which it is found."""
    document: dict[str, Any] = msgspec.to_builtins(hold) | {
        "_id": hold.id,
        "start": hold.start,
        "budgets": sorted({name for line in hold.lines for name in (line.name, line.budget)}),
        "is_unsettled": hold.state in UNSETTLED,
        "lines": [render_line(line) for line in hold.lines],
    }
    del document["id"]
    return document | {"due": hold.deadline} if hold.state in OPEN else document


def render_line(line: HoldLine) -> dict[str, Any]:
    return {**msgspec.to_builtins(line), "window": window_id(line.name, line.window)}


def parse_entry(document: Document) -> JournalEntry:
    return parse_document(BUDGET_JOURNAL, {**document, **document["_id"]}, JournalEntry)


def entries_of(name: str) -> Document:
    """A range of the `_id`s: all entries of a budget, but not the document with its last number."""
    return {"_id": {"$gt": {"name": name, "seq": MinKey()}, "$lt": {"name": name, "seq": MaxKey()}}}


def render_entry(seq: int, at: Instant, move: Posting, crossed: tuple[int, ...]) -> dict[str, Any]:
    return {
        "_id": {"name": move.line.name, "seq": seq},
        "at": at,
        "hold": move.hold,
        "window": window_id(move.line.name, move.line.window),
        "kind": move.kind,
        "held_micros": move.held_micros,
        "spent_micros": move.spent_micros,
        "crossed": max(crossed, default=0),
        "by": move.by,
        "reason": move.reason,
        "from_micros": move.from_micros,
    }


class SumsDocument(Struct, frozen=True):
    """What an aggregation by window returns."""

    name: str
    window: CalendarWindow
    held_micros: int
    spent_micros: int


def parse_sums(collection: str, documents: Iterable[Document]) -> dict[WindowKey, Sums]:
    found = [
        parse_document(collection, {**each, "name": each["_id"]["name"], "window": each["_id"]}, SumsDocument)
        for each in documents
    ]
    sums = {(each.name, each.window): Sums(each.held_micros, each.spent_micros) for each in found}
    return {place: each for place, each in sums.items() if each != Sums()}


# -- reading --------------------------------------------------------------------------------------------------------


def batch_stages(holds: Document, charges: Iterable[Charge], now_micros: object) -> list[Document]:
    """Everything that calls on these holds and charges need. `holds`: a stage that adds them under that name."""
    charges = set(charges)
    names = sorted({charge.name for charge in charges})
    definitions = sorted({name for charge in charges for name in (charge.name, charge.budget)})
    current = {"_id.name": {"$in": names}, "$expr": {"$gt": ["$_id.end", now_micros]}}
    return [
        holds,
        lookup(BUDGETS, "budgets", {"_id": {"$in": definitions}}),
        lookup(BUDGET_WINDOWS, "windows", current),
        join(BUDGET_WINDOWS, "windows_of_holds", "holds.lines.window"),
        lookup(BUDGET_JOURNAL, "counters", {"_id": {"$in": names}}),
        join(BUDGET_JOURNAL, "counters_of_holds", "holds.lines.name"),
    ]


def join(collection: str, name: str, field: str) -> Document:
    return {"$lookup": {"from": collection, "localField": field, "foreignField": "_id", "as": name}}


class BudgetBatch:
    """The verbs, at one instant. A verb that raises has changed nothing."""

    def __init__(self, now: Instant, found: Document) -> None:
        self._now = now
        self._kept: dict[str, StoredBudget] = {each["_id"]: parse_budget(each) for each in found["budgets"]}
        self._holds: dict[str, Hold] = {each["_id"]: parse_hold(each) for each in found["holds"]}
        windows = [parse_window(each) for each in (*found["windows"], *found["windows_of_holds"])]
        self._windows: dict[WindowKey, WindowRecord] = {each.key: each for each in windows}
        counters = (*found["counters"], *found["counters_of_holds"])
        self._seqs: dict[str, int] = {each["_id"]: int(each["last"]) for each in counters}
        self._changed_holds: dict[str, None] = {}
        self._changed_windows: dict[WindowKey, None] = {}
        self._opened: list[str] = []
        """The definitions under which windows were opened."""
        self._entries: list[dict[str, Any]] = []

    # -- verbs ------------------------------------------------------------------------------------------------------

    def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        settled = tuple(answer_or_none(self.settle, each) for each in settlements)
        return Posted(tuple(answer_or_none(self.hold, each) for each in holds), settled)

    def hold(self, request: HoldRequest) -> HoldAnswer:
        check_lines(request.id, request.lines, request.ttl_us)
        wants = [LineRequest(charge, micros, self._definition(charge)) for charge, micros in request.lines]
        known, owner, dispatch = self._holds.get(request.id), request.owner, request.dispatch
        if known is not None:
            again, step = hold_again(known, wants, self._read, self._now, owner=owner, dispatch=dispatch)
            if step is not None:
                self.apply(step)
            if again is not None:
                return again
        answer, step = place_hold(
            request.id, wants, self._read, self._now, ttl_us=request.ttl_us, owner=owner, dispatch=dispatch
        )
        if step is not None:
            self.apply(step)
        return answer

    def dispatch(self, id_: str) -> bool:
        hold = self._holds.get(id_)
        if hold is None or not may_dispatch(hold, self._now):
            return False
        if hold.state is HoldState.HELD:
            self.apply(HoldStep(dispatch_hold(hold, self._now)))
        return True

    def settle(self, request: SettleHoldRequest) -> Crossed:
        return self.apply(settle_hold(self._require(request.id), request.actuals, request.owner))

    def correct(self, id_: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        corrections, steps = correct_hold(self._require(id_), actuals, evidence, self._now)
        for step in steps:
            self.apply(step)
        return corrections

    def void(self, id_: str) -> bool:
        hold = self._holds.get(id_)
        if hold is not None and hold.state is HoldState.HELD:
            self.apply(void_hold(hold))
        return hold is not None and hold.state in (HoldState.HELD, HoldState.VOID)

    def expire(self) -> Expired:
        """End all holds that were read and are past their deadline."""
        late = [hold for hold in self._holds.values() if hold.deadline <= self._now]
        late.sort(key=lambda hold: (hold.deadline, hold.id))
        crossed = tuple(each for hold in late for each in self.apply(expire_hold(hold)))
        captured = sum(hold.state is HoldState.DISPATCHED for hold in late)
        return Expired(len(late) - captured, captured, crossed)

    def wait_us(self, charges: Sequence[Charge]) -> int:
        waits = (wait_us(self._definition(each), each.name, self._read, self._now) for each in charges)
        return max(waits, default=0)

    # -- reading and changing ---------------------------------------------------------------------------------------

    def _definition(self, charge: Charge) -> BudgetDefinition:
        kept = self._kept.get(charge.name) or self._kept.get(charge.budget)
        if kept is None:
            raise unknown_budget(charge)
        return kept.definition

    def _require(self, id_: str) -> Hold:
        if id_ not in self._holds:
            raise unknown_hold(id_)
        return self._holds[id_]

    def _read(self, name: str, window: CalendarWindow) -> Balance | None:
        found = self._windows.get((name, window))
        return None if found is None else found.balance

    def apply(self, step: HoldStep) -> Crossed:
        if step.hold != self._holds.get(step.hold.id):
            self._holds[step.hold.id] = step.hold
            self._changed_holds[step.hold.id] = None
        return crossed_by([(move, self._book(move)) for move in step.moves])

    def _book(self, move: Posting) -> tuple[int, ...]:
        """Apply one posting to its balance and record it in the journal."""
        record = self._open(move.line)
        balance, crossed = apply_posting(record.balance, move)
        self._windows[record.key] = WindowRecord(record.name, record.window, record.budget, record.unit, balance)
        self._changed_windows[record.key] = None
        seq = self._seqs[record.name] = self._seqs.get(record.name, 0) + 1
        self._entries.append(render_entry(seq, self._now, move, crossed))
        return crossed

    def _open(self, line: HoldLine) -> WindowRecord:
        """A window is made when something is booked in it for the first time."""
        found = self._windows.get((line.name, line.window))
        if found is not None:
            return found
        self._opened.append(line.budget)
        balance = Balance(limit_micros=self._kept[line.budget].definition.limit_micros)
        return WindowRecord(line.name, line.window, line.budget, line.unit, balance)

    # -- writing ----------------------------------------------------------------------------------------------------

    async def write(self, transaction: Transaction) -> None:
        """Write what has changed. The windows come first: that is where others conflict, and then nothing is lost."""
        windows = [render_window(self._windows[key]) for key in self._changed_windows]
        holds = [render_hold(self._holds[id_]) for id_ in self._changed_holds]
        await bulk_write(transaction, BUDGET_WINDOWS, [replacement(each) for each in windows])
        # A change of a definition that has not seen the new windows must conflict with this transaction.
        touched = [UpdateOne({"_id": name}, {"$inc": {"windows_opened": 1}}) for name in self._opened]
        await bulk_write(transaction, BUDGETS, touched)
        await bulk_write(transaction, HOLDS, [replacement(each) for each in holds])
        names = {each["_id"]["name"] for each in self._entries}
        last = [UpdateOne({"_id": name}, {"$set": {"last": self._seqs[name]}}, upsert=True) for name in sorted(names)]
        await bulk_write(transaction, BUDGET_JOURNAL, [*last, *(InsertOne(each) for each in self._entries)])


def replacement(document: dict[str, Any]) -> ReplaceOne[dict[str, Any]]:
    return ReplaceOne({"_id": document["_id"]}, document, upsert=True)


async def bulk_write(transaction: Transaction, collection: str, writes: Sequence[Any]) -> None:
    if writes:
        await transaction.database[collection].bulk_write(writes, session=transaction.session)


async def find_windows(transaction: Transaction, where: Document) -> list[WindowRecord]:
    found = transaction.database[BUDGET_WINDOWS].find(where, session=transaction.session)
    return [parse_window(each) async for each in found]


# -- cleaning up ----------------------------------------------------------------------------------------------------


def pruning(found: Document) -> Callable[[Transaction], Awaitable[int]]:
    async def work(transaction: Transaction) -> int:
        # Something may have been booked in the window since it was found.
        windows = await find_windows(transaction, {"_id": found["_id"], "held_micros": 0})
        for each in windows:
            await drop_window(transaction, each)
        await drop_counters(transaction, windows)
        return len(windows)

    return work


async def drop_window(transaction: Transaction, record: WindowRecord) -> None:
    """With its journal and its lines. A hold without lines is nothing."""
    database, session, id_ = transaction.database, transaction.session, window_id(*record.key)
    await database[BUDGET_WINDOWS].delete_one({"_id": id_}, session=session)
    entries = {"_id.name": record.name, "window.start": record.window.start, "window": id_}
    await database[BUDGET_JOURNAL].delete_many(entries, session=session)
    await database[HOLDS].delete_many({"lines.window": id_, "lines": {"$size": 1}}, session=session)
    await database[HOLDS].update_many({"lines.window": id_}, {"$pull": {"lines": {"window": id_}}}, session=session)


async def drop_counters(transaction: Transaction, dropped: Sequence[WindowRecord]) -> None:
    """Of names that have no window left."""
    names = {each.name for each in dropped}
    left = {each.name for each in await find_windows(transaction, {"_id.name": {"$in": list(names)}})}
    gone = {"_id": {"$in": list(names - left)}}
    await transaction.database[BUDGET_JOURNAL].delete_many(gone, session=transaction.session)
