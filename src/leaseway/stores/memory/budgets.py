"""The executable specification of a ledger: the domain's decisions, applied to dictionaries.

Every method is atomic: it awaits nothing and holds one lock, which excludes other threads.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import RLock

from msgspec.structs import replace

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
    is_balanced,
    sum_balances,
    sum_journal,
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
    OPEN,
    UNSETTLED,
    Correction,
    Hold,
    HoldState,
    HoldStep,
    LineRequest,
    Lines,
    check_evidence,
    check_lines,
    correct_hold,
    crossed_by,
    dispatch_hold,
    expire_hold,
    may_dispatch,
    place_hold,
    settle_hold,
    still_held,
    sum_holds,
    unknown_hold,
    void_hold,
    wait_us,
)
from leaseway.domain.budgets.rebooking import FIRST_BOOKED, BookedPlace, booked_place, hold_again, is_booked
from leaseway.domain.errors import answer_or_none
from leaseway.domain.ids import Instant
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


class BudgetState:
    def __init__(self, now_us: Callable[[], Instant]) -> None:
        self.now_us = now_us
        self.lock = RLock()
        self.kept: dict[str, StoredBudget] = {}
        self.books: dict[WindowKey, Balance] = {}
        self.definition_by_window: dict[WindowKey, tuple[str, str]] = {}
        """By window: the definition that opened it, and its unit."""
        self.holds: dict[str, Hold] = {}
        self.entries: list[JournalEntry] = []
        self.seq = 0

    def drop(self, places: set[WindowKey]) -> None:
        for place in places:
            del self.books[place], self.definition_by_window[place]
        self.entries = [entry for entry in self.entries if (entry.name, entry.window) not in places]
        for hold in list(self.holds.values()):
            left = tuple(line for line in hold.lines if (line.name, line.window) not in places)
            if left:
                self.holds[hold.id] = replace(hold, lines=left)
            else:
                del self.holds[hold.id]

    def apply(self, step: HoldStep, now: Instant) -> Crossed:
        self.holds[step.hold.id] = step.hold
        return crossed_by([(move, self._book(move, now)) for move in step.moves])

    def _book(self, move: Posting, now: Instant) -> tuple[int, ...]:
        """Apply one posting to its balance and record it in the journal."""
        line = move.line
        place = (line.name, line.window)
        book, crossed = apply_posting(self._opened(line), move)
        assert is_balanced(book), f"{line.name} {line.window.label}: {book}"
        self.books[place] = book
        self.seq += 1
        self.entries.append(
            JournalEntry(
                seq=self.seq,
                at=now,
                hold=move.hold,
                name=line.name,
                window=line.window,
                kind=move.kind,
                held_micros=move.held_micros,
                spent_micros=move.spent_micros,
                crossed=max(crossed, default=0),
                by=move.by,
                reason=move.reason,
                from_micros=move.from_micros,
            )
        )
        return crossed

    def _opened(self, line: HoldLine) -> Balance:
        place = (line.name, line.window)
        if place not in self.books:
            self.books[place] = Balance(limit_micros=self.kept[line.budget].definition.limit_micros)
            self.definition_by_window[place] = (line.budget, line.unit)
        return self.books[place]

    def read(self, name: str, window: CalendarWindow) -> Balance | None:
        return self.books.get((name, window))

    def accounts(self, now: Instant) -> list[BudgetWindow]:
        return [
            BudgetWindow(
                name=name,
                budget=self.definition_by_window[name, window][0],
                unit=self.definition_by_window[name, window][1],
                window=window,
                balance=book,
                has_begun=window.start <= now,
            )
            for (name, window), book in self.books.items()
        ]


def want_line(state: BudgetState, charge: Charge, amount_micros: int) -> LineRequest:
    kept = state.kept.get(charge.name) or state.kept.get(charge.budget)
    if kept is None:
        raise unknown_budget(charge)
    return LineRequest(charge, amount_micros, kept.definition)


class MemoryBudgetDefinitions:
    def __init__(self, state: BudgetState) -> None:
        self._state = state

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        with self._state.lock:
            for definition in definitions:
                check_budget(definition)
                before = self._state.kept.get(definition.name)
                check_change(before.definition if before else None, definition)
            for definition in definitions:
                kept = declare_budget(self._state.kept.get(definition.name), definition)
                if kept is not None:
                    self._keep(kept)

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        with self._state.lock:
            before = self._state.kept.get(check_budget(definition).name)
            check_change(before.definition if before else None, definition)
            return self._keep(change_budget(before, definition, expected)).version

    def _keep(self, kept: StoredBudget) -> StoredBudget:
        definition, now = kept.definition, self._state.now_us()
        self._state.kept[definition.name] = kept
        for place, (budget, unit) in self._state.definition_by_window.items():
            name, window = place
            if definition.name in (name, budget) and window.end > now:
                self._state.definition_by_window[place] = (definition.name, unit)
                self._state.books[place] = apply_limit(self._state.books[place], definition.limit_micros)
        return kept

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        with self._state.lock:
            return [(kept.definition, kept.version) for _, kept in sorted(self._state.kept.items())]

    async def forget(self, name: str) -> bool:
        with self._state.lock:
            if name not in self._state.kept:
                return False
            places = {place for place, (budget, _) in self._state.definition_by_window.items() if budget == name}
            open_ = [
                hold
                for hold in self._state.holds.values()
                if hold.state in OPEN and any((line.name, line.window) in places for line in hold.lines)
            ]
            if any(hold.state is HoldState.DISPATCHED for hold in open_):
                raise still_held(name)
            for hold in open_:
                self._state.apply(void_hold(hold), self._state.now_us())
            del self._state.kept[name]
            self._state.drop(places)
            return True


class MemoryBudgetReads:
    def __init__(self, state: BudgetState) -> None:
        self._state = state

    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        with self._state.lock:
            now = self._state.now_us()
            wanted = [
                account
                for account in self._state.accounts(now)
                if account.window.end > (now if since is None else since)
            ]
            wanted += [
                account for account in self._untouched(now) if (account.name, account.window) not in self._state.books
            ]
            wanted = [account for account in wanted if names is None or account.name in names]
            return sorted(wanted, key=lambda account: (account.name, account.window))[:BALANCES_MAX]

    def _untouched(self, now: Instant) -> list[BudgetWindow]:
        definitions = [kept.definition for kept in self._state.kept.values()]
        return [fresh_window(definition, now) for definition in definitions if not is_template(definition.name)]

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        with self._state.lock:
            entries = [entry for entry in self._state.entries if entry.name == name]
            return entries[::-1][: max(limit, 0)]

    async def holds(self, name: str, limit: int = 100) -> list[Hold]:
        with self._state.lock:
            found = [
                hold
                for hold in self._state.holds.values()
                if hold.state in UNSETTLED and any(line.name == name for line in hold.lines)
            ]
            found.sort(key=lambda hold: (-hold.deadline, hold.id))
            return found[: max(limit, 0)]

    async def booked(self, budget: str, *, after: BookedPlace = FIRST_BOOKED, limit: int = 100) -> list[Hold]:
        with self._state.lock:
            found = [hold for hold in self._booked() if any(budget in (line.name, line.budget) for line in hold.lines)]
            found.sort(key=booked_place)
            return [hold for hold in found if booked_place(hold) > after][: max(limit, 0)]

    async def booked_for(self, prefix: str, limit: int = 100) -> list[Hold]:
        with self._state.lock:
            found = [hold for hold in self._booked() if hold.id.startswith(prefix)]
            return sorted(found, key=booked_place)[: max(limit, 0)]

    def _booked(self) -> list[Hold]:
        now = self._state.now_us()
        return [hold for hold in self._state.holds.values() if is_booked(hold, now)]

    async def reserved(self, prefix: str) -> list[str]:
        with self._state.lock:
            held = (hold.id for hold in self._state.holds.values() if hold.state is HoldState.HELD)
            return sorted(id_ for id_ in held if id_.startswith(prefix))[:RESERVED_MAX]

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        with self._state.lock:
            wants, now = [want_line(self._state, each, 0) for each in charges], self._state.now_us()
            waits = (wait_us(each.definition, each.charge.name, self._state.read, now) for each in wants)
            return max(waits, default=0)

    async def audit(self) -> Audit:
        with self._state.lock:
            accounts = self._state.accounts(self._state.now_us())
            unbalanced = tuple((each.name, each.window) for each in accounts if not is_balanced(each.balance))
            holds = sum_holds(self._state.holds.values())
            return Audit(sum_balances(accounts), sum_journal(self._state.entries), holds, unbalanced)


class MemoryLedger:
    def __init__(self, now_us: Callable[[], Instant]) -> None:
        self._state = BudgetState(now_us)
        self.definitions: BudgetDefinitions = MemoryBudgetDefinitions(self._state)
        self.reads: BudgetReads = MemoryBudgetReads(self._state)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        with self._state.lock:
            return self._hold(HoldRequest(id, tuple(lines), ttl_us, owner, dispatch))

    def _hold(self, request: HoldRequest) -> HoldAnswer:
        check_lines(request.id, request.lines, request.ttl_us)
        now, owner, dispatch = self._state.now_us(), request.owner, request.dispatch
        wants = [want_line(self._state, charge, amount_micros) for charge, amount_micros in request.lines]
        known = self._state.holds.get(request.id)
        if known is not None:
            again, step = hold_again(known, wants, self._state.read, now, owner=owner, dispatch=dispatch)
            if step is not None:
                self._state.apply(step, now)
            if again is not None:
                return again
        answer, step = place_hold(
            request.id, wants, self._state.read, now, ttl_us=request.ttl_us, owner=owner, dispatch=dispatch
        )
        if step is not None:
            self._state.apply(step, now)
        return answer

    async def dispatch(self, id: str) -> bool:
        with self._state.lock:
            hold, now = self._state.holds.get(id), self._state.now_us()
            if hold is None or not may_dispatch(hold, now):
                return False
            if hold.state is HoldState.HELD:
                self._state.holds[id] = dispatch_hold(hold, now)
            return True

    async def settle(self, id: str, actuals: Mapping[str, int], *, owner: str | None = None) -> Crossed:
        with self._state.lock:
            return self._settle(SettleHoldRequest(id, dict(actuals), owner))

    def _settle(self, request: SettleHoldRequest) -> Crossed:
        hold = self._state.holds.get(request.id)
        if hold is None:
            raise unknown_hold(request.id)
        return self._state.apply(settle_hold(hold, request.actuals, request.owner), self._state.now_us())

    async def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        with self._state.lock:
            settled = tuple(answer_or_none(self._settle, each) for each in settlements)
            return Posted(tuple(answer_or_none(self._hold, each) for each in holds), settled)

    async def correct(self, id: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        check_evidence(evidence, actuals)
        with self._state.lock:
            hold, now = self._state.holds.get(id), self._state.now_us()
            if hold is None:
                raise unknown_hold(id)
            corrections, steps = correct_hold(hold, actuals, evidence, now)
            for step in steps:
                self._state.apply(step, now)
            return corrections

    async def void(self, id: str) -> bool:
        with self._state.lock:
            hold = self._state.holds.get(id)
            if hold is not None and hold.state is HoldState.HELD:
                self._state.apply(void_hold(hold), self._state.now_us())
            return hold is not None and hold.state in (HoldState.HELD, HoldState.VOID)

    async def expire(self, limit: int) -> Expired:
        with self._state.lock:
            now = self._state.now_us()
            late = [hold for hold in self._state.holds.values() if hold.state in OPEN and hold.deadline <= now]
            late.sort(key=lambda hold: (hold.deadline, hold.id))
            late = late[: max(limit, 0)]
            crossed = tuple(each for hold in late for each in self._state.apply(self._expired(hold), now))
            captured = sum(hold.state is HoldState.DISPATCHED for hold in late)
            return Expired(len(late) - captured, captured, crossed)

    def _expired(self, hold: Hold) -> HoldStep:
        return expire_hold(hold)

    async def prune(self, keep_us: int, limit: int) -> int:
        with self._state.lock:
            before = self._state.now_us() - keep_us
            over = [
                place for place, book in self._state.books.items() if place[1].end <= before and not book.held_micros
            ]
            over.sort(key=lambda place: (place[1].end, place[0]))
            self._state.drop(set(over[: max(limit, 0)]))
            return len(over[: max(limit, 0)])
