"""A store, a limiter and a ledger in memory, with the clock of a loop in virtual time.

Workers that run in this world are the real ones. A run over days takes milliseconds to seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar

from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import Closure, closed_by_pauses
from leaseway.domain.explain.reasons import explain
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import Job
from leaseway.domain.limits.buckets import Verdict
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.limits.validation import SPAN_US_MAX
from leaseway.domain.schedule import upcoming_fire
from leaseway.ports.provider_requests import HttpTransport
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.memory.state import Place, build_job, count_lane
from leaseway.stores.memory.store import MemoryNotifications, MemoryStore
from leaseway.virtual_time.loop import run_now
from leaseway.virtual_time.skipping_loop import SkippingLoop, outside_of_loops
from leaseway.worker.environment import Environment, housekeeping
from leaseway.worker.explain_waits import closed_budgets, closed_gates, closed_limits
from leaseway.worker.lease_renewal import LeaseRenewal, renew_in_loop
from leaseway.worker.settle import Attempt

T = TypeVar("T")

NAMED_MAX = 5
"""How many jobs an error names."""


class VirtualWorld:
    """The clock of a run, and the loop in which its workers run."""

    def __init__(self, start_us: Instant, at_most_seconds: float, *, starts_full: bool = False) -> None:
        """`starts_full`: limits start as in a new store."""
        self.start_us = start_us
        self._at_most_seconds = at_most_seconds
        self.loop = SkippingLoop()
        self.loop.next_event, self.loop.on_skip = self._seconds_to_event, self._renew_leases
        self.loop.is_thread_busy = self._is_thread_busy
        self._renewals: list[LeaseRenewal] = []
        self.store = MemoryStore(self.now_us)
        self.store.notifications = HousekeepingNotifications(self.store.state)
        self.limiter = PatientLimiter(self.now_us, starts_full=starts_full)
        self.ledger = MemoryLedger(self.now_us)

    def now_us(self) -> Instant:
        return self.start_us + int(self.loop.time() * SECOND_US)

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, run in virtual time: `asyncio.sleep` and timeouts cost nothing."""
        self.loop.restart()
        with outside_of_loops():
            return self.loop.run_until_complete(self._bounded(main))

    async def _bounded(self, main: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._at_most_seconds) as scope:
                return await main
        except TimeoutError as error:
            if not scope.expired():
                raise
            days = self._at_most_seconds / 86_400
            raise TimeoutError(f"not done after {days:g} days of virtual time{self._unfinished()}") from error

    def close(self) -> None:
        """Cancel the tasks that a test left behind."""
        with outside_of_loops():
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    # -- the ports -----------------------------------------------------------------------------------------------

    def environment(self, world: Environment, make_transport: Callable[[], HttpTransport], seed: int) -> Environment:
        """The ports of an app, with those of this world instead of its own."""
        return world._replace(
            store=self.store,
            limiter=self.limiter,
            ledger=self.ledger,
            clock=self,
            chance=Random(seed),
            make_transport=make_transport,
            run_renewal=self._run_renewal,
        )

    def monotonic(self) -> float:
        return self.loop.time()

    def wall_us(self) -> Instant:
        return self.now_us()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def _run_renewal(self, renewal: LeaseRenewal) -> AsyncIterator[None]:
        """Everything that a worker does inside is housekeeping, except its handlers, whose context is older."""
        self._renewals.append(renewal)
        try:
            with housekeeping():
                async with renew_in_loop(renewal):
                    yield
        finally:
            self._renewals.remove(renewal)

    # -- what the loop asks -----------------------------------------------------------------------------------------

    def _seconds_to_event(self) -> float | None:
        """When the next job is due, a gate opens or a schedule fires. Instants that have passed do not count: no worker
        that runs now acts on them."""
        now, state, closed = self.now_us(), self.store.state, run_now(self._closed_gates())
        fires = [upcoming_fire(row) for row in run_now(self.store.schedules.all())]
        instants = [row.run_at for row in state.at(Place.SCHEDULED)] + [fire for fire in fires if fire is not None]
        # A worker may have closed a lane for longer than necessary: a moment before its limit opened.
        shut = [lane for lane in state.lanes.values() if Gate(lane.needs, lane.tenant) not in closed]
        instants += [lane.closed_until for lane in shut if lane.closed_until is not None and lane.places[Place.READY]]
        waits = [instant - now for instant in instants] + [closed_us(shuts) for shuts in closed.values()]
        waits += [round((each.waits_until - self.monotonic()) * SECOND_US) for each in self._running()]
        # Two microseconds later: clocks are rounded down, and a request that comes too early gets a later turn.
        return min(((wait + 2) / SECOND_US for wait in waits if wait > 0), default=None)

    async def _closed_gates(self) -> dict[Gate, list[Closure]]:
        lanes = self.store.state.lanes.values()
        gates = [Gate(lane.needs, lane.tenant) for lane in lanes if lane.places[Place.READY]]
        ask_budgets = partial(closed_budgets, self.ledger, now=self.now_us())
        return await closed_gates(self.store.tenants, gates, partial(closed_limits, self.limiter), ask_budgets)

    def _renew_leases(self, seconds: float) -> None:
        """What the worker would have done in the time that was skipped."""
        for row in self.store.state.at(Place.LEASED):
            row.until += round(seconds * SECOND_US)
        for renewal in self._renewals:
            for attempt in renewal.held():
                attempt.renewed_at += seconds

    def _is_thread_busy(self) -> bool:
        started = (each for each in self._running() if each.is_sync and each.is_started)
        return any(not each.has_ended and not each.waits_for_loop for each in started)

    def _running(self) -> list[Attempt]:
        return [attempt for renewal in self._renewals for attempt in renewal.running.values()]

    # -- errors -----------------------------------------------------------------------------------------------------

    def _unfinished(self) -> str:
        """Which jobs are left, and why."""
        rows = list(self.store.state.at(Place.READY, Place.SCHEDULED, Place.LEASED))
        closed = run_now(self._closed_gates())
        jobs = [build_job(row) for row in rows[:NAMED_MAX]]
        lines = [f"job {job.id} ({job.kind}): {self._reason(job, closed)}" for job in jobs]
        more = [f"and {len(rows) - NAMED_MAX:,} more"] if len(rows) > NAMED_MAX else []
        return "".join(f"\n  {line}" for line in lines + more)

    def _reason(self, job: Job, closed: dict[Gate, list[Closure]]) -> str:
        lane = self.store.state.lanes.get((job.queue, job.tenant, job.needs))
        pauses = closed_by_pauses(job.queue, job.tenant, self.store.state.pauses.values())
        shuts = [*pauses, *closed.get(Gate(job.needs, job.tenant), [])]
        return explain(job, None if lane is None else count_lane(lane), self.now_us(), shuts).text


def closed_us(shuts: list[Closure]) -> int:
    """How long a gate stays closed; 0: not known, or until somebody opens it."""
    if any(shut.advice is not None for shut in shuts):
        return 0
    return max(shut.wait_us or 0 for shut in shuts)


class HousekeepingNotifications(MemoryNotifications):
    """A wait for a notification polls. Time does not stop for it."""

    async def wait(self, seconds: float) -> bool:
        with housekeeping():
            return await super().wait(seconds)


class PatientLimiter(MemoryLimiter):
    """Counts calls as in flight until they end: the worker cannot report them in the time that is skipped."""

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        return await super().acquire(asks, least=least, most=most, holder=holder, in_flight_us=SPAN_US_MAX)

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        await super().renew_calls(asks, holder, count, SPAN_US_MAX)
