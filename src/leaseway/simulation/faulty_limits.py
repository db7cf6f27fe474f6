"""The links from a process to the limiter and to the ledger, with their faults."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from leaseway.domain.budgets.balances import Audit, BudgetWindow, Evidence, JournalEntry
from leaseway.domain.budgets.budget import BudgetDefinition, Charge, Crossed, HoldAnswer
from leaseway.domain.budgets.holds import Correction, Hold, Lines
from leaseway.domain.budgets.rebooking import FIRST_BOOKED, BookedPlace
from leaseway.domain.errors import LeasewayError, StoreBusy, UnknownOutcome
from leaseway.domain.ids import Instant
from leaseway.domain.limits.buckets import Granted, Notice, Verdict
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest
from leaseway.domain.tenant import Tenant
from leaseway.ports.ledger import BudgetDefinitions, BudgetReads, Expired, HoldRequest, Posted, SettleHoldRequest
from leaseway.ports.limiter import LimitDefinitions
from leaseway.simulation.faulty_link import end
from leaseway.simulation.process import Process
from leaseway.simulation.provider import Temper
from leaseway.simulation.swarm import FaultRates

if TYPE_CHECKING:
    from leaseway.simulation.limit_oracles import Meter

LATENCY_SECONDS_MAX = 0.15
SLOW_SECONDS = (0.2, 1.0)


OUTAGE_SECONDS = (0.3, 3.0)
LONG_OUTAGE_SECONDS = (3.0, 8.0)
"""In worlds whose handlers are impatient."""
IMPATIENT_SECONDS = 0.2


class LimitSettings(Struct, frozen=True):
    """The limits of the provider, the budgets, and the caps of tenants."""

    limits: Mapping[str, LimitDefinition]
    budgets: Mapping[str, BudgetDefinition]
    tenants: Mapping[str, Tenant]
    temper: Temper
    faults: FaultRates
    """Fault rates on the links to the limiter and to the ledger."""
    restart_every: float
    limiter_outage_every: float
    ledger_outage_every: float
    hold_seconds: float
    patience_seconds: float = 10.0
    """How long a handler waits for a permit, and for a ledger that cannot be reached."""
    holds_per_job: bool = False
    """One hold pays for all calls of a job."""

    @property
    def outage_seconds(self) -> tuple[float, float]:
        return LONG_OUTAGE_SECONDS if self.patience_seconds <= IMPATIENT_SECONDS else OUTAGE_SECONDS


class Outages:
    """When the limiter and the ledger cannot be reached."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._spans = {"limiter": (0.0, 0.0), "ledger": (0.0, 0.0)}

    def begin(self, place: str, seconds: float) -> None:
        """A second outage during the first one prolongs it."""
        since = self._spans[place][0] if self.is_out(place) else self._now()
        self._spans[place] = (since, self._now() + seconds)

    def end(self) -> None:
        self._spans = {place: (since, min(until, self._now())) for place, (since, until) in self._spans.items()}

    def is_out(self, place: str) -> bool:
        return self._now() < self._spans[place][1]

    @property
    def is_any_out(self) -> bool:
        return any(map(self.is_out, self._spans))

    def within(self, begun: float) -> list[tuple[str, float]]:
        """For how long each of them was out between this time and now, in its last outage."""
        now = self._now()
        return [(place, min(now, until) - max(begun, since)) for place, (since, until) in self._spans.items()]


@dataclass(slots=True)
class PortCall:
    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reply: asyncio.Future[Any]
    fault: str


class FaultyWay:
    """A link to the limiter or to the ledger; each has its own random stream and its own outages."""

    def __init__(self, meter: "Meter", process: Process, place: str) -> None:
        self._meter = meter
        self._process = process
        self._place = place
        self._chance = meter.universe.streams.of(f"{place} {process.name}")

    async def call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        reply: asyncio.Future[Any] = self._process.loop.create_future()
        if not self._process.is_dead:
            letter = PortCall(verb, args, kwargs, reply, self._draw_fault())
            if verb == "renew_calls":
                self._meter.keeps(self._process)
            self._meter.universe.loop.call_later(self._way_seconds(letter, "slow"), self._arrive, letter)
        return await reply

    def _draw_fault(self) -> str:
        faults, draw = self._meter.faults, self._chance.random()
        for fault, share in (
            ("busy", faults.busy),
            ("request lost", faults.request_lost),
            ("reply lost", faults.reply_lost),
            ("slow", faults.stall),
            ("reply slow", faults.stall),
        ):
            draw -= share
            if draw < 0:
                return fault
        return ""

    def _way_seconds(self, letter: PortCall, slow: str) -> float:
        if letter.fault == slow:
            return self._chance.uniform(*SLOW_SECONDS)
        return min(self._chance.expovariate(1 / self._meter.faults.latency_seconds), LATENCY_SECONDS_MAX)

    def _arrive(self, letter: PortCall) -> None:
        if (self._process.is_dead or letter.reply.cancelled()) and self._chance.random() < 0.5:
            return
        if letter.fault == "request lost":
            self._fail(letter, UnknownOutcome("the request was lost"))
        elif letter.fault == "busy" or self._meter.outages.is_out(self._place):
            self._fail(letter, StoreBusy("the server does not answer"))
        else:
            self._execute(letter)

    def _execute(self, letter: PortCall) -> None:
        answer: Any
        try:
            answer = self._meter.execute(self._process, self._place, letter.verb, letter.args, letter.kwargs)
        except LeasewayError as error:
            answer = error
        if letter.fault == "reply lost":
            self._fail(letter, UnknownOutcome("the reply was lost"))
        else:
            self._send_back(letter, answer)

    def _fail(self, letter: PortCall, error: Exception) -> None:
        self._meter.universe.books.reach(f"a call of the {self._place} failed")
        self._meter.universe.note(self._process.name, f"{self._place} {letter.verb}: {letter.fault or 'out'}")
        self._send_back(letter, error)

    def _send_back(self, letter: PortCall, answer: Any) -> None:
        seconds = self._way_seconds(letter, "reply slow")
        deliver = self._process.loop.call_soon_threadsafe
        self._meter.universe.loop.call_later(seconds, deliver, end, letter.reply, answer)


class FaultyLimitDefinitions:
    def __init__(self, way: FaultyWay) -> None:
        self._way = way

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        await self._way.call("definitions.declare", definitions)

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        version: int = await self._way.call("definitions.change", definition, expected=expected)
        return version

    async def all(self) -> list[tuple[LimitDefinition, int]]:
        found: list[tuple[LimitDefinition, int]] = await self._way.call("definitions.all")
        return found

    async def forget(self, name: str) -> bool:
        was_there: bool = await self._way.call("definitions.forget", name)
        return was_there


class FaultyLimiter:
    """The limiter port, over a faulty link."""

    def __init__(self, meter: "Meter", process: Process) -> None:
        self._way = FaultyWay(meter, process, "limiter")
        self.definitions: LimitDefinitions = FaultyLimitDefinitions(self._way)

    async def open(self) -> None:
        await self._way.call("open")

    async def close(self) -> None: ...

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        verdict: Verdict = await self._way.call(
            "acquire", asks, least=least, most=most, holder=holder, in_flight_us=in_flight_us
        )
        return verdict

    async def return_unused(self, granted: Granted, unused: int) -> None:
        await self._way.call("return_unused", granted, unused)

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int] = ()) -> None:
        await self._way.call("end_calls", asks, holder, count, used)

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        await self._way.call("renew_calls", asks, holder, count, in_flight_us)

    async def observe(self, notice: Notice) -> None:
        await self._way.call("observe", notice)

    async def levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        seen: tuple[Instant, list[Level]] = await self._way.call("levels", asks)
        return seen


class FaultyBudgetDefinitions:
    def __init__(self, way: FaultyWay) -> None:
        self._way = way

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        await self._way.call("definitions.declare", definitions)

    async def change(self, definition: BudgetDefinition, *, expected: int | None = None) -> int:
        version: int = await self._way.call("definitions.change", definition, expected=expected)
        return version

    async def all(self) -> list[tuple[BudgetDefinition, int]]:
        found: list[tuple[BudgetDefinition, int]] = await self._way.call("definitions.all")
        return found

    async def forget(self, name: str) -> bool:
        was_there: bool = await self._way.call("definitions.forget", name)
        return was_there


class FaultyBudgetReads:
    def __init__(self, way: FaultyWay) -> None:
        self._way = way

    async def balances(self, names: Sequence[str] | None = None, *, since: Instant | None = None) -> list[BudgetWindow]:
        accounts: list[BudgetWindow] = await self._way.call("reads.balances", names, since=since)
        return accounts

    async def journal(self, name: str, limit: int = 100) -> list[JournalEntry]:
        entries: list[JournalEntry] = await self._way.call("reads.journal", name, limit)
        return entries

    async def holds(self, name: str, limit: int = 100) -> list[Hold]:
        found: list[Hold] = await self._way.call("reads.holds", name, limit)
        return found

    async def booked(self, budget: str, *, after: BookedPlace = FIRST_BOOKED, limit: int = 100) -> list[Hold]:
        found: list[Hold] = await self._way.call("reads.booked", budget, after=after, limit=limit)
        return found

    async def booked_for(self, prefix: str, limit: int = 100) -> list[Hold]:
        found: list[Hold] = await self._way.call("reads.booked_for", prefix, limit)
        return found

    async def reserved(self, prefix: str) -> list[str]:
        ids: list[str] = await self._way.call("reads.reserved", prefix)
        return ids

    async def audit(self) -> Audit:
        audit: Audit = await self._way.call("reads.audit")
        return audit

    async def wait_us(self, charges: Sequence[Charge]) -> int:
        wait_us: int = await self._way.call("reads.wait_us", charges)
        return wait_us


class FaultyLedger:
    """The ledger port, over a faulty link."""

    def __init__(self, meter: "Meter", process: Process) -> None:
        self._way = FaultyWay(meter, process, "ledger")
        self.definitions: BudgetDefinitions = FaultyBudgetDefinitions(self._way)
        self.reads: BudgetReads = FaultyBudgetReads(self._way)

    async def hold(self, id: str, lines: Lines, ttl_us: int, *, owner: str = "", dispatch: bool = False) -> HoldAnswer:
        answer: HoldAnswer = await self._way.call("hold", id, lines, ttl_us, owner=owner, dispatch=dispatch)
        return answer

    async def dispatch(self, id: str) -> bool:
        may_call: bool = await self._way.call("dispatch", id)
        return may_call

    async def settle(self, id: str, actuals: Mapping[str, int], *, owner: str | None = None) -> Crossed:
        crossed: Crossed = await self._way.call("settle", id, actuals, owner=owner)
        return crossed

    async def post(self, holds: Sequence[HoldRequest], settlements: Sequence[SettleHoldRequest]) -> Posted:
        posted: Posted = await self._way.call("post", holds, settlements)
        return posted

    async def correct(self, id: str, actuals: Mapping[str, int], evidence: Evidence) -> tuple[Correction, ...]:
        corrections: tuple[Correction, ...] = await self._way.call("correct", id, actuals, evidence)
        return corrections

    async def void(self, id: str) -> bool:
        is_void: bool = await self._way.call("void", id)
        return is_void

    async def expire(self, limit: int) -> Expired:
        expired: Expired = await self._way.call("expire", limit)
        return expired

    async def prune(self, keep_us: int, limit: int) -> int:
        pruned: int = await self._way.call("prune", keep_us, limit)
        return pruned
