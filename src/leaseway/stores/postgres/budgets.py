"""Budgets in PostgreSQL, in the schema of the jobs. Each method is one call of a function: one transaction.

The functions implement `domain.budgets.ledger` with the server's clock, which they read after taking their locks.
Calendars are computed by the client: it sends the windows that contain the last server time it knows, and computes them
again if the server answers that they are over. A hold that fits is one round trip; only one that does not fit looks for
later windows, which the client chooses by the rule of the domain.

`now_us` is for tests that move time: its value is then sent along as the instant.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from leaseway.domain.budgets.balances import (
    THRESHOLDS,
    Audit,
    Balance,
    BudgetWindow,
    JournalEntry,
    Sums,
    WindowKey,
    fresh_window,
)
from leaseway.domain.budgets.budget import (
    MICROS_MAX,
    BudgetDefinition,
    Charge,
    Crossed,
    HoldAnswer,
    HoldBooked,
    HoldDenied,
    HoldGranted,
    HoldUsed,
    check_budget,
    check_micros,
    is_template,
    unknown_budget,
)
from leaseway.domain.budgets.calendar_windows import CalendarWindow, window_at
from leaseway.domain.budgets.holds import LineRequest, Lines, check_lines, find_room, wait_us
from leaseway.domain.errors import StoreBusy
from leaseway.domain.ids import Instant
from leaseway.ports.ledger import BALANCES_MAX, BudgetDefinitions, BudgetReads, Expired
from leaseway.stores.postgres.connection import Connections, Record
from leaseway.stores.postgres.database import Database
from leaseway.stores.postgres.rows import encode_json
from leaseway.stores.postgres.schema import migrate, refuse_read_only

NO_ROOM = 10 * MICROS_MAX
"""More than any window can hold, including its overdraft."""
TRIES_MAX = 50
"""Tries until a hold gives up. Each lost try means that a concurrent hold succeeded."""


class KnownBudget(msgspec.Struct, frozen=True):
    """A definition, and the stamp by which the server checks that it is still in force."""

    definition: BudgetDefinition
    version: int
    stamp: int


class PostgresBudgetDefinitions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, KnownBudget] = {}

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        last = {check_budget(definition).name: definition for definition in definitions}
        await self._database.call(
            "declare_budgets", encode_json([render_definition(each) for each in last.values()]), self._database.at()
        )

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        sent = encode_json(render_definition(check_budget(definition)))
        ((version,),) = await self._database.call("change_budget", sent, expected, self._database.at())
        return int(version)

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        return [(known.definition, known.version) for known in (await self.learn()).values()]

    async def forget(self, name: str) -> bool:
        ((was_known,),) = await self._database.call("forget_budget", name)
        return bool(was_known)

    async def learn(self) -> dict[str, KnownBudget]:
        """Read the definitions again."""
        found = await self._database.read("list_budgets")
        known = [KnownBudget(msgspec.json.decode(text, type=BudgetDefinition), *rest) for text, *rest in found]
        self._known = {each.definition.name: each for each in known}
        return self._known

    async def find(self, charge: Charge) -> KnownBudget:
        for known in (self._known, await self.learn() if charge.budget not in self._known else {}):
            if found := known.get(charge.name) or known.get(charge.budget):
                return found
        raise unknown_budget(charge)


class PostgresBudgetReads:
    def __init__(self, database: Database, definitions: PostgresBudgetDefinitions) -> None:
        self._database = database
        self._definitions = definitions

    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        wanted = None if names is None else list(names)
        rows = await self._database.read("list_windows", wanted, since, BALANCES_MAX, self._database.at())
        now = rows[0][0]
        accounts = [parse_window(row) for row in rows if row[1] is not None]
        there = {(account.name, account.window) for account in accounts}
        for definition, _ in await self._definitions.all():
            if not is_template(definition.name) and (names is None or definition.name in names):
                fresh = fresh_window(definition, now)
                accounts += [] if (fresh.name, fresh.window) in there else [fresh]
        return sorted(accounts, key=lambda account: (account.name, account.window))[:BALANCES_MAX]

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        return [parse_entry(row) for row in await self._database.read("list_journal", name, max(limit, 0))]

    async def audit(self) -> Audit:
        return parse_audit(await self._database.read("audit_budgets"))


class PostgresLedger:
    def __init__(
        self, url: str, now_us: Callable[[], Instant] | None = None, *, connections: Connections | None = None
    ) -> None:
        self._database = Database(url, now_us, connections)
        self._is_owner = connections is None
        self.address = self._database.address
        self.connections = self._database.connections
        self._definitions = PostgresBudgetDefinitions(self._database)
        self.definitions: BudgetDefinitions = self._definitions
        self.reads: BudgetReads = PostgresBudgetReads(self._database, self._definitions)
        self._heard: Instant | None = None
        """The server's clock at its last answer."""

    async def open(self) -> None:
        await migrate(self.connections)
        async with self.connections.borrow() as connection:
            await refuse_read_only(connection, self.address)

    async def close(self) -> None:
        if self._is_owner:
            await self.connections.close()

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        check_lines(id, lines, ttl_us)
        later: Instant | None = None
        for _ in range(TRIES_MAX):
            knowns = [await self._definitions.find(charge) for charge, _ in lines]
            instant = later if later is not None else await self._now()
            windows = [window_at(known.definition.every, known.definition.tz, instant) for known in knowns]
            how = (id, owner, ttl_us, dispatch, later is not None)
            (row,) = await self._database.call(
                "hold_budgets", *how, *line_arguments(lines, knowns, windows), self._database.at()
            )
            answer, self._heard, *rest = row
            match answer:
                case "full":
                    wants = [LineRequest(*line, known.definition) for line, known in zip(lines, knowns, strict=True)]
                    found = await self._find_room(wants)
                    if isinstance(found, HoldDenied):
                        return found
                    later = found
                case "stale":
                    await self._definitions.learn()
                case "again":
                    later = None
                case _:
                    return parse_hold_answer(answer, *rest)
        raise StoreBusy(f"{self.address.shown}: lost to concurrent writers {TRIES_MAX} times; try again")

    async def _find_room(self, wants: Sequence[LineRequest]) -> Instant | HoldDenied | None:
        """The time at which all lines fit, as seen without locks. None: now."""
        now, books = await self._open_windows(want.charge.name for want in wants)
        found = find_room(wants, lambda name, window: books.get((name, window)), now)
        return found if isinstance(found, HoldDenied) or found > now else None

    async def _open_windows(self, names: Iterable[str]) -> tuple[Instant, dict[WindowKey, Balance]]:
        rows = await self._database.read("open_windows", list(names), self._database.at())
        self._heard = rows[0][0]
        return rows[0][0], {
            (row[1], CalendarWindow(*row[2:5])): parse_balance(row[5:]) for row in rows if row[1] is not None
        }

    async def dispatch(self, id: str) -> bool:
        ((may_call,),) = await self._database.call("dispatch_hold", id, self._database.at())
        return bool(may_call)

    async def settle(self, id: str, actuals: Mapping[str, int]) -> Crossed:
        amounts = [check_micros(f"settle {what}", micros) for what, micros in actuals.items()]
        return parse_crossed(await self._database.call("settle_hold", id, list(actuals), amounts, self._database.at()))

    async def void(self, id: str) -> bool:
        ((is_void,),) = await self._database.call("void_hold", id, self._database.at())
        return bool(is_void)

    async def expire(self, limit: int) -> Expired:
        rows = await self._database.call("expire_holds", limit, self._database.at())
        was_dispatched = {hold: was for hold, was, *_ in rows}
        captured = sum(was_dispatched.values())
        return Expired(len(was_dispatched) - captured, captured, parse_crossed([row[2:] for row in rows]))

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        knowns = [await self._definitions.find(charge) for charge in charges]
        if any(known.definition.paused for known in knowns):
            await self._definitions.learn()  # the definition says whether the budget was resumed
            knowns = [await self._definitions.find(charge) for charge in charges]
        now, books = await self._open_windows(charge.name for charge in charges)
        return max(
            (
                wait_us(known.definition, charge.name, lambda name, window: books.get((name, window)), now)
                for charge, known in zip(charges, knowns, strict=True)
            ),
            default=0,
        )

    async def prune(self, keep_us: int, limit: int) -> int:
        ((count,),) = await self._database.call("prune_budgets", keep_us, limit, self._database.at())
        return int(count)

    async def _now(self) -> Instant:
        """The server's clock as this client knows it; the windows computed from it are mostly the current ones."""
        if self._database.now_us is not None:
            return self._database.now_us()
        if self._heard is None:
            await self._open_windows(())
        assert self._heard is not None
        return self._heard


# -- rows and values ------------------------------------------------------------------------------------------------


def render_definition(definition: BudgetDefinition) -> dict[str, Any]:
    """A definition for the server. `paused` is left out unless it is set, so that a declaration does not resume."""
    sent = msgspec.structs.asdict(definition)
    return sent if definition.paused else {name: value for name, value in sent.items() if name != "paused"}


def line_arguments(lines: Lines, knowns: Sequence[KnownBudget], windows: Sequence[CalendarWindow]) -> tuple[Any, ...]:
    """names, budgets, stamps, amounts, permitted overdrafts, starts, ends, labels."""
    return (
        [charge.name for charge, _ in lines],
        [charge.budget for charge, _ in lines],
        [known.stamp for known in knowns],
        # A paused budget has no room; holds that exist are answered as usual.
        [NO_ROOM if known.definition.paused else micros for (_, micros), known in zip(lines, knowns, strict=True)],
        [known.definition.overdraft_micros for known in knowns],
        [window.start for window in windows],
        [window.end for window in windows],
        [window.label for window in windows],
    )


def parse_hold_answer(answer: str, deadline: Any, budget: Any, starts: Any, ends: Any, labels: Any) -> HoldAnswer:
    if answer == "used":
        return HoldUsed()
    if answer == "booked":
        return HoldBooked(max(starts), budget)
    return HoldGranted(tuple(map(CalendarWindow, starts, ends, labels)), deadline)


def parse_crossed(rows: Iterable[Record]) -> Crossed:
    return tuple((name, each) for name, before, after in rows for each in THRESHOLDS if before < each <= after)


def parse_audit(rows: Iterable[Record]) -> Audit:
    sums: dict[str, dict[WindowKey, Sums]] = {"windows": {}, "journal": {}, "holds": {}}
    unbalanced = []
    for side, name, start, end, label, held, spent, is_balanced in rows:
        place = (name, CalendarWindow(start, end, label))
        if held or spent:
            sums[side][place] = Sums(held, spent)
        if not is_balanced:
            unbalanced.append(place)
    return Audit(sums["windows"], sums["journal"], sums["holds"], tuple(unbalanced))


def parse_balance(row: Record) -> Balance:
    limit_micros, spent_micros, held_micros, overdraft_micros, threshold = row
    return Balance(
        limit_micros=limit_micros,
        spent_micros=spent_micros,
        held_micros=held_micros,
        overdraft_micros=overdraft_micros,
        threshold_percent=threshold,
    )


def parse_window(row: Record) -> BudgetWindow:
    now, name, budget, unit, start, end, label, *numbers = row
    window = CalendarWindow(start, end, label)
    return BudgetWindow(
        name=name,
        budget=budget,
        unit=unit,
        window=window,
        balance=parse_balance(numbers),
        has_begun=window.start <= now,
    )


def parse_entry(row: Record) -> JournalEntry:
    seq, at, hold, name, start, end, label, kind, held_micros, spent_micros, crossed = row
    return JournalEntry(
        seq=seq,
        at=at,
        hold=hold,
        name=name,
        window=CalendarWindow(start, end, label),
        kind=kind,
        held_micros=held_micros,
        spent_micros=spent_micros,
        crossed=crossed,
    )
