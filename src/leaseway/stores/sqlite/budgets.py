"""Budgets in the same SQLite file as the jobs: the domain decides, each time within one write transaction.

SQLite has one writer per file, so values read in a write transaction stay valid until it commits.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from leaseway.domain.budgets.balances import (
    Audit,
    Balance,
    BudgetWindow,
    HoldLine,
    JournalEntry,
    Posting,
    Sums,
    WindowKey,
    apply_limit,
    apply_posting,
    fresh_window,
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
    unknown_budget,
)
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import (
    Hold,
    HoldState,
    HoldStep,
    LineRequest,
    Lines,
    check_lines,
    crossed_by,
    dispatch_hold,
    expire_hold,
    may_dispatch,
    place_hold,
    repeat_hold,
    settle_hold,
    still_held,
    unknown_hold,
    void_hold,
    wait_us,
)
from leaseway.domain.ids import Instant
from leaseway.ports.ledger import BALANCES_MAX, BudgetDefinitions, BudgetReads, Expired
from leaseway.stores.sqlite.database import SQL, Database, Row, as_json

T = TypeVar("T")


@cache
def statements() -> Mapping[str, str]:
    """The statements by file name."""
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in (SQL / "ledger").iterdir()}


class BudgetTables:
    """The budget tables in the file of the jobs, one transaction per call."""

    def __init__(self, database: Database) -> None:
        self._connection = database.connection
        self._now_us = database.now_us

    async def write(self, step: Callable[["BudgetTransaction"], T]) -> T:
        return await self._connection.write(lambda connection: step(BudgetTransaction(connection, self._now_us())))

    async def read(self, step: Callable[["BudgetTransaction"], T]) -> T:
        return await self._connection.read(lambda connection: step(BudgetTransaction(connection, self._now_us())))


class SqliteBudgetDefinitions:
    def __init__(self, budgets: BudgetTables) -> None:
        self._budgets = budgets

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        await self._budgets.write(lambda desk: desk.declare(definitions))

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        return await self._budgets.write(lambda desk: desk.change(definition, expected))

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        return await self._budgets.read(lambda desk: desk.definitions())

    async def forget(self, name: str) -> bool:
        return await self._budgets.write(lambda desk: desk.forget(name))


class SqliteBudgetReads:
    def __init__(self, budgets: BudgetTables) -> None:
        self._budgets = budgets

    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        return await self._budgets.read(lambda desk: desk.books(names, since))

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        return await self._budgets.read(lambda desk: desk.journal(name, limit))

    async def audit(self) -> Audit:
        return await self._budgets.read(lambda desk: desk.at_one_moment(desk.audit))


class SqliteLedger:
    def __init__(self, database: Database) -> None:
        self._budgets = BudgetTables(database)
        self.definitions: BudgetDefinitions = SqliteBudgetDefinitions(self._budgets)
        self.reads: BudgetReads = SqliteBudgetReads(self._budgets)

    async def open(self) -> None:
        """Do nothing: the store's migrations create the tables."""

    async def close(self) -> None:
        """Do nothing: the store closes the file."""

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        check_lines(id, lines, ttl_us)
        return await self._budgets.write(lambda desk: desk.hold(id, lines, ttl_us, owner, dispatch))

    async def dispatch(self, id: str) -> bool:
        return await self._budgets.write(lambda desk: desk.dispatch(id))

    async def settle(self, id: str, actuals: Mapping[str, int]) -> Crossed:
        return await self._budgets.write(lambda desk: desk.settle(id, actuals))

    async def void(self, id: str) -> bool:
        return await self._budgets.write(lambda desk: desk.void(id))

    async def expire(self, limit: int) -> Expired:
        return await self._budgets.write(lambda desk: desk.expire(limit))

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        return await self._budgets.read(lambda desk: desk.wait_us(charges))

    async def prune(self, keep_us: int, limit: int) -> int:
        return await self._budgets.write(lambda desk: desk.prune(keep_us, limit))


class BudgetTransaction:
    """One transaction on the budget tables, at one instant."""

    def __init__(self, connection: sqlite3.Connection, now: Instant) -> None:
        self._connection = connection
        self._now = now

    def run(self, verb: str, **values: object) -> list[Row]:
        return self._connection.execute(statements()[verb], values).fetchall()

    def at_one_moment(self, work: Callable[[], T]) -> T:
        """Run several statements on one snapshot."""
        self._connection.execute("BEGIN")
        try:
            return work()
        finally:
            self._connection.execute("ROLLBACK")

    # -- definitions ------------------------------------------------------------------------------------------------

    def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        for definition in definitions:
            kept = declare_budget(self._checked(definition), definition)
            if kept is not None:
                self._keep(kept)

    def change(self, definition: BudgetDefinition, expected: int | None) -> int:
        kept = change_budget(self._checked(definition), definition, expected)
        self._keep(kept)
        return kept.version

    def _checked(self, definition: BudgetDefinition) -> StoredBudget | None:
        """The stored definition, if it may change to the given one."""
        before = self._kept(check_budget(definition).name, definition.name)
        check_change(before.definition if before else None, definition)
        return before

    def _keep(self, kept: StoredBudget) -> None:
        definition, declared = kept.definition, None if kept.declared is None else as_json(kept.declared)
        values = {"name": definition.name, "definition": as_json(definition), "declared": declared}
        self.run("budget_keep", **values, version=kept.version)
        for id_, *numbers in self.run("windows_under", name=definition.name, now=self._now):
            book = apply_limit(parse_balance(numbers), definition.limit_micros)
            self.run(
                "window_limit", id=id_, budget=definition.name, limit_micros=book.limit_micros,
                overdraft_micros=book.overdraft_micros, threshold_percent=book.threshold_percent,
            )  # fmt: skip

    def _kept(self, name: str, budget: str) -> StoredBudget | None:
        for definition, said, version in self.run("budget_find", name=name, budget=budget):
            return StoredBudget(parse_definition(definition), None if said is None else parse_definition(said), version)
        return None

    def definitions(self) -> list[tuple[BudgetDefinition, int]]:
        return [(parse_definition(definition), version) for definition, version in self.run("budget_list")]

    def forget(self, name: str) -> bool:
        if self._kept(name, name) is None:
            return False
        ((held,),) = self.run("windows_held", name=name)
        if held:
            raise still_held(name)
        self.run("budget_forget", name=name)
        self._drop(id_ for (id_,) in self.run("windows_of", name=name))
        return True

    def prune(self, keep_us: int, limit: int) -> int:
        over = [id_ for (id_,) in self.run("windows_over", before=self._now - keep_us, limit=max(limit, 0))]
        self._drop(over)
        return len(over)

    def _drop(self, windows: Iterable[int]) -> None:
        for id_ in windows:
            holds = self.run("holds_in", id=id_)
            for verb in ("drop_lines", "drop_journal", "drop_window"):
                self.run(verb, id=id_)
            for (hold,) in holds:
                self.run("drop_hold", id=hold)

    # -- holds ------------------------------------------------------------------------------------------------------

    def hold(self, id_: str, lines: Lines, ttl_us: int, owner: str, dispatch: bool) -> HoldAnswer:
        wants = [LineRequest(charge, micros, self._definition(charge)) for charge, micros in lines]
        known = self._hold(id_)
        if known is not None:
            again = repeat_hold(known, owner, dispatch, self._now)
            if again is not None:
                self._apply(again[1])
                return again[0]
            if known.state is HoldState.HELD:
                self._apply(void_hold(known, "expire"))
        answer, step = place_hold(id_, wants, self._read, self._now, ttl_us=ttl_us, owner=owner, dispatch=dispatch)
        if step is not None:
            self._apply(step)
        return answer

    def dispatch(self, id_: str) -> bool:
        hold = self._hold(id_)
        if hold is None or not may_dispatch(hold, self._now):
            return False
        if hold.state is HoldState.HELD:
            self._apply(HoldStep(dispatch_hold(hold, self._now)))
        return True

    def settle(self, id_: str, actuals: Mapping[str, int]) -> Crossed:
        hold = self._hold(id_)
        if hold is None:
            raise unknown_hold(id_)
        return self._apply(settle_hold(hold, actuals))

    def void(self, id_: str) -> bool:
        hold = self._hold(id_)
        if hold is not None and hold.state is HoldState.HELD:
            self._apply(void_hold(hold))
        return hold is not None and hold.state in (HoldState.HELD, HoldState.VOID)

    def expire(self, limit: int) -> Expired:
        late = [self._hold(id_) for (id_,) in self.run("holds_late", now=self._now, limit=max(limit, 0))]
        holds = [hold for hold in late if hold is not None]
        crossed = tuple(each for hold in holds for each in self._apply(expire_hold(hold)))
        captured = sum(hold.state is HoldState.DISPATCHED for hold in holds)
        return Expired(len(holds) - captured, captured, crossed)

    def wait_us(self, charges: Sequence[Charge]) -> int:
        waits = (wait_us(self._definition(each), each.name, self._read, self._now) for each in charges)
        return max(waits, default=0)

    def _definition(self, charge: Charge) -> BudgetDefinition:
        kept = self._kept(charge.name, charge.budget)
        if kept is None:
            raise unknown_budget(charge)
        return kept.definition

    def _hold(self, id_: str) -> Hold | None:
        rows = self.run("hold_find", id=id_)
        if not rows:
            return None
        state, owner, ttl_us, deadline, *_ = rows[0]
        lines = tuple(parse_hold_line(row[4:]) for row in rows)
        return Hold(id=id_, state=HoldState(state), owner=owner, ttl_us=ttl_us, deadline=deadline, lines=lines)

    def _read(self, name: str, window: CalendarWindow) -> Balance | None:
        for _, *numbers in self.run("window_find", name=name, **window_values(window)):
            return parse_balance(numbers)
        return None

    def _apply(self, step: HoldStep) -> Crossed:
        hold = step.hold
        self.run(
            "hold_keep", id=hold.id, state=hold.state.value, owner=hold.owner, ttl_us=hold.ttl_us,
            deadline=hold.deadline,
        )  # fmt: skip
        if not step.moves:
            return ()
        self.run("hold_clear", hold=hold.id)
        told = []
        for place, (line, move) in enumerate(zip(hold.lines, step.moves, strict=True)):
            window = self._opened(line)
            amounts = {"amount_micros": line.amount_micros, "actual_micros": line.actual_micros}
            self.run("line_keep", hold=hold.id, place=place, window=window, **amounts)
            told.append((move, self._book(window, move)))
        return crossed_by(told)

    def _opened(self, line: HoldLine) -> int:
        """The id of a window, which is made when something is booked in it for the first time."""
        found = self.run("window_find", name=line.name, **window_values(line.window))
        if not found:
            kept = self._kept(line.budget, line.budget)
            assert kept is not None  # the line was made by it, in this transaction
            names = {"name": line.name, "budget": line.budget, "unit": line.unit}
            self.run("window_open", **names, **window_values(line.window), limit_micros=kept.definition.limit_micros)
            found = self.run("window_find", name=line.name, **window_values(line.window))
        return int(found[0][0])

    def _book(self, window: int, move: Posting) -> tuple[int, ...]:
        """Apply one posting to its balance and record it in the journal."""
        ((_, *numbers),) = self.run("window_find", name=move.line.name, **window_values(move.line.window))
        book, crossed = apply_posting(parse_balance(numbers), move)
        self.run(
            "window_book", id=window, spent_micros=book.spent_micros, held_micros=book.held_micros,
            overdraft_micros=book.overdraft_micros, threshold_percent=book.threshold_percent,
        )  # fmt: skip
        self.run(
            "entry_add", at=self._now, hold=move.hold, window=window, kind=move.kind, held_micros=move.held_micros,
            spent_micros=move.spent_micros, crossed=max(crossed, default=0),
        )  # fmt: skip
        return crossed

    # -- for people -------------------------------------------------------------------------------------------------

    def books(self, names: Sequence[str] | None, since: Instant | None) -> list[BudgetWindow]:
        wanted = None if names is None else as_json(list(names))
        since = self._now if since is None else since
        accounts = [
            parse_window(row, self._now) for row in self.run("books", since=since, names=wanted, limit=BALANCES_MAX)
        ]
        there = {(account.name, account.window) for account in accounts}
        for definition, _ in self.definitions():
            if not is_template(definition.name) and (names is None or definition.name in names):
                fresh = fresh_window(definition, self._now)
                accounts += [] if (fresh.name, fresh.window) in there else [fresh]
        return sorted(accounts, key=lambda account: (account.name, account.window))[:BALANCES_MAX]

    def journal(self, name: str, limit: int) -> list[JournalEntry]:
        return [parse_entry(row) for row in self.run("entry_list", name=name, limit=max(limit, 0))]

    def audit(self) -> Audit:
        books = self.run("audit_books")
        unbalanced = tuple(window_key(row) for row in books if not row[-1])
        journal, holds = self.run("audit_journal"), self.run("audit_holds")
        return Audit(parse_sums(books), parse_sums(journal), parse_sums(holds), unbalanced)


# -- rows and values ------------------------------------------------------------------------------------------------


def parse_definition(text: str) -> BudgetDefinition:
    return msgspec.json.decode(text, type=BudgetDefinition)


def window_values(window: CalendarWindow) -> dict[str, Any]:
    return {"starts_at": window.start, "ends_at": window.end, "label": window.label}


def parse_balance(row: Sequence[Any]) -> Balance:
    limit_micros, spent_micros, held_micros, overdraft_micros, threshold = row
    return Balance(
        limit_micros=limit_micros, spent_micros=spent_micros, held_micros=held_micros,
        overdraft_micros=overdraft_micros, threshold_percent=threshold,
    )  # fmt: skip


def parse_hold_line(row: Sequence[Any]) -> HoldLine:
    name, budget, unit, start, end, label, amount_micros, actual_micros = row
    return HoldLine(
        name=name, budget=budget, unit=unit, window=CalendarWindow(start, end, label), amount_micros=amount_micros,
        actual_micros=actual_micros,
    )  # fmt: skip


def parse_window(row: Row, now: Instant) -> BudgetWindow:
    name, budget, unit, start, end, label, *numbers = row
    window = CalendarWindow(start, end, label)
    balance, has_begun = parse_balance(numbers), window.start <= now
    return BudgetWindow(name=name, budget=budget, unit=unit, window=window, balance=balance, has_begun=has_begun)


def parse_entry(row: Row) -> JournalEntry:
    seq, at, hold, name, start, end, label, kind, held_micros, spent_micros, crossed = row
    return JournalEntry(
        seq=seq, at=at, hold=hold, name=name, window=CalendarWindow(start, end, label), kind=kind,
        held_micros=held_micros, spent_micros=spent_micros, crossed=crossed,
    )  # fmt: skip


def window_key(row: Row) -> WindowKey:
    return (row[0], CalendarWindow(*row[1:4]))


def parse_sums(rows: Sequence[Row]) -> dict[WindowKey, Sums]:
    return {window_key(row): Sums(row[4], row[5]) for row in rows if row[4] or row[5]}
