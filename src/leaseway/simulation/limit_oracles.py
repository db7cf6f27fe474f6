"""Limits, budgets and tenants of one simulated world: the limiter and the ledger, their faults, and the invariants.

L1  no window has more arrivals at the provider than the limit allows         provider.py
L2  no more calls are in flight than the limit allows                         provider.py
L3  no call is sent while the provider has asked clients to wait              provider.py
L5  no call is sent while a circuit breaker is open, and one as its probe     provider.py
L4  the id of a hold stands for one call, or for the calls of one delivery    provider.py
B1  the true cost of calls stays within the budget of each window
B2  at the end nothing is held, and no balance is lower than the true cost
T1  no more jobs of a tenant run at the same time than its cap allows
T2  no more jobs of a tenant start in a window than its cap allows
B3  a worker that lives settles every call that it has made, however long the ledger was away
W1  waiting costs no attempt and fails no job
W2  no handler waits for a limiter or a ledger that cannot be reached longer than its patience
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from random import Random
from typing import Any

from leaseway.domain.budgets.balances import Evidence
from leaseway.domain.budgets.budget import HoldBooked, HoldDenied, HoldGranted
from leaseway.domain.budgets.calendar_windows import CalendarWindow
from leaseway.domain.budgets.holds import OPEN, HoldState
from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Token
from leaseway.domain.job import State
from leaseway.domain.limits.buckets import Granted, Wait
from leaseway.domain.outcome import Deferred
from leaseway.domain.tenant import Tenant
from leaseway.simulation.faulty_limits import LimitSettings, Outages
from leaseway.simulation.process import HERE, Process
from leaseway.simulation.promises import LEASED, Commit, Run
from leaseway.simulation.provider import SimulatedProvider, Temper
from leaseway.simulation.swarm import CALM, FaultRates
from leaseway.simulation.trace import brief_answer, brief_call
from leaseway.simulation.world import SimulatedWorld
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.sqlite.database import statements
from leaseway.virtual_time.loop import run_now
from leaseway.worker.context import Context
from leaseway.worker.settle import Attempt

WAITS_MAX = 3
"""A call waits for the limiter, then for the ledger, then for the limiter again if its permit has expired."""
ANSWER_SECONDS = 2.5
"""The longest time that calls on their way prolong a wait."""
IN_FLIGHT_GRACE_SECONDS = 4.0
UNKEPT_SECONDS = 0.3
"""A renewal of in-flight calls that takes longer than this is late."""
IDLE_SECONDS = 1.5
RECOVERY_SECONDS = 6.0
"""For this time after a fault, a process may still wait for a reply or before a retry."""
HOUR_US = 3_600 * SECOND_US
SKIPS_MAX = 20
LOST_SECONDS_MIN = 3.0
"""Between two restarts that lose all state, in which workers must succeed to declare their definitions again."""


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
        self.provider = SimulatedProvider(
            universe.loop, chance, universe.judge, temper, terms.limits, self.charged, shares_holds=terms.holds_per_job
        )
        self.outages = Outages(universe.loop.time)
        self._calm_at = float("inf")
        self._holders: dict[str, Process] = {}
        """By hold: the process that placed it."""
        self._true_micros: dict[str, int] = defaultdict(int)
        """By hold: what the provider has charged."""
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
        capped = [tenant.definition() for tenant in self.terms.tenants.values() if tenant.is_capped]
        run_now(limiter.definitions.declare(capped))
        return limiter

    def agree(self) -> None:
        """Declares tenants before any job is submitted."""
        store = self.universe.store(statements())
        run_now(store.open())
        for tenant in self.terms.tenants.values():
            run_now(store.tenants.set(tenant))

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
            seconds = chance.uniform(*self.terms.outage_seconds)
            self.outages.begin(place, seconds)
            self.universe.books.reach(f"the {place} was out for a while")
            self.universe.note(place, f"is out for {seconds:.3f} s")

        return strike

    @contextmanager
    def waiting(self, process: Process) -> Iterator[None]:
        """W2: a handler waits for the permit and the hold of one call."""
        begun = self.universe.loop.time()
        try:
            yield
        except Deferred:
            if self.outages.is_any_out:
                self.universe.books.reach("a handler gave up waiting in an outage")
            raise
        finally:
            most = WAITS_MAX * self.terms.patience_seconds + ANSWER_SECONDS
            for place, waited in self.outages.within(begun):
                if waited > most and process.is_up and process.frozen_until < begun:
                    self._accuse(f"W2 {process.name} waited {waited:.1f} s for the {place}, and may wait {most:.1f} s")

    def calm(self) -> None:
        self.faults = FaultRates(latency_seconds=self.faults.latency_seconds)
        self.provider.temper = Temper()
        self.outages.end()
        self._calm_at = self.universe.loop.time()
        self._idle_since = self.universe.loop.time() + RECOVERY_SECONDS

    # -- calls -----------------------------------------------------------------------------------------------------

    def execute(self, process: Process, place: str, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute one call at one instant, and record the situations that it reaches."""
        for settled in args[1] if verb == "post" else ():
            self._note_settle(settled.id)
        answer = run_now(attrgetter(verb)(self.limiter if place == "limiter" else self.ledger)(*args, **kwargs))
        self.universe.note(process.name, f"{place} {verb} {brief_call(verb, args)} -> {brief_answer(answer)}")
        see = getattr(self, f"_saw_{verb.rpartition('.')[2]}", None)
        if see is not None:
            see(process, args, answer)
        return answer

    def _saw_acquire(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        match answer:
            case Wait(why=why):
                is_counted = "concurrency" in why
                self.universe.books.reach("a concurrency limit was reached" if is_counted else "a limit had no permit")
            case Granted(count=count) if count > 1:
                self.universe.books.reach("permits were taken in advance")

    def _saw_return_unused(self, *_: Any) -> None:
        self.universe.books.reach("unused permits were returned")

    def _saw_renew_calls(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        if self._is_unkept(process):
            self._unkept_until[process] = self.universe.loop.time()
        self._unkept.pop(process, None)

    def _saw_observe(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        (notice,) = args
        self.provider.told(notice)

    def _saw_hold(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        id_, lines, _ = args
        match answer:
            case HoldGranted(windows=windows):
                self._holders[id_] = process
                if self.ledger._state.holds[id_].owner != id_.split(":")[-2]:
                    self.universe.books.reach("a later delivery used a hold that was reserved before")
                self._windows[id_] = {charge.name: window for (charge, _), window in zip(lines, windows, strict=True)}
            case HoldBooked():
                self.universe.books.reach("a cost was booked in a later window")
            case HoldDenied():
                self.universe.books.reach("a budget denied a hold")

    def _saw_post(self, process: Process, args: tuple[Any, ...], answer: Any) -> None:
        for request, each in zip(args[0], answer.holds, strict=True):
            self._saw_hold(process, (request.id, request.lines, request.ttl_us), each)
        if len(args[0]) + len(args[1]) > 1:
            self.universe.books.reach("several calls shared one transaction of the ledger")

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
        self._true_micros[hold] += micros
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
        return self._is_unkept(process) or max(self._unkept_until.get(process, -1.0), process.frozen_until) >= since

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
        """If no worker is active and all jobs wait for the next window, skip to it. Returns the seconds skipped."""
        universe, now = self.universe, self.universe.loop.time()
        is_busy = self.provider.under_way or any(each.process.is_up for each in self._sittings)
        is_leased = any(row.state == LEASED for row in universe.table.rows.values())
        if is_busy or is_leased or self.has_recovering:
            self._idle_since = max(self._idle_since, now)
        is_idle = now - self._idle_since >= IDLE_SECONDS and not universe.table.starts_soon(universe.now_us())
        if not is_idle or self.skips >= SKIPS_MAX:
            return 0.0
        self.skips += 1
        return self.skip_to(universe.now_us() // HOUR_US * HOUR_US + HOUR_US - SECOND_US)

    @property
    def has_recovering(self) -> bool:
        """Whether a process may not have recovered from a fault.

        No process runs while time is skipped. A process that holds something then would lose it, like a frozen one.
        """
        now = self.universe.loop.time()
        up = (process for process in self.universe.processes if process.is_up)
        return any(not process.was_swift(now - RECOVERY_SECONDS, now) for process in up)

    def skip_to(self, instant: int) -> float:
        seconds = max(instant - self.universe.now_us(), 0) / SECOND_US
        self.universe.loop.skip(seconds)
        self._idle_since = self.universe.loop.time()  # the skipped time does not count as idle
        self.universe.note("world", f"{seconds:.3f} s pass")
        return seconds

    def last_deadline(self) -> int:
        return max((hold.deadline for hold in self.ledger._state.holds.values() if hold.state in OPEN), default=0)

    def conclude(self) -> None:
        """B2: the balances at the end."""
        open_ = [hold.id for hold in self.ledger._state.holds.values() if hold.state in OPEN]
        if open_:
            self._accuse(f"B2 still held, and no worker settles or expires it: {', '.join(open_)}")
        self._correct_captured()
        booked = {(each.name, each.window): each.balance for each in run_now(self.ledger.reads.balances(since=0))}
        for place, micros in self._spent.items():
            if booked[place].spent_micros < micros:
                says = f"{place[0]} {place[1].label} says {booked[place].spent_micros}"
                self._accuse(f"B2 {says}, and {micros} were spent")
        for wrong in run_now(self.ledger.reads.audit()).wrong():
            self._accuse(f"B2 {wrong}: books, journal and holds do not agree")

    def _correct_captured(self) -> None:
        """An operator corrects what was captured by the provider's records. Another one tries to correct it again."""
        for hold in [each.id for each in self.ledger._state.holds.values() if each.state is HoldState.CAPTURED]:
            holder = self._holders[hold]
            if hold in self.provider.lines and not holder.is_dead and (holder.draining_at or inf) > self._calm_at:
                self._accuse(f"B3 {hold} was captured, though {holder.name} lives and knows its cost")
            self.universe.books.reach("a captured hold was corrected")
            run_now(self.ledger.correct(hold, {"usd": self._true_micros.get(hold, 0)}, Evidence("operator")))
            with suppress(BadValue):
                run_now(self.ledger.correct(hold, {"usd": 0}, Evidence("another")))

    def _accuse(self, wrong: str) -> None:
        self.universe.judge.accuse([wrong])


METER: ContextVar[Meter] = ContextVar("METER")
