"""One transaction on the budget tables: the domain decides, and its decisions are written."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeVar

from leaseway.domain.budgets.balances import (
    Audit,
    Balance,
    BudgetWindow,
    Evidence,
    HoldLine,
    JournalEntry,
    Posting,
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
    still_held,
    unknown_hold,
    void_hold,
    wait_us,
)
from leaseway.domain.budgets.rebooking import BookedPlace, hold_again
from leaseway.domain.errors import answer_or_none
from leaseway.domain.ids import Instant
from leaseway.domain.inspection import only_usable
from leaseway.ports.ledger import BALANCES_MAX, RESERVED_MAX, Expired, HoldRequest, Posted, SettleHoldRequest
from leaseway.stores.sqlite.budget_rows import (
    book_values,
    hold_values,
    parse_balance,
    parse_definition,
    parse_entry,
    parse_holds,
    parse_stored,
    parse_sums,
    parse_window,
    window_key,
    window_values,
)
from leaseway.stores.sqlite.database import SQL, Row, as_json

T = TypeVar("T")
LAST = chr(0x10FFFF)
"""The last character: every text that begins with a prefix comes before the prefix with this character."""


@cache
def statements() -> Mapping[str, str]:
    """The statements by file name."""
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in (SQL / "ledger").iterdir()}


class BudgetTransaction:
    """One transaction on the budget tables, at one instant. Decisions are kept until `flush` writes them."""

    def __init__(self, connection: sqlite3.Connection, now: Instant) -> None:
        self._connection = connection
        self._now = now
        self._definitions: dict[Charge, BudgetDefinition] = {}
        self._wants: dict[tuple[tuple[Charge, int], ...], tuple[LineRequest, ...]] = {}
        self._windows: dict[WindowKey, tuple[int, Balance]] = {}
        self._holds: dict[str, Hold | None] = {}
        self._changed_holds: dict[str, Hold] = {}
        self._changed_lines: dict[str, list[Row]] = {}
        self._reshaped: list[str] = []
        """Holds that are placed again, with fewer lines than before."""
        self._changed_windows: dict[int, Balance] = {}
        self._entries: list[Row] = []

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
        # One that cannot be used counts as none, so that the next declaration replaces it.
        return next(iter(only_usable(self.run("budget_find", name=name, budget=budget), parse_stored)), None)

    def definitions(self) -> list[tuple[BudgetDefinition, int]]:
        return only_usable(self.run("budget_list"), lambda row: (check_budget(parse_definition(row[0])), row[1]))

    def forget(self, name: str) -> bool:
        if self._kept(name, name) is None:
            return False
        self._load([id_ for (id_,) in self.run("holds_open", name=name)])
        open_ = [hold for hold in self._holds.values() if hold is not None]
        if any(hold.state is HoldState.DISPATCHED for hold in open_):
            raise still_held(name)
        for hold in open_:
            self._apply(void_hold(hold))
        self.flush()
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

    def hold(self, request: HoldRequest) -> HoldAnswer:
        check_lines(request.id, request.lines, request.ttl_us)
        wants = self._wanted(request.lines)
        owner, dispatch = request.owner, request.dispatch
        known = self._hold(request.id)
        if known is not None:
            again, step = hold_again(known, wants, self._read, self._now, owner=owner, dispatch=dispatch)
            if step is not None:
                self._apply(step)
            if again is not None:
                return again
        answer, step = place_hold(
            request.id, wants, self._read, self._now, ttl_us=request.ttl_us, owner=owner, dispatch=dispatch
        )
        if step is not None:
            self._apply(step)
        return answer

    def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        self._load([*(each.id for each in settlements), *(each.id for each in holds)])
        settled = tuple(answer_or_none(self.settle, each) for each in settlements)
        return Posted(tuple(answer_or_none(self.hold, each) for each in holds), settled)

    def dispatch(self, id_: str) -> bool:
        hold = self._hold(id_)
        if hold is None or not may_dispatch(hold, self._now):
            return False
        if hold.state is HoldState.HELD:
            self._apply(HoldStep(dispatch_hold(hold, self._now)))
        return True

    def settle(self, request: SettleHoldRequest) -> Crossed:
        hold = self._hold(request.id)
        if hold is None:
            raise unknown_hold(request.id)
        return self._apply(settle_hold(hold, request.actuals, request.owner))

    def correct(self, id_: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        hold = self._hold(id_)
        if hold is None:
            raise unknown_hold(id_)
        corrections, steps = correct_hold(hold, actuals, evidence, self._now)
        for step in steps:
            self._apply(step)
        return corrections

    def void(self, id_: str) -> bool:
        hold = self._hold(id_)
        if hold is not None and hold.state is HoldState.HELD:
            self._apply(void_hold(hold))
        return hold is not None and hold.state in (HoldState.HELD, HoldState.VOID)

    def expire(self, limit: int) -> Expired:
        late = [id_ for (id_,) in self.run("holds_late", now=self._now, limit=max(limit, 0))]
        self._load(late)
        holds = [hold for hold in map(self._hold, late) if hold is not None]
        crossed = tuple(each for hold in holds for each in self._apply(expire_hold(hold)))
        captured = sum(hold.state is HoldState.DISPATCHED for hold in holds)
        return Expired(len(holds) - captured, captured, crossed)

    def wait_us(self, charges: Sequence[Charge]) -> int:
        waits = (wait_us(self._definition(each), each.name, self._read, self._now) for each in charges)
        return max(waits, default=0)

    def _definition(self, charge: Charge) -> BudgetDefinition:
        if charge not in self._definitions:
            kept = self._kept(charge.name, charge.budget)
            if kept is None:
                raise unknown_budget(charge)
            self._definitions[charge] = kept.definition
        return self._definitions[charge]

    def _wanted(self, lines: tuple[tuple[Charge, int], ...]) -> Sequence[LineRequest]:
        """Calls of one kind have the same lines."""
        wants = self._wants.get(lines)
        if wants is None:
            found = [LineRequest(charge, micros, self._definition(charge)) for charge, micros in lines]
            wants = self._wants[lines] = tuple(found)
        return wants

    def _hold(self, id_: str) -> Hold | None:
        if id_ not in self._holds:
            self._load([id_])
        return self._holds[id_]

    def _load(self, ids: Sequence[str]) -> None:
        """Read these holds, with one statement."""
        wanted = dict.fromkeys(ids)  # each once
        ((text,),) = self.run("holds_find", ids=as_json(list(wanted)))
        self._holds.update({**wanted, **parse_holds(text)})

    def _read(self, name: str, window: CalendarWindow) -> Balance | None:
        found = self._window(name, window)
        return None if found is None else found[1]

    def _window(self, name: str, window: CalendarWindow) -> tuple[int, Balance] | None:
        """Its id and its balance, read once per transaction."""
        found = self._windows.get((name, window))
        if found is None:
            for id_, *numbers in self.run("window_find", name=name, **window_values(window)):
                found = self._windows[name, window] = (id_, parse_balance(numbers))
        return found

    def _apply(self, step: HoldStep) -> Crossed:
        """Apply a decision. It is written by `flush`."""
        before = self._holds.get(step.hold.id)
        hold = self._holds[step.hold.id] = step.hold
        self._changed_holds[hold.id] = hold
        if not step.moves:
            return ()
        told, lines = [], []
        for place, (line, move) in enumerate(zip(hold.lines, step.moves, strict=True)):
            window, balance = self._opened(line)
            lines.append((hold.id, place, window, line.amount_micros, line.actual_micros))
            told.append((move, self._book(window, balance, move)))
        self._changed_lines[hold.id] = lines
        if before is not None and len(before.lines) > len(lines):
            self._reshaped.append(hold.id)
        return crossed_by(told)

    def _opened(self, line: HoldLine) -> tuple[int, Balance]:
        """A window, which is made when something is booked in it for the first time."""
        found = self._window(line.name, line.window)
        if found is None:
            kept = self._kept(line.budget, line.budget)
            assert kept is not None  # the line was made by it, in this transaction
            names = {"name": line.name, "budget": line.budget, "unit": line.unit}
            self.run("window_open", **names, **window_values(line.window), limit_micros=kept.definition.limit_micros)
            found = self._window(line.name, line.window)
            assert found is not None
        return found

    def _book(self, window: int, balance: Balance, move: Posting) -> tuple[int, ...]:
        """Apply one posting to its balance and record it in the journal."""
        book, crossed = apply_posting(balance, move)
        self._windows[move.line.name, move.line.window] = (window, book)
        self._changed_windows[window] = book
        told = (max(crossed, default=0), move.by, move.reason, move.from_micros)
        self._entries.append((move.hold, window, move.kind, move.held_micros, move.spent_micros, *told))
        return crossed

    def flush(self) -> None:
        """Write what was decided, with one statement per table: between two statements another thread may take the
        interpreter lock and keep it for milliseconds."""
        if self._changed_holds:
            self.run("holds_keep", rows=as_json([hold_values(hold) for hold in self._changed_holds.values()]))
        if self._reshaped:
            self.run("lines_clear", holds=as_json(self._reshaped))
        if self._changed_lines:
            self.run("lines_keep", rows=as_json([line for lines in self._changed_lines.values() for line in lines]))
        if self._changed_windows:
            self.run("windows_book", rows=as_json([book_values(*each) for each in self._changed_windows.items()]))
        if self._entries:
            self.run("entries_add", at=self._now, rows=as_json(self._entries))
        for changes in (self._changed_holds, self._changed_lines, self._reshaped, self._changed_windows, self._entries):
            changes.clear()

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

    def unsettled(self, name: str, limit: int) -> list[Hold]:
        found = self.run("holds_unsettled", name=name, limit=max(limit, 0))
        return [hold for (id_,) in found if (hold := self._hold(id_)) is not None]

    def booked(self, budget: str, after: BookedPlace, limit: int) -> list[Hold]:
        start, id_ = after
        found = self.run("holds_booked", budget=budget, start=start, id=id_, now=self._now, limit=max(limit, 0))
        return [hold for (id_,) in found if (hold := self._hold(id_)) is not None]

    def booked_for(self, prefix: str, limit: int) -> list[Hold]:
        found = self.run("holds_booked_for", low=prefix, high=f"{prefix}{LAST}", now=self._now, limit=max(limit, 0))
        return [hold for (id_,) in found if (hold := self._hold(id_)) is not None]

    def reserved(self, prefix: str) -> list[str]:
        return [id_ for (id_,) in self.run("holds_reserved", low=prefix, high=f"{prefix}{LAST}", limit=RESERVED_MAX)]

    def audit(self) -> Audit:
        books = self.run("audit_books")
        unbalanced = tuple(window_key(row) for row in books if not row[-1])
        journal, holds = self.run("audit_journal"), self.run("audit_holds")
        return Audit(parse_sums(books), parse_sums(journal), parse_sums(holds), unbalanced)
