"""The executable specification of a ledger: the domain's decisions, applied to dictionaries.

Every verb is atomic, because nothing in it awaits and one lock keeps other threads out.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import RLock

from msgspec.structs import replace

from leaseway.domain.budgets.budget import (
    BudgetDefinition,
    Charge,
    Crossed,
    HoldAnswer,
    check_budget,
    check_change,
    is_template,
)
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.ledger import (
    OPEN,
    Audit,
    Balance,
    BudgetWindow,
    Hold,
    HoldLine,
    HoldState,
    HoldStep,
    JournalEntry,
    LineRequest,
    Lines,
    Posting,
    StoredBudget,
    WindowKey,
    apply_limit,
    apply_posting,
    change_budget,
    check_lines,
    crossed_by,
    declare_budget,
    dispatch_hold,
    expire_hold,
    fresh_window,
    is_balanced,
    may_dispatch,
    place_hold,
    repeat_hold,
    settle_hold,
    still_held,
    sum_balances,
    sum_holds,
    sum_journal,
    unknown_budget,
    unknown_hold,
    void_hold,
    wait_us,
)
from leaseway.domain.ids import Instant
from leaseway.ports.ledger import BOOKS_MAX, Expired


class MemoryLedger:
    def __init__(self, now_us: Callable[[], Instant]) -> None:
        self._now = now_us
        self._lock = RLock()
        self._kept: dict[str, StoredBudget] = {}
        self._books: dict[WindowKey, Balance] = {}
        self._of: dict[WindowKey, tuple[str, str]] = {}
        """By window: the definition that made it, and its unit."""
        self._holds: dict[str, Hold] = {}
        self._entries: list[JournalEntry] = []
        self._seq = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    # -- definitions ------------------------------------------------------------------------------------------------

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        with self._lock:
            for definition in definitions:
                check_budget(definition)
                before = self._kept.get(definition.name)
                check_change(before.definition if before else None, definition)
            for definition in definitions:
                kept = declare_budget(self._kept.get(definition.name), definition)
                if kept is not None:
                    self._keep(kept)

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        with self._lock:
            before = self._kept.get(check_budget(definition).name)
            check_change(before.definition if before else None, definition)
            return self._keep(change_budget(before, definition, expected)).version

    def _keep(self, kept: StoredBudget) -> StoredBudget:
        definition, now = kept.definition, self._now()
        self._kept[definition.name] = kept
        for place, (budget, unit) in self._of.items():
            name, window = place
            if definition.name in (name, budget) and window.end > now:
                self._of[place] = (definition.name, unit)
                self._books[place] = apply_limit(self._books[place], definition.limit_micros)
        return kept

    async def definitions(self) -> list[tuple[BudgetDefinition, int]]:
        with self._lock:
            return [(kept.definition, kept.version) for _, kept in sorted(self._kept.items())]

    async def forget(self, name: str) -> bool:
        with self._lock:
            if name not in self._kept:
                return False
            places = {place for place, (budget, _) in self._of.items() if budget == name}
            if any(self._books[place].held_micros for place in places):
                raise still_held(name)
            del self._kept[name]
            self._drop(places)
            return True

    def _drop(self, places: set[WindowKey]) -> None:
        for place in places:
            del self._books[place], self._of[place]
        self._entries = [entry for entry in self._entries if (entry.name, entry.window) not in places]
        for hold in list(self._holds.values()):
            left = tuple(line for line in hold.lines if (line.name, line.window) not in places)
            if left:
                self._holds[hold.id] = replace(hold, lines=left)
            else:
                del self._holds[hold.id]

    # -- holds ------------------------------------------------------------------------------------------------------

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        check_lines(id, lines, ttl_us)
        with self._lock:
            now = self._now()
            wants = [self._want(charge, amount_micros) for charge, amount_micros in lines]
            known = self._holds.get(id)
            if known is not None:
                again = repeat_hold(known, owner, dispatch, now)
                if again is not None:
                    self._apply(again[1], now)
                    return again[0]
                if known.state is HoldState.HELD:
                    self._apply(void_hold(known, "expire"), now)
            answer, step = place_hold(id, wants, self._read, now, ttl_us=ttl_us, owner=owner, dispatch=dispatch)
            if step is not None:
                self._apply(step, now)
            return answer

    async def dispatch(self, id: str) -> bool:
        with self._lock:
            hold, now = self._holds.get(id), self._now()
            if hold is None or not may_dispatch(hold, now):
                return False
            if hold.state is HoldState.HELD:
                self._holds[id] = dispatch_hold(hold, now)
            return True

    async def settle(self, id: str, actuals: Mapping[str, int]) -> Crossed:
        with self._lock:
            hold = self._holds.get(id)
            if hold is None:
                raise unknown_hold(id)
            return self._apply(settle_hold(hold, actuals), self._now())

    async def void(self, id: str) -> bool:
        with self._lock:
            hold = self._holds.get(id)
            if hold is not None and hold.state is HoldState.HELD:
                self._apply(void_hold(hold), self._now())
            return hold is not None and hold.state in (HoldState.HELD, HoldState.VOID)

    async def expire(self, limit: int) -> Expired:
        with self._lock:
            now = self._now()
            late = [hold for hold in self._holds.values() if hold.state in OPEN and hold.deadline <= now]
            late.sort(key=lambda hold: (hold.deadline, hold.id))
            late = late[: max(limit, 0)]
            crossed = tuple(each for hold in late for each in self._apply(self._expired(hold), now))
            captured = sum(hold.state is HoldState.DISPATCHED for hold in late)
            return Expired(len(late) - captured, captured, crossed)

    def _expired(self, hold: Hold) -> HoldStep:
        return expire_hold(hold)

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        with self._lock:
            now = self._now()
            return max(
                (wait_us(self._want(each, 0).definition, each.name, self._read, now) for each in charges), default=0
            )

    def _want(self, charge: Charge, amount_micros: int) -> LineRequest:
        kept = self._kept.get(charge.name) or self._kept.get(charge.budget)
        if kept is None:
            raise unknown_budget(charge)
        return LineRequest(charge, amount_micros, kept.definition)

    def _read(self, name: str, window: CalendarWindow) -> Balance | None:
        return self._books.get((name, window))

    def _apply(self, step: HoldStep, now: Instant) -> Crossed:
        self._holds[step.hold.id] = step.hold
        return crossed_by([(move, self._book(move, now)) for move in step.moves])

    def _book(self, move: Posting, now: Instant) -> tuple[int, ...]:
        """Write one move into its book and into the journal."""
        line = move.line
        place = (line.name, line.window)
        book, crossed = apply_posting(self._opened(line), move)
        assert is_balanced(book), f"{line.name} {line.window.label}: {book}"
        self._books[place] = book
        self._seq += 1
        self._entries.append(
            JournalEntry(
                seq=self._seq,
                at=now,
                hold=move.hold,
                name=line.name,
                window=line.window,
                kind=move.kind,
                held_micros=move.held_micros,
                spent_micros=move.spent_micros,
                crossed=max(crossed, default=0),
            )
        )
        return crossed

    def _opened(self, line: HoldLine) -> Balance:
        place = (line.name, line.window)
        if place not in self._books:
            self._books[place] = Balance(limit_micros=self._kept[line.budget].definition.limit_micros)
            self._of[place] = (line.budget, line.unit)
        return self._books[place]

    # -- for people -------------------------------------------------------------------------------------------------

    async def books(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        with self._lock:
            now = self._now()
            wanted = [
                account for account in self._accounts(now) if account.window.end > (now if since is None else since)
            ]
            wanted += [account for account in self._untouched(now) if (account.name, account.window) not in self._books]
            wanted = [account for account in wanted if names is None or account.name in names]
            return sorted(wanted, key=lambda account: (account.name, account.window))[:BOOKS_MAX]

    def _accounts(self, now: Instant) -> list[BudgetWindow]:
        return [
            BudgetWindow(
                name=name,
                budget=self._of[name, window][0],
                unit=self._of[name, window][1],
                window=window,
                book=book,
                has_begun=window.start <= now,
            )
            for (name, window), book in self._books.items()
        ]

    def _untouched(self, now: Instant) -> list[BudgetWindow]:
        definitions = [kept.definition for kept in self._kept.values()]
        return [fresh_window(definition, now) for definition in definitions if not is_template(definition.name)]

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        with self._lock:
            entries = [entry for entry in self._entries if entry.name == name]
            return entries[::-1][: max(limit, 0)]

    async def audit(self) -> Audit:
        with self._lock:
            accounts = self._accounts(self._now())
            unbalanced = tuple((each.name, each.window) for each in accounts if not is_balanced(each.book))
            holds = sum_holds(self._holds.values())
            return Audit(sum_balances(accounts), sum_journal(self._entries), holds, unbalanced)

    async def prune(self, keep_us: int, limit: int) -> int:
        with self._lock:
            before = self._now() - keep_us
            over = [place for place, book in self._books.items() if place[1].end <= before and not book.held_micros]
            over.sort(key=lambda place: (place[1].end, place[0]))
            self._drop(set(over[: max(limit, 0)]))
            return len(over[: max(limit, 0)])
