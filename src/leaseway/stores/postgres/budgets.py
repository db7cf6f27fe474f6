"""Budgets in PostgreSQL, in the schema of the jobs. Each method is one call of a function: one transaction.

The functions implement `domain.budgets.ledger` with the server's clock, which they read after taking their locks.
Calendars are computed by the client: it sends the windows that contain the last server time it knows, and computes them
again if the server answers that they are over. A hold that fits is one round trip; only one that does not fit looks for
later windows, which the client chooses by the rule of the domain.

`now_us` is for tests that move time: its value is then sent along as the instant.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from leaseway.domain.budgets.balances import (
    Audit,
    Balance,
    BudgetWindow,
    Evidence,
    HoldLine,
    JournalEntry,
    WindowKey,
    fresh_window,
)
from leaseway.domain.budgets.budget import (
    BudgetDefinition,
    Charge,
    Crossed,
    HoldAnswer,
    HoldDenied,
    check_budget,
    check_micros,
    is_template,
    unknown_budget,
)
from leaseway.domain.budgets.calendar_windows import CalendarWindow, window_at
from leaseway.domain.budgets.holds import (
    Correction,
    Hold,
    HoldState,
    LineRequest,
    Lines,
    check_evidence,
    check_lines,
    find_room,
    uncorrectable,
    wait_us,
)
from leaseway.domain.budgets.rebooking import FIRST_BOOKED, BookedPlace, booked_place, earlier_room
from leaseway.domain.errors import StoreBusy, UsageError
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
from leaseway.stores.postgres.budget_rows import (
    KnownBudget,
    PlacedHold,
    check_actuals,
    hold_arguments,
    line_arguments,
    parse_audit,
    parse_balance,
    parse_correction,
    parse_crossed,
    parse_entry,
    parse_hold_answer,
    parse_holds,
    parse_known,
    parse_posted,
    parse_window,
    render_definition,
    settle_arguments,
)
from leaseway.stores.postgres.connection import Connections, Record
from leaseway.stores.postgres.database import Database
from leaseway.stores.postgres.rows import encode_json
from leaseway.stores.postgres.schema import migrate, refuse_read_only

LAST = chr(0x10FFFF)
"""The last character: every text that begins with a prefix comes before the prefix with this character."""
TRIES_MAX = 50
"""Tries until a hold gives up. Each lost try means that a concurrent hold succeeded."""


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
        ((was_known,),) = await self._database.call("forget_budget", name, self._database.at())
        return bool(was_known)

    async def learn(self) -> dict[str, KnownBudget]:
        """Read the definitions again."""
        found = await self._database.read("list_budgets")
        known = only_usable(found, parse_known)
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

    async def holds(self, name: str, limit: int = 100) -> list[Hold]:
        return parse_holds(await self._database.read("list_holds", name, max(limit, 0)))

    async def booked(self, budget: str, *, after: BookedPlace = FIRST_BOOKED, limit: int = 100) -> list[Hold]:
        wanted = (budget, *after, max(limit, 0), self._database.at())
        return sorted(parse_holds(await self._database.read("list_booked", *wanted)), key=booked_place)

    async def booked_for(self, prefix: str, limit: int = 100) -> list[Hold]:
        wanted = (prefix, f"{prefix}{LAST}", max(limit, 0), self._database.at())
        return sorted(parse_holds(await self._database.read("list_booked_for", *wanted)), key=booked_place)

    async def reserved(self, prefix: str) -> list[str]:
        return [id_ for (id_,) in await self._database.read("list_reserved", prefix, f"{prefix}{LAST}", RESERVED_MAX)]

    async def audit(self) -> Audit:
        return parse_audit(await self._database.read("audit_budgets"))

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        knowns = [await self._definitions.find(charge) for charge in charges]
        if any(known.definition.paused for known in knowns):
            await self._definitions.learn()  # the definition says whether the budget was resumed
            knowns = [await self._definitions.find(charge) for charge in charges]
        now, books = await read_open_windows(self._database, (charge.name for charge in charges))
        return max(
            (
                wait_us(known.definition, charge.name, lambda name, window: books.get((name, window)), now)
                for charge, known in zip(charges, knowns, strict=True)
            ),
            default=0,
        )


async def read_open_windows(database: Database, names: Iterable[str]) -> tuple[Instant, dict[WindowKey, Balance]]:
    """The server's time, and the balances of windows that have not ended."""
    rows = await database.read("open_windows", list(names), database.at())
    return rows[0][0], {
        (row[1], CalendarWindow(*row[2:5])): parse_balance(row[5:]) for row in rows if row[1] is not None
    }


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
            wants = [LineRequest(*line, known.definition) for line, known in zip(lines, knowns, strict=True)]
            how = (id, owner, ttl_us, dispatch, later is not None)
            (row,) = await self._database.call(
                "hold_budgets", *how, *line_arguments(lines, knowns, windows), self._database.at()
            )
            answer, self._heard, *rest = row
            match answer:
                case "full":
                    found = await self._find_room(wants)
                    if isinstance(found, HoldDenied):
                        return found
                    later = found
                case "stale":
                    await self._definitions.learn()
                case "again":
                    later = None
                case "booked" if later is None and (earlier := await self._earlier_room(wants, rest)) is not None:
                    later = earlier
                case _:
                    return parse_hold_answer(answer, *rest)
        raise StoreBusy(f"{self.address.shown}: lost to concurrent writers {TRIES_MAX} times; try again")

    async def _find_room(self, wants: Sequence[LineRequest]) -> Instant | HoldDenied | None:
        """The time at which all lines fit, as seen without locks. None: now."""
        now, books = await self._open_windows(want.charge.name for want in wants)
        found = find_room(wants, lambda name, window: books.get((name, window)), now)
        return found if isinstance(found, HoldDenied) or found > now else None

    async def _earlier_room(self, wants: Sequence[LineRequest], booked: Record) -> Instant | None:
        """Where a hold fits that was booked before, if not in the current windows, which the server has tried."""
        _, _, names, *windows = booked
        amounts = {want.charge.name: want.amount_micros for want in wants}
        lines = [
            HoldLine(name=name, budget=name, unit="", window=CalendarWindow(*window), amount_micros=amounts[name])
            for name, *window in zip(names, *windows, strict=True)
        ]
        now, books = await self._open_windows(names)
        found = earlier_room(lines, wants, lambda name, window: books.get((name, window)), now)
        return found if found is not None and found > now else None

    async def _open_windows(self, names: Iterable[str]) -> tuple[Instant, dict[WindowKey, Balance]]:
        self._heard, books = await read_open_windows(self._database, names)
        return self._heard, books

    async def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        instant = await self._now()
        asked = [await self._placed(each, instant) for each in holds]
        priced = [check_actuals(each) for each in settlements]
        sent = (*settle_arguments(priced), *hold_arguments([each for each in asked if each is not None]))
        (row,) = await self._database.call("post_budgets", *sent, self._database.at())
        self._heard = row[0]
        return parse_posted(row, asked, priced)

    async def _placed(self, request: HoldRequest, instant: Instant) -> PlacedHold | None:
        """A request with the windows that contain this instant. None: it is wrong."""
        try:
            check_lines(request.id, request.lines, request.ttl_us)
            knowns = [await self._definitions.find(charge) for charge, _ in request.lines]
        except UsageError:
            return None
        return PlacedHold(
            request, knowns, [window_at(each.definition.every, each.definition.tz, instant) for each in knowns]
        )

    async def dispatch(self, id: str) -> bool:
        ((may_call,),) = await self._database.call("dispatch_hold", id, self._database.at())
        return bool(may_call)

    async def settle(self, id: str, actuals: Mapping[str, int], *, owner: str | None = None) -> Crossed:
        amounts = [check_micros(f"settle {what}", micros) for what, micros in actuals.items()]
        return parse_crossed(
            await self._database.call("settle_hold", id, list(actuals), amounts, owner, self._database.at())
        )

    async def correct(self, id: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        check_evidence(evidence, actuals)
        amounts = [check_micros(f"settle {what}", micros) for what, micros in actuals.items()]
        sent = (id, list(actuals), amounts, evidence.by, evidence.reason)
        rows = await self._database.call("correct_hold", *sent, self._database.at())
        state, corrected_by = rows[0][:2]
        corrections = tuple(parse_correction(row[2:6], actuals) for row in rows)
        is_repeated = corrected_by is not None and [row[6] for row in rows] == [
            each.after_micros for each in corrections
        ]
        if state != HoldState.CAPTURED and not is_repeated:
            raise uncorrectable(id, HoldState(state), corrected_by or "")
        return corrections

    async def void(self, id: str) -> bool:
        ((is_void,),) = await self._database.call("void_hold", id, self._database.at())
        return bool(is_void)

    async def expire(self, limit: int) -> Expired:
        rows = await self._database.call("expire_holds", limit, self._database.at())
        was_dispatched = {hold: was for hold, was, *_ in rows}
        captured = sum(was_dispatched.values())
        return Expired(len(was_dispatched) - captured, captured, parse_crossed([row[2:] for row in rows]))

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
