"""submit ─► store ─► [exchange ─► run handler ─► settle ─► exchange …]

The worker's loop. Each turn settles finished jobs and claims new ones in one exchange; between turns the loop waits
until there is something to send. Beside it run:

    slots           the handlers of claimed jobs
    settlements     outcomes that wait for the next exchange
    lease renewal   extends leases, in a thread of its own
    admission       takes permits for jobs that need limits or budgets
    poll            looks for work while slots are free
    maintenance     prunes finished jobs, expires holds, fires schedules
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from msgspec.structs import replace

from leaseway.domain.errors import LeasewayError, TransientError, UsageError
from leaseway.domain.exchange import CLAIM_MAX, Admit, Exchange, ExchangeReply, Wants
from leaseway.domain.ids import JobId
from leaseway.domain.job import Lease
from leaseway.domain.kind import Kind, declared_budgets, declared_limits
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.schedule import Schedule
from leaseway.domain.workers import Heartbeat
from leaseway.worker import maintenance
from leaseway.worker.admission import Admission
from leaseway.worker.definitions import declare_definitions
from leaseway.worker.environment import (
    Environment,
    Prefetch,
    SwallowedCancels,
    WorkerSettings,
    WorkerSummary,
    describe_worker,
    emit_unavailable,
    jitter,
    pause,
    running_beside,
)
from leaseway.worker.lease_renewal import Heartbeats, LeaseRenewal, renew_in_thread
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.poll import Poll
from leaseway.worker.run_handler import HandlerRunner, read_origins
from leaseway.worker.settle import Attempt, Settlements, Stop
from leaseway.worker.slots import Claim, Slots

CANCEL_CHECK_SECONDS = 1.0
"""While jobs run, the worker sends an exchange at least this often, to learn which of them were cancelled."""
STUBBORN_SECONDS = 5.0
"""How long a handler may resist being stopped, and a last settlement may take, before the worker leaves anyway."""

RunRenewal = Callable[[LeaseRenewal], AbstractAsyncContextManager[None]]


class Worker:
    def __init__(
        self,
        environment: Environment,
        kinds: Mapping[str, Kind],
        settings: WorkerSettings,
        schedules: tuple[Schedule, ...] = (),
        run_renewal: RunRenewal = renew_in_thread,
    ) -> None:
        self._environment = environment
        self._kinds = kinds
        self._settings = settings
        self._schedules = schedules
        self._run_renewal = environment.run_renewal or run_renewal
        self._has_budgets = any(kind.requirements.budgets for kind in kinds.values())
        self.id = environment.ids.worker()
        self._wake = asyncio.Event()
        self._limiter = LimiterClient(environment, self.id, declared_limits(kinds.values()))
        self._admission = Admission(environment, self._limiter)
        self._runner = HandlerRunner(kinds, environment, self._limiter, settings.key_keep_us)
        self._settlements = Settlements(self.id, environment, kinds, settings, self._admission.end)
        self._slots = Slots(environment, kinds, self._runner, self._settlements, settings.concurrency)
        self._settlements.wake, self._settlements.is_idle = self._wake.set, self._slots.is_idle
        self._poll = Poll(self.id, environment, settings, self._admission.known, self._all_done, self._wake.set)
        self._heartbeats = Heartbeats(environment.store, environment.clock, self._describe, self._settlements.tally)
        self._stop_at: float | None = None
        self._is_leaving, self._is_clean = False, True
        self._cancels = SwallowedCancels()
        self._exchanged_at = environment.clock.monotonic()
        self._prefetch = Prefetch(self._exchanged_at)

    # -- the life of a worker ---------------------------------------------------------------------------------------

    async def run(self) -> WorkerSummary:
        """Work until drained, or until all jobs are done if the settings say so."""
        self._environment.events.emit("worker_started", worker=self.id, queues=",".join(self._settings.queues))
        self._cancels.start()
        loop = asyncio.get_running_loop()

        def halt(attempt: Attempt, why: Stop) -> None:
            loop.call_soon_threadsafe(self._slots.halt, attempt, why)

        jobs, clock = self._environment.store.jobs, self._environment.clock
        renewal = LeaseRenewal(self.id, self._slots, self._settlements.unacknowledged, jobs, clock, halt)
        renewal.heartbeats = self._heartbeats
        self._heartbeats.drain = partial(loop.call_soon_threadsafe, self.drain)
        try:
            await self._declare()
            async with self._run_renewal(renewal):
                await self._live()
        finally:
            await self._slots.stop(0)
            if self._has_budgets:
                await self._runner.unsettled.leave(CANCEL_CHECK_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_CHECK_SECONDS):
                    await self._admission.leave()
                    await self._limiter.leave(self._tenant_calls)
            await self._runner.close()
            await self._heartbeats.leave(self.id)
        return self._summary()

    def _describe(self, uptime_seconds: float) -> Heartbeat:
        used, waiting = len(self._slots.running), self._slots.count_waiting()
        beat = describe_worker(self.id, self._settings, self._kinds, used, waiting, self.is_draining, uptime_seconds)
        return replace(beat, estimates=self._limiter.estimates())

    async def _declare(self) -> None:
        """Store the limits and budgets that the code declares. An unreachable limiter is told at its first use."""
        if self._has_budgets:
            await self._declare_budgets()
        if any(kind.requirements.uses for kind in self._kinds.values()):
            with contextlib.suppress(TransientError):
                await self._limiter.opened()

    async def _declare_budgets(self) -> None:
        failures, budgets, ledger = 0, declared_budgets(self._kinds.values()), self._environment.ledger
        while not self.is_draining:  # until the ledger answers
            try:
                return await declare_definitions(ledger.definitions, budgets, self._environment.store.operations)
            except TransientError as error:
                failures += 1
                emit_unavailable(self._environment, self.id, "declare budgets", failures, error)
            await pause(self._environment, failures)

    def drain(self, grace_seconds: float | None = None) -> None:
        """Claim no more jobs, let running jobs finish within the grace period, and release the rest. A second call can
        shorten the grace period."""
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        stop_at = self._environment.clock.monotonic() + grace
        self._stop_at = stop_at if self._stop_at is None else min(stop_at, self._stop_at)
        self._slots.release_prefetched()
        running = len(self._slots.running)
        self._environment.events.emit("draining", worker=self.id, running=running, grace_seconds=grace)
        self._wake.set()

    @property
    def grace_seconds(self) -> float:
        return self._settings.grace_seconds

    @property
    def is_draining(self) -> bool:
        return self._stop_at is not None

    async def _live(self) -> None:
        async with running_beside(self._side_tasks()):
            try:
                await self._loop()
            except BaseException:
                # Results must reach the store even if something failed or the worker was cancelled.
                with contextlib.suppress(LeasewayError):
                    await self._leave()
                raise
            await self._leave()

    def _side_tasks(self) -> list[Coroutine[Any, Any, None]]:
        prune = partial(maintenance.prune_jobs, self._environment, self._settings.keep_us)
        tasks = [self._poll.run(), self._admit(), self._slots.report_progress()]
        tasks.append(self._repeat(maintenance.PRUNE_EVERY_SECONDS, "prune", prune))
        merge = partial(maintenance.maintain_history, self._environment)
        tasks.append(self._repeat(maintenance.HISTORY_EVERY_SECONDS, "history", merge))
        tasks.append(self._limiter.keep_calls_counted(self._tenant_calls))
        tasks.append(self._heartbeats.run(self._environment.chance.random()))
        if self._has_budgets:
            maintain = partial(maintenance.maintain_budgets, self._environment)
            tasks += [self._runner.unsettled.run(), self._repeat(maintenance.EXPIRE_EVERY_SECONDS, "budgets", maintain)]
        if self._schedules:
            tasks.append(maintenance.fire_schedules(self._environment, self._schedules, self._kinds))
        return tasks

    async def _repeat(self, seconds: float, doing: str, step: Callable[[], Awaitable[object]]) -> None:
        while True:  # until it is cancelled
            await self._environment.clock.sleep(jitter(seconds, self._environment.chance.random()))
            try:
                await step()
            except TransientError as error:
                self._environment.events.emit("store_unavailable", doing=doing, error=error)

    async def _loop(self) -> None:
        while not self._is_over():
            self._cancels.check()
            self._wake.clear()
            if self.is_draining:
                self._slots.release_prefetched()
            else:
                self._slots.release_stale()
            call = self._due_exchange()
            if call is None:
                await self._wait()
            else:
                await self._exchange(call)
            if self._slots.fault is not None:
                raise self._slots.fault

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return self._poll.is_empty
        return not self._slots.running or self._is_out_of_time()

    def _is_out_of_time(self, patience_seconds: float = 0.0) -> bool:
        return self._stop_at is not None and self._environment.clock.monotonic() >= self._stop_at + patience_seconds

    async def _leave(self) -> None:
        """Stop the running handlers and settle everything. Jobs that stop at once are settled without waiting for those
        that take longer."""
        self._is_leaving = True
        self._cancels.start()
        self._slots.release_prefetched()
        patience_at = self._environment.clock.monotonic() + STUBBORN_SECONDS
        self._slots.halt_all()
        while self._slots.running and (left := patience_at - self._environment.clock.monotonic()) > 0:
            self._wake.clear()
            await self._flush(left)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, CANCEL_CHECK_SECONDS / 4)):
                    await self._wake.wait()
        stuck = await self._slots.stop(0)
        if stuck:
            self._environment.events.emit("handlers_stuck", worker=self.id, jobs=[each.lease.id for each in stuck])
        await self._flush(STUBBORN_SECONDS)

    async def _flush(self, seconds: float) -> None:
        """Send all settlements, if the store answers within this time."""
        # After a timeout the settlements are back in the outbox. The store may have received them; sending them again
        # is harmless, and leaving without them is not clean.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._settlements:
                    self._cancels.check()
                    await self._exchange(Exchange(self.id, self._settlements.take()))

    def _summary(self) -> WorkerSummary:
        done = self._settlements
        is_clean = self._is_clean and not done
        self._environment.events.emit("worker_stopped", worker=self.id, settled=done.accepted, is_clean=is_clean)
        return WorkerSummary(done.accepted, self._slots.lost + done.refused, done.released, is_clean)

    # -- exchange ---------------------------------------------------------------------------------------------------

    def _due_exchange(self) -> Exchange | None:
        """The next exchange, if there is a reason for one now."""
        room = self._room()
        admits = self._admission.admits() if room else ()
        has_gates = bool(admits) or (room > 0 and self._admission.has_news)
        wants_work = has_gates or (self._poll.may_find_work and self._is_worth_claiming(room))
        must_settle = self._settlements.is_due()
        must_check = bool(self._slots.running) and self._since_exchange() >= CANCEL_CHECK_SECONDS
        if not (wants_work or must_settle or must_check):
            return None
        return Exchange(self.id, self._settlements.take(), self._wants(room, admits) if room > 0 else None)

    def _wants(self, room: int, admits: tuple[Admit, ...]) -> Wants:
        count, token = min(room, CLAIM_MAX), self._environment.ids.token()
        return Wants(self._settings.queues, count, token, admits, self._admission.take_closings())

    def _room(self) -> int:
        """How many jobs the worker can take: its free slots, and the number to prefetch."""
        if self.is_draining:
            return 0
        return max(self._slots.free + self._prefetch.count - len(self._slots.prefetched), 0)

    def _is_worth_claiming(self, room: int) -> bool:
        """An exchange for little room pays only if nothing else is left to start."""
        most = self._settings.concurrency + self._prefetch.count
        return room > 0 and (not self._slots.prefetched or room >= most / 2)

    def _since_exchange(self) -> float:
        return self._environment.clock.monotonic() - self._exchanged_at

    async def _exchange(self, call: Exchange) -> None:
        """Send one exchange and act on its reply."""
        claim = None
        if call.wants is not None:
            # Lease renewal finds the claim here until it is answered, and for good if this worker gives up on it.
            claim = self._slots.claim = Claim(call.wants, self._environment.clock.monotonic())
        try:
            reply, sent_at = await self._send(call)
        except UsageError as error:
            return self._settlements.put_back_refused(call.settlements, error)
        except TransientError:
            # The store may have granted leases that this worker cannot release in time. The settlements are sent again.
            self._is_clean &= call.wants is None
            self._settlements.put_back(call.settlements)
            return
        except asyncio.CancelledError:
            self._settlements.put_back(call.settlements)
            raise
        self._measure_rate(sent_at)
        self._settlements.acknowledge(call.settlements, reply.lost)
        for job in reply.cancelled:
            self._slots.cancel(job)
        if claim is not None:
            await self._receive(claim, reply, sent_at)
        if not self.is_draining:  # while draining, jobs of a claim that was already on its way are released
            self._slots.fill()
        if claim is not None and not self._poll.may_find_work:
            self._poll.start()  # last, because starting the jobs is more urgent than the next poll

    async def _receive(self, claim: Claim, reply: ExchangeReply, sent_at: float) -> None:
        self._poll.learn(claim.wants.count, len(reply.leases))
        origins = await read_origins(self._environment, reply.leases)
        is_news = self._admission.learn(reply.gated)
        self._poll.found_nothing = not reply.leases and not is_news
        self._slots.put(claim, self._admission.assign(self._attempts(reply.leases, sent_at, origins)))

    def _attempts(self, leases: Sequence[Lease], sent_at: float, origins: Mapping[JobId, str]) -> Iterator[Attempt]:
        for lease in leases:
            attempt = Attempt(lease, sent_at)
            attempt.origin = origins.get(lease.id)
            yield attempt

    async def _send(self, call: Exchange) -> tuple[ExchangeReply, float]:
        """Send an exchange until it is answered. If the outcome is unknown, repeating the exchange resolves it."""
        failures = 0
        while True:  # until the store answers, or a draining worker runs out of time
            sent_at = self._environment.clock.monotonic()
            try:
                return await self._environment.store.jobs.exchange(call), sent_at
            except TransientError as error:
                failures += 1
                emit_unavailable(self._environment, self.id, "exchange", failures, error)
                if self._is_out_of_time(STUBBORN_SECONDS) and not self._is_leaving:
                    raise
            await pause(self._environment, failures)
            self._cancels.check()
            call = Exchange(call.worker, call.settlements, self._wants_again(call.wants), repeat=True)

    def _wants_again(self, wants: Wants | None) -> Wants | None:
        """The same as before, but nothing new under the token of a claim that lease renewal releases."""
        claim = self._slots.claim
        if wants is not None and claim is not None and claim.is_taken:
            return claim.granted()
        return wants

    def _measure_rate(self, sent_at: float) -> None:
        """The rate at which jobs finish, and the time of an exchange, decide how many jobs are prefetched."""
        self._exchanged_at = now = self._environment.clock.monotonic()
        if self._prefetch.learn(self._settlements.finished, now - sent_at, now):
            self._settlements.finished = 0

    # -- waiting ----------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Wait until something happens or the next check is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_seconds()):
                await self._wake.wait()

    def _patience_seconds(self) -> float:
        patience = CANCEL_CHECK_SECONDS if self._slots.is_idle() else CANCEL_CHECK_SECONDS / 4
        if self._settlements:
            patience = min(patience, self._settlements.seconds_left())
        if self._stop_at is not None:
            patience = min(patience, self._stop_at - self._environment.clock.monotonic())
        return max(patience, 0.0)

    async def _all_done(self) -> bool:
        """Whether every settlement was sent and no unfinished job is left in these queues that this worker can run."""
        if not self._has_nothing():
            return False  # without reading the lanes: a busy worker asks many times per second
        lanes, queues = await self._environment.store.reads.lanes(), self._settings.queues
        unfinished = sum(lane.unfinished for lane in lanes if lane.queue in queues)
        return self._has_nothing() and await self._runner.misfits.are_all(unfinished, queues)

    def _has_nothing(self) -> bool:
        return self._slots.is_idle() and not self._settlements

    async def _admit(self) -> None:
        """While jobs wait behind gates and slots are free, take what they need."""
        while True:  # until it is cancelled
            await self._admission.wait(self._room() > 0)
            with contextlib.suppress(LeasewayError):  # admission logs it and tries again
                if await self._admission.open_next(self._room(), self._held, self._slots.places.share):
                    self._wake.set()

    def _tenant_calls(self) -> Mapping[PermitRequest, int]:
        return self._admission.tenant_calls(self._held())

    def _held(self) -> list[Attempt]:
        return [*self._slots.prefetched, *self._slots.running.values()]
