"""Limits, budgets and tenants of one simulated world: the limiter and the ledger, their faults, and the invariants.

L1  no window has more arrivals at the provider than the limit allows         provider.py
L2  no more calls are in flight than the limit allows                         provider.py
L3  no call is sent while the provider has asked clients to wait              provider.py
L4  the id of a hold stands for one call                                      provider.py
B1  the true cost of calls stays within the budget of each window
B2  at the end nothing is held, and no balance is lower than the true cost
T1  no more jobs of a tenant run at the same time than its cap allows
T2  no more jobs of a tenant start in a window than its cap allows
W1  waiting costs no attempt and fails no job
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from typing import Any

from msgspec import Struct

from leaseway.domain.budgets.budget import BudgetDefinition, HoldBooked, HoldDenied, HoldGranted, HoldUsed
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import OPEN
from leaseway.domain.budgets.holds import HoldState as HoldState
from leaseway.domain.ids import SECOND_US, Token
from leaseway.domain.job import State
from leaseway.domain.limits.buckets import Granted, Wait
from leaseway.domain.limits.limit import LimitDefinition
from leaseway.domain.tenant import Tenant
from leaseway.simulation.loop import run_now
from leaseway.simulation.process import HERE, Process
from leaseway.simulation.promises import LEASED, Commit, Run
from leaseway.simulation.provider import SimulatedProvider, Temper
from leaseway.simulation.swarm import CALM, FaultRates
from leaseway.simulation.world import SimulatedWorld
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.worker.attempt import Attempt
from leaseway.worker.context import Context

OUTAGE_SECONDS = (0.3, 3.0)
IN_FLIGHT_GRACE_SECONDS = 4.0
UNKEPT_SECONDS = 0.3
"""A renewal of in-flight calls that takes longer than this is late."""
IDLE_SECONDS = 1.5
HOUR_US = 3_600 * SECOND_US
SKIPS_MAX = 20
LOST_SECONDS_MIN = 3.0
"""The minimum time between two restarts that lose all state: workers that declare their definitions again need one
success in between.
"""


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


@dataclass(slots=True, eq=False)
class Sitting:
    """One running handler, as its tenant's cap counts it."""

    process: Process
    ctx: Context
    run: Run
    started_at: float


class Meter:
    def __init__(self, universe: SimulatedWorld, terms: LimitSettings) -> None:
        self.universe = universe
        self.terms = terms
        self.faults = terms.faults if universe.is_faulty else CALM
        self.limiter = self._new_limiter()
        self.ledger = MemoryLedger(universe.now_us)
        temper = terms.temper if universe.is_faulty else Temper()
        chance = universe.streams.of("provider")
        self.provider = SimulatedProvider(universe.loop, chance, universe.judge, temper, terms.limits, self.charged)
        self._out_until = {"limiter": 0.0, "ledger": 0.0}
        self._windows: dict[str, dict[str, CalendarWindow]] = {}
        """By hold and by budget: the window in which the ledger booked it."""
        self._spent: dict[tuple[str, CalendarWindow], int] = defaultdict(int)
        self._sittings: list[Sitting] = []
        self._unkept: dict[Process, float] = {}
        """Workers whose renewals of in-flight calls fail, and since when."""
        self._unkept_until: dict[Process, float] = {}
        self._left_at: dict[Token, float] = {}
        """When a claim was sent for the first time."""
        self._starts: dict[str, list[float]] = defaultdict(list)
        self._idle_since = 0.0
        self._lost_at = float("-inf")
        self.skips = 0

    def _new_limiter(self) -> MemoryLimiter:
        limiter = MemoryLimiter(self.universe.now_us, in_flight_grace_us=int(IN_FLIGHT_GRACE_SECONDS * SECOND_US))
        run_now(
            limiter.definitions.declare(
                [tenant.definition() for tenant in self.terms.tenants.values() if tenant.is_capped]
            )
        )
        return limiter

    def agree(self) -> None:
        """Declares tenants before any job is submitted."""
        store = SqliteStore(self.universe.path, self.universe.now_us, durable=False, inline=True)
        run_now(store.open())
        for tenant in self.terms.tenants.values():
            run_now(store.tenants.set(tenant))
        run_now(store.close())

    # -- faults ----------------------------------------------------------------------------------------------------

    async def rage(self) -> None:
        """Runs until cancelled."""
        terms, streams = self.terms, self.universe.streams
        async with asyncio.TaskGroup() as group:
            for purpose, every, strike in (
                ("restart", terms.restart_every, self._restart),
                ("limiter", terms.limiter_outage_every, self._outage("limiter")),
                ("ledger", terms.ledger_outage_every, self._outage("ledger")),
            ):
                if every:
                    group.create_task(self._keep_striking(streams.of(f"meter {purpose}"), every, strike))

    async def _keep_striking(self, chance: Random, every: float, strike: Callable[[Random], None]) -> None:
        while True:  # until cancelled
            await asyncio.sleep(chance.expovariate(1 / every))
            strike(chance)

    def _restart(self, chance: Random) -> None:
        """Either all state is lost, or the state is there but marked unsafe."""
        self.universe.books.reach("the limiter was restarted")
        self.universe.note("limiter", "is restarted")
        self.provider.forgotten()
        now = self.universe.loop.time()
        if chance.random() < 0.5 and now - self._lost_at > LOST_SECONDS_MIN:
            self._lost_at = now
            self.limiter = self._new_limiter()
        else:
            self.limiter.fence()

    def _outage(self, place: str) -> Callable[[Random], None]:
        def strike(chance: Random) -> None:
            seconds = chance.uniform(*OUTAGE_SECONDS)
            self._out_until[place] = self.universe.loop.time() + seconds
            self.universe.books.reach(f"the {place} was out for a while")
            self.universe.note(place, f"is out for {seconds:.3f} s")

        return strike

    def is_out(self, place: str) -> bool:
        return self.universe.loop.time() < self._out_until[place]

    def calm(self) -> None:
        self.faults = FaultRates(latency_seconds=self.faults.latency_seconds)
        self.provider.temper = Temper()
        self._out_until = dict.fromkeys(self._out_until, 0.0)

    # -- calls -----------------------------------------------------------------------------------------------------

    def execute(self, process: Process, place: str, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute one call at one instant, and record the situations that it reaches."""
        if (place, verb) == ("ledger", "settle"):
            self._note_settle(args[0])
        answer = run_now(attrgetter(verb)(self.limiter if place == "limiter" else self.ledger)(*args, **kwargs))
        self.universe.note(process.name, f"{place} {verb} {brief(verb, args)} -> {told(answer)}")
        see = getattr(self, f"_saw_{verb}", None)
        if see is not None:
            see(process, args, answer)
        return answer

    def _saw_acquire(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        match answer:
            case Wait(why=why):
                self.universe.books.reach(
                    "a concurrency limit was reached" if "concurrency" in why else "a limit had no permit"
                )
            case Granted(count=count) if count > 1:
                self.universe.books.reach("permits were taken in advance")

    def _saw_return_unused(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        self.universe.books.reach("unused permits were returned")

    def _saw_renew_calls(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        if self._is_unkept(process):
            self._unkept_until[process] = self.universe.loop.time()
        self._unkept.pop(process, None)

    def _saw_observe(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        (notice,) = args
        if notice.throttled and notice.retry_after_us is not None:
            self.universe.books.reach("a refusal was told to everybody")
            self.provider.told(notice.name, notice.limit, notice.retry_after_us)

    def _saw_hold(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        id_, lines, _ = args
        match answer:
            case HoldGranted(windows=windows):
                self._windows[id_] = {charge.name: window for (charge, _), window in zip(lines, windows, strict=True)}
            case HoldBooked():
                self.universe.books.reach("a cost was booked in a later window")
            case HoldUsed():
                self.universe.books.reach("a call had been made under the id of a hold")
            case HoldDenied():
                self.universe.books.reach("a budget denied a hold")

    def _saw_wait_us(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        if answer:
            self.universe.books.reach("a gate was shut because a budget is used up")

    def _saw_expire(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        if answer.captured:
            self.universe.books.reach("a hold was captured")

    def _note_settle(self, id_: str) -> None:
        hold = self.ledger._state.holds.get(id_)
        if hold is not None and hold.state is HoldState.CAPTURED:
            self.universe.books.reach("a captured hold was settled late")
        if hold is not None and hold.state is HoldState.SETTLED:
            self.universe.books.reach("a hold was settled twice")

    # -- budgets ----------------------------------------------------------------------------------------------------

    def charged(self, hold: str, micros: int) -> None:
        """B1: record the true cost of a call."""
        for charge, _ in self.provider.lines[hold]:
            window = self._windows[hold][charge.name]
            self._spent[charge.name, window] += micros
            most = self.terms.budgets[charge.budget].most_micros
            if (spent := self._spent[charge.name, window]) > most:
                self._accuse(f"B1 {spent} micros of {most} are spent in {charge.name} {window.label}")

    # -- tenants ----------------------------------------------------------------------------------------------------

    @contextmanager
    def at_work(self, ctx: Context, run: Run) -> Iterator[None]:
        """A handler starts."""
        sitting = Sitting(HERE.get(), ctx, run, self.universe.loop.time())
        self._sittings.append(sitting)
        tenant = self.terms.tenants.get(ctx.tenant)
        if tenant is not None and not sitting.process.is_dead:
            self._check_sittings(tenant)
            self._check_starts(tenant, self._left_at[ctx._attempt.lease.token])
        try:
            yield
        finally:
            self._sittings.remove(sitting)

    def halted(self, running: Attempt) -> None:
        for sitting in self._sittings:
            if sitting.ctx._attempt is running:
                sitting.run.heard_at = sitting.run.heard_at or self.universe.loop.time()

    def _check_sittings(self, tenant: Tenant) -> None:
        """T1: handlers whose process could not renew its in-flight calls do not count."""
        if tenant.concurrency is not None:
            others = [each for each in self._sittings if each.ctx.tenant == tenant.name and not self._is_excused(each)]
            if len(others) == tenant.concurrency:
                self.universe.books.reach("a tenant ran as many jobs as it may")
            if len(others) > tenant.concurrency:
                where = ", ".join(f"{each.ctx.id[-6:]} in {each.process.name}" for each in others)
                self._accuse(f"T1 {len(others)} jobs of {tenant.name} run, {tenant.concurrency} may: {where}")

    def _is_excused(self, sitting: Sitting) -> bool:
        process, since = sitting.process, sitting.started_at - IN_FLIGHT_GRACE_SECONDS
        if not process.is_up or sitting.ctx._attempt.stop is not None:
            return True
        was_unkept = self._is_unkept(process) or self._unkept_until.get(process, -1.0) >= since
        return was_unkept or process.frozen_until >= since

    def keeps(self, process: Process) -> None:
        """A renewal of in-flight calls is sent."""
        self._unkept.setdefault(process, self.universe.loop.time())

    def _is_unkept(self, process: Process) -> bool:
        since = self._unkept.get(process)
        return since is not None and self.universe.loop.time() - since > UNKEPT_SECONDS

    def sent(self, verb: str, call: Any) -> None:
        if verb == "exchange" and call.wants is not None:
            self._left_at.setdefault(call.wants.token, self.universe.loop.time())

    def saw(self, commit: Commit) -> None:
        """W1, at an exchange."""
        for settlement in commit.accepted:
            if settlement.failure is not None:
                self._accuse(f"W1 job {settlement.id} failed: {settlement.failure.code}: {settlement.failure.message}")
            if settlement.state is State.PENDING and not settlement.returns_attempt:
                self._accuse(f"W1 job {settlement.id} has lost an attempt by waiting")
            if settlement.state is State.PENDING and (settlement.delay_us or settlement.run_at):
                self.universe.books.reach("a job waited in its lane for its limit or its budget")

    def _check_starts(self, tenant: Tenant, left_at: float) -> None:
        """T2: a job starts. It counts from the moment at which its claim was sent, because a claim may be delayed."""
        starts = self._starts[tenant.name]
        starts.append(left_at)
        for rate in tenant.starts:
            seconds = rate.window_us / SECOND_US
            most = max(sum(at - seconds + 1e-6 < each <= at for each in starts) for at in starts)
            if most == rate.count:
                self.universe.books.reach("a tenant started as many jobs as it may")
            if most > rate.count:
                self._accuse(f"T2 {most} jobs of {tenant.name} started in one window; agreed were {rate}")

    # -- the end ----------------------------------------------------------------------------------------------------

    def pass_time(self) -> float:
        """If no worker is active and jobs wait for the next window, advance the clock to it. Returns the seconds
        skipped.
        """
        universe, now = self.universe, self.universe.loop.time()
        is_busy = self.provider.under_way or any(each.process.is_up for each in self._sittings)
        if is_busy or any(row.state == LEASED for row in universe.table.rows.values()):
            self._idle_since = now
        if now - self._idle_since < IDLE_SECONDS or self.skips >= SKIPS_MAX:
            return 0.0
        self.skips += 1
        self._idle_since = now
        return self.skip_to(universe.now_us() // HOUR_US * HOUR_US + HOUR_US - SECOND_US)

    def skip_to(self, instant: int) -> float:
        seconds = max(instant - self.universe.now_us(), 0) / SECOND_US
        self.universe.loop.skip(seconds)
        self.universe.note("world", f"{seconds:.3f} s pass")
        return seconds

    def last_deadline(self) -> int:
        return max((hold.deadline for hold in self.ledger._state.holds.values() if hold.state in OPEN), default=0)

    def conclude(self) -> None:
        """B2: the balances at the end."""
        open_ = [hold.id for hold in self.ledger._state.holds.values() if hold.state in OPEN]
        if open_:
            self._accuse(f"B2 still held, and no worker settles or expires it: {', '.join(open_)}")
        booked = {(each.name, each.window): each.balance for each in run_now(self.ledger.reads.balances(since=0))}
        for place, micros in self._spent.items():
            if booked[place].spent_micros < micros:
                name, window = place
                self._accuse(f"B2 {name} {window.label} says {booked[place].spent_micros}, and {micros} were spent")
        for wrong in run_now(self.ledger.reads.audit()).wrong():
            self._accuse(f"B2 {wrong}: books, journal and holds do not agree")

    def _accuse(self, wrong: str) -> None:
        self.universe.judge.accuse([wrong])


METER: ContextVar[Meter] = ContextVar("METER")


def told(answer: Any) -> str:
    """A short form of an answer, for the trace."""
    match answer:
        case Granted(count=count):
            return f"{count}"
        case Wait(wait_us, name, why):
            return f"wait {wait_us} us, {name}: {why}"
        case HoldGranted(windows=windows):
            return f"held {windows[0].label}"
        case int() | None | HoldBooked() | HoldUsed() | HoldDenied():
            return str(answer)
    return ""


def brief(verb: str, args: tuple[Any, ...]) -> str:
    match verb:
        case "acquire" | "end_calls" | "renew_calls" | "levels":
            return " ".join(f"{ask.name}*{ask.cost}" for ask in args[0]) + "".join(f" {each}" for each in args[1:])
        case "hold" | "settle" | "tell":
            return str(args[0])
        case "give_back":
            return f"{' '.join(ask.name for ask in args[0].asks)} {args[1]}"
    return ""
