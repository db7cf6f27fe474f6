"""submit ─► store ─► [exchange ─► run handler ─► settle ─► exchange …]

The worker's one loop. Each turn hands finished jobs back and takes new ones, in one exchange; between turns it waits
until there is something to say. Handlers run beside it in slots, settlements wait in the outbox, the keeper renews
leases from a thread of its own, and a watcher looks for work while slots are free.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.errors import LeasewayError, TransientError
from leaseway.domain.exchange import Admit, Exchange, ExchangeReply, ProgressReport, Wants
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Lease, Settlement
from leaseway.domain.kind import Kind
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import declared_budgets, declared_limits
from leaseway.domain.schedule import Schedule
from leaseway.domain.worker_pacing import (
    PREFETCH_SECONDS,
    WorkerSettings,
    jitter,
    prefetch_count,
    retry_delay_seconds,
    smooth_rate,
)
from leaseway.worker.admission import Admission
from leaseway.worker.attempt import Attempt, Stop
from leaseway.worker.environment import Environment
from leaseway.worker.job_origins import NOTHING, read_origins
from leaseway.worker.lease_renewal import Claim, LeaseRenewal, renew_in_thread
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.maintenance import keep_expiring, keep_firing, keep_pruning
from leaseway.worker.run_handler import HandlerRunner
from leaseway.worker.settle import Outbox
from leaseway.worker.slots import Slots

PULSE_SECONDS = 1.0
"""While jobs run, the store is asked at least this often whether one of them shall be cancelled."""
REPORT_SECONDS = 0.5
EMPTY_SECONDS = 0.2
"""How often somebody who leaves when everything is done looks whether it is: nobody hints at that."""
STUBBORN_SECONDS = 5.0
"""How long a handler may resist being stopped, and a last settlement may take, before the worker leaves anyway."""

Keeping = Callable[[LeaseRenewal], AbstractAsyncContextManager[None]]


class WorkerSummary(NamedTuple):
    """What a worker did in its life."""

    settled: int
    lost: int
    given_back: int
    is_clean: bool
    """Every lease was handed back: nobody has to wait for one to expire."""


class Worker:
    def __init__(
        self,
        world: Environment,
        kinds: Mapping[str, Kind],
        settings: WorkerSettings,
        schedules: tuple[Schedule, ...] = (),
        keeping: Keeping = renew_in_thread,
    ) -> None:
        self._world = world
        self._kinds = kinds
        self._settings = settings
        self._schedules = schedules
        self._keeping = keeping
        self.id = world.ids.worker()
        self._tokens = LimiterClient(world, self.id, declared_limits(kinds.values()))
        self._admission = Admission(world, self._tokens)
        self._runner = HandlerRunner(kinds, world, self._tokens, settings.key_keep_us)
        self._outbox = Outbox(world.clock, settings)
        self._slots = Slots(world, kinds, self._runner, settings.concurrency, self._post, self._admission.end)
        self._nudge = asyncio.Event()
        self._hungry = asyncio.Event()
        self._may_find_work = True
        self._trusts_hints = True
        """A hint is followed without a look, which saves a round trip. Where many workers hear it and few find
        anything, those who found nothing look first, until they find something again."""
        self._is_barren = False
        """The last exchange brought nothing though it should have: others were faster, or there are more gates than we
        can name. Wait a moment before the next."""
        self._is_empty = False
        self._stop_at: float | None = None
        self._is_leaving = False
        self._is_clean = True
        self._rate = 0.0
        self._exchanged_at = self._measured_at = world.clock.monotonic()
        self._settled = self._refused = 0

    # -- the life of a worker ---------------------------------------------------------------------------------------

    async def run(self) -> WorkerSummary:
        """Work until drained, or until everything is done if the settings say so."""
        self._world.events.emit("worker_started", worker=self.id, queues=",".join(self._settings.queues))
        loop = asyncio.get_running_loop()

        def tell(running: Attempt, why: Stop) -> None:
            loop.call_soon_threadsafe(self._slots.halt, running, why)

        keeper = LeaseRenewal(self.id, self._slots, self._world.store, self._world.clock, tell)
        try:
            await self._declare()
            async with self._keeping(keeper):
                await self._live()
        finally:
            await self._slots.stop(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PULSE_SECONDS):
                    await self._admission.leave()
                    await self._tokens.leave_all(self._seats)
            await self._runner.close()
        return self._worked()

    async def _declare(self) -> None:
        """Tell limiter and ledger what our code says. A limiter that is away is told by the first who needs it."""
        if budgets := declared_budgets(self._kinds.values()):
            await self._declare_budgets(budgets)
        if any(kind.demands.uses for kind in self._kinds.values()):
            with contextlib.suppress(TransientError):
                await self._tokens.limiter()

    async def _declare_budgets(self, budgets: Sequence[BudgetDefinition]) -> None:
        """A ledger that is away for a moment is no reason to end, any more than a store that is."""
        failures = 0
        while not self.is_draining:  # ends with the ledger's answer
            try:
                return await self._world.ledger.declare(budgets)
            except TransientError as error:
                failures += 1
                self._world.events.emit("store_unavailable", worker=self.id, doing="declare budgets", error=error)
            await self._world.clock.sleep(retry_delay_seconds(failures, self._world.chance.random()))

    def drain(self, grace_seconds: float | None = None) -> None:
        """Claim nothing more; let what runs finish within the grace period; give the rest back. Again: hurry."""
        grace = self._settings.grace_seconds if grace_seconds is None else grace_seconds
        stop_at = self._world.clock.monotonic() + grace
        self._stop_at = stop_at if self._stop_at is None else min(stop_at, self._stop_at)
        self._slots.clear_shelf()
        self._world.events.emit("draining", worker=self.id, running=len(self._slots.running), grace_seconds=grace)
        self._nudge.set()

    @property
    def grace_seconds(self) -> float:
        return self._settings.grace_seconds

    @property
    def is_draining(self) -> bool:
        return self._stop_at is not None

    async def _live(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                sides = [group.create_task(side) for side in self._sides()]
                try:
                    await self._loop()
                except BaseException:
                    # Results are not lost because something else went wrong, or because we were cancelled.
                    with contextlib.suppress(LeasewayError):
                        await self._leave()
                    raise
                await self._leave()
                for side in sides:
                    side.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _sides(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on beside the loop."""
        sides = [self._watch(), self._admit(), self._report(), keep_pruning(self._world, self._settings)]
        sides.append(self._tokens.keep_seats(self._seats))
        if any(kind.demands.budgets for kind in self._kinds.values()):
            sides.append(keep_expiring(self._world))
        if self._schedules:
            sides.append(keep_firing(self._world, self._schedules, self._kinds))
        return sides

    async def _loop(self) -> None:
        while not self._is_over():
            self._nudge.clear()
            self._tidy_shelf()
            call = self._due_exchange()
            if call is None:
                await self._wait()
            else:
                await self._take(call)
            if self._slots.fault is not None:
                raise self._slots.fault

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return self._is_empty
        return not self._slots.running or self._is_out_of_time()

    def _is_out_of_time(self, patience_seconds: float = 0.0) -> bool:
        return self._stop_at is not None and self._world.clock.monotonic() >= self._stop_at + patience_seconds

    def _tidy_shelf(self) -> None:
        if self.is_draining:
            self._slots.clear_shelf()
        else:
            self._slots.return_stale()

    async def _leave(self) -> None:
        """Stop what still runs, and hand everything back. What stops at once does not wait for what takes its time."""
        self._is_leaving = True
        self._slots.clear_shelf()
        patience_at = self._world.clock.monotonic() + STUBBORN_SECONDS
        self._slots.halt_all()
        while self._slots.running and (left := patience_at - self._world.clock.monotonic()) > 0:
            self._nudge.clear()
            await self._hand_back(left)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, PULSE_SECONDS / 4)):
                    await self._nudge.wait()
        stuck = await self._slots.stop(0)
        if stuck:
            self._world.events.emit("handlers_stuck", worker=self.id, jobs=[each.lease.id for each in stuck])
        await self._hand_back(STUBBORN_SECONDS)

    async def _hand_back(self, seconds: float) -> None:
        """A last word to the store, if it listens within this time."""
        if not self._outbox:
            return
        settlements = self._outbox.take()
        try:
            async with asyncio.timeout(seconds):
                await self._take(Exchange(self.id, settlements))
        except TimeoutError:
            # Nobody knows what became of them. To say them again is harmless; to leave without is not clean.
            self._outbox.put_back(settlements)

    def _worked(self) -> WorkerSummary:
        is_clean = self._is_clean and not self._outbox
        self._world.events.emit("worker_stopped", worker=self.id, settled=self._settled, is_clean=is_clean)
        return WorkerSummary(self._settled, self._slots.lost + self._refused, self._slots.given_back, is_clean)

    # -- exchange ---------------------------------------------------------------------------------------------------

    def _due_exchange(self) -> Exchange | None:
        """The next exchange, if there is reason for one now."""
        room = self._room()
        admits = self._admission.admits() if room else ()
        wants_work = bool(admits) or (self._may_find_work and self._is_worth_asking(room))
        must_settle = self._outbox.is_due(is_quiet=self._slots.is_quiet)
        must_ask = bool(self._slots.running) and self._since_exchange() >= PULSE_SECONDS
        if not (wants_work or must_settle or must_ask):
            return None
        return Exchange(self.id, self._outbox.take(), self._wants(room, admits) if room > 0 else None)

    def _wants(self, room: int, admits: tuple[Admit, ...]) -> Wants:
        return Wants(self._settings.queues, room, self._world.ids.token(), admits, self._admission.closed())

    def _room(self) -> int:
        """Free slots, and a moment's work beyond them."""
        if self.is_draining:
            return 0
        return max(self._slots.free + prefetch_count(self._rate) - len(self._slots.shelf), 0)

    def _is_worth_asking(self, room: int) -> bool:
        """A whole exchange for a little room pays only when nothing else is left to start."""
        most = self._settings.concurrency + prefetch_count(self._rate)
        return room > 0 and (not self._slots.shelf or room >= most / 2)

    def _since_exchange(self) -> float:
        return self._world.clock.monotonic() - self._exchanged_at

    async def _take(self, call: Exchange) -> None:
        """One exchange, and what follows from its reply."""
        claim = None
        if call.wants is not None:
            # Where the keeper finds it, until it is answered; for good, if we give up on it.
            claim = self._slots.claim = Claim(call.wants, self._world.clock.monotonic())
        try:
            reply, sent_at = await self._exchanged(call)
        except TransientError:
            # Nobody knows whether the keeper is in time for what the store may have granted. What we have to say, we
            # say again.
            self._is_clean &= call.wants is None
            self._outbox.put_back(call.settlements)
            return
        except asyncio.CancelledError:
            self._outbox.put_back(call.settlements)
            raise
        self._measure()
        self._slots.acknowledged(call.settlements)
        self._settled += len(call.settlements) - len(reply.lost)
        self._refused += len(reply.lost)
        for job in reply.lost:
            self._world.events.emit("settlement_refused", worker=self.id, job=job)
        for job in reply.cancelled:
            self._slots.cancel(job)
        if claim is not None:
            # As many as were asked for: there may be more. Fewer: there is nothing, until somebody says otherwise.
            self._may_find_work = len(reply.leases) >= claim.wants.count
            self._trusts_hints |= bool(reply.leases)
            origins = NOTHING if self._world.tracing is None else await read_origins(self._world, reply.leases)
            is_news = self._admission.learn(reply.gated, claim.wants.closed)
            self._is_barren = not reply.leases and not is_news
            self._slots.put(claim, self._admission.seated(self._claimed(reply.leases, sent_at, origins)))
        if not self.is_draining:  # otherwise the claim was on its way when the signal came: it goes back
            self._slots.fill()
        if claim is not None and not self._may_find_work:
            self._hungry.set()  # after the jobs, which shall not wait for the next look

    def _claimed(self, leases: Sequence[Lease], sent_at: float, origins: Mapping[JobId, str]) -> Iterator[Attempt]:
        for lease in leases:
            running = Attempt(lease, sent_at)
            if origins:
                running.origin = origins.get(lease.id)
            yield running

    async def _exchanged(self, call: Exchange) -> tuple[ExchangeReply, float]:
        """Send it until it is answered. An unknown outcome is resolved by repeating the same exchange."""
        failures = 0
        while True:  # ends with the store's answer, or with the patience of a worker that shall leave
            sent_at = self._world.clock.monotonic()
            try:
                return await self._world.store.exchange(call), sent_at
            except TransientError as error:
                failures += 1
                self._world.events.emit("store_unavailable", worker=self.id, failures=failures, error=error)
                if self._is_out_of_time(STUBBORN_SECONDS) and not self._is_leaving:
                    raise
            await self._world.clock.sleep(retry_delay_seconds(failures, self._world.chance.random()))
            call = Exchange(call.worker, call.settlements, self._wants_again(call.wants), repeat=True)

    def _wants_again(self, wants: Wants | None) -> Wants | None:
        """The same as before; nothing new under the token of a claim that the keeper gives back."""
        claim = self._slots.claim
        if wants is not None and claim is not None and claim.is_taken:
            return claim.granted()
        return wants

    def _measure(self) -> None:
        """How fast jobs finish decides how many are leased ahead."""
        self._exchanged_at = now = self._world.clock.monotonic()
        elapsed = now - self._measured_at
        if elapsed >= PREFETCH_SECONDS:  # a shorter look would take a few jobs that end together for a flood
            self._rate = smooth_rate(self._rate, self._slots.finished / elapsed)
            self._slots.finished = 0
            self._measured_at = now

    def _post(self, settlement: Settlement) -> None:
        was_empty = not self._outbox
        self._outbox.post(settlement)
        if was_empty or self._outbox.is_due(is_quiet=self._slots.is_quiet):
            self._nudge.set()

    # -- waiting ----------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until something happens, or until it is time to look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_seconds()):
                await self._nudge.wait()

    def _patience_seconds(self) -> float:
        patience = PULSE_SECONDS / 4 if self._slots.running or self._slots.shelf else PULSE_SECONDS
        if self._outbox:
            patience = min(patience, self._outbox.seconds_left())
        if self._stop_at is not None:
            patience = min(patience, self._stop_at - self._world.clock.monotonic())
        return max(patience, 0.0)

    async def _watch(self) -> None:
        """While the worker is hungry, look for work: at once when something hints at it, now and then anyway."""
        failures = 0
        while True:  # until it is cancelled
            await self._hungry.wait()
            try:
                wait_us = await self._world.store.wait_us(self._settings.queues, self._admission.known())
                if wait_us == 0 and not self._is_barren:
                    self._go_for_work()
                elif self._settings.until_empty and await self._all_done():
                    self._hungry.clear()
                    self._is_empty = True
                    self._nudge.set()
                elif await self._hinted(wait_us or None) and self._trusts_hints:
                    self._trusts_hints = False
                    self._go_for_work()
                self._is_barren, failures = False, 0
            except TransientError as error:
                failures += 1
                self._world.events.emit(
                    "store_unavailable", worker=self.id, doing="watch", failures=failures, error=error
                )
                await self._world.clock.sleep(retry_delay_seconds(failures, self._world.chance.random()))

    def _go_for_work(self) -> None:
        self._hungry.clear()
        self._may_find_work = True
        self._nudge.set()

    async def _hinted(self, wait_us: int | None) -> bool:
        """Wait until it is time to look again, or until a hint comes."""
        poll_seconds = self._settings.poll_seconds
        if self._settings.until_empty:
            poll_seconds = min(poll_seconds, EMPTY_SECONDS)
        seconds = jitter(poll_seconds, self._world.chance.random())
        if wait_us is not None:
            seconds = min(seconds, wait_us / SECOND_US)
        return await self._world.store.wait(seconds)

    async def _admit(self) -> None:
        """While jobs wait behind gates and slots are free, ask for what they need."""
        while True:  # until it is cancelled
            await self._admission.wait(self._room() > 0)
            with contextlib.suppress(LeasewayError):  # told and tried again by those inside
                if await self._admission.open_next(self._room(), self._held()):
                    self._nudge.set()

    def _seats(self) -> Mapping[PermitRequest, int]:
        return self._admission.seats(self._held())

    def _held(self) -> list[Attempt]:
        return [*self._slots.shelf, *self._slots.running.values()]

    async def _all_done(self) -> bool:
        """Nothing is left in these queues, and nothing of it is in our hands."""
        lanes = await self._world.store.lanes()
        is_quiet = self._slots.is_quiet and not self._outbox
        return is_quiet and not any(lane.unfinished for lane in lanes if lane.queue in self._settings.queues)

    async def _report(self) -> None:
        """Tell the store how far running jobs have come."""
        while True:  # until it is cancelled
            await self._world.clock.sleep(REPORT_SECONDS)
            told = [each for each in self._slots.running.values() if each.progress_is_new]
            if not told:
                continue
            reports = [ProgressReport(each.lease.id, each.lease.token, each.progress or "") for each in told]
            for each in told:
                each.progress_is_new = False
            with contextlib.suppress(TransientError):  # the next word replaces a lost one
                await self._world.store.report(reports)
