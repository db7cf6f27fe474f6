"""exchange ─► run handler ─► settle, and beside it: [renew the leases, report that the worker is alive]

Leases of long jobs are renewed outside the worker's event loop, in a thread with a loop of its own. A handler that
blocks the worker's loop therefore keeps its lease, and a process that was frozen learns here that it lost it. Short
jobs are never renewed: a lease is first renewed after a third of its length.

Jobs that a blocked loop has leased and cannot start are released from here without using an attempt: prefetched jobs,
and the jobs of a claim whose reply the loop cannot read (see `slots.Claim`).

Heartbeats are sent by the worker's loop, over the connection that it has anyway. Only while a handler blocks that loop,
the thread sends them.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import SETTLEMENTS_MAX, Exchange, HeldLease
from leaseway.domain.history.rows import HistoryRow
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import LEASE_SECONDS_MIN, Lease, Settlement, State
from leaseway.domain.workers import BEAT_SECONDS, Heartbeat
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore
from leaseway.ports.store import Store
from leaseway.worker.environment import RepeatedCancel, WorkTally, jitter
from leaseway.worker.settle import RELEASE_AFTER, Attempt, Stop
from leaseway.worker.slots import Claim, Slots

CHECK_SECONDS = 0.2
RENEW_AFTER = 1 / 3
"""The age, as a share of its length, at which a lease is renewed."""
FIRST_BEAT_SECONDS = 1.0
BEAT_OVERDUE_SECONDS = 1.5 * BEAT_SECONDS
RECORD_SECONDS_MAX = 60.0
BATCH_MAX = SETTLEMENTS_MAX
"""The most leases that one call renews or releases."""

Halt = Callable[[Attempt, Stop], None]


class LeaseRenewal:
    """Renews old leases, releases jobs that wait too long, and stops attempts whose lease is lost."""

    def __init__(
        self,
        worker: WorkerId,
        slots: Slots,
        unacknowledged: dict[tuple[JobId, Token], Attempt],
        store: JobStore,
        clock: Clock,
        halt: Halt,
    ) -> None:
        self._worker = worker
        self._slots = slots
        self.running = slots.running
        self._unacknowledged = unacknowledged
        self._prefetched = slots.prefetched
        self._store = store
        self._clock = clock
        self._halt = halt
        self.heartbeats: Heartbeats | None = None

    def held(self) -> list[Attempt]:
        """Every attempt whose lease the worker holds."""
        return [*self._prefetched.copy(), *self.running.copy().values(), *self._unacknowledged.copy().values()]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._halt_expired())
            while True:  # until it is cancelled
                await self._clock.sleep(CHECK_SECONDS)
                with contextlib.suppress(Exception):  # the next check tries again, whatever went wrong
                    await self.check()

    async def _halt_expired(self) -> None:
        """Runs beside the checks, because a check may wait for a store that does not answer."""
        while True:  # until it is cancelled
            await self._clock.sleep(CHECK_SECONDS)
            self._halt_lost([each for each in self.running.copy().values() if each.stop is not Stop.LOST])

    async def check(self) -> None:
        """Check everything that the worker holds, with a bounded number of calls."""
        now = self._clock.monotonic()
        await self._release_prefetched(now)
        await self._renew_running(now)
        await self._check_claim(now)
        if self.heartbeats is not None:
            await self.heartbeats.send_overdue()

    # -- running jobs -----------------------------------------------------------------------------------------------

    async def _renew_running(self, now: float) -> None:
        # A copy is made in one step, so that the worker may change the original meanwhile.
        ended = {job: each for (job, _), each in self._unacknowledged.copy().items()}
        # If the worker has claimed a job twice, only the last lease can be alive, and the answer names jobs, not
        # leases.
        running = (ended | self.running.copy()).values()
        # A handler that was told to stop may need a while, and the job is held until it has stopped.
        old = [each for each in running if each.age(now) >= RENEW_AFTER and each.stop is not Stop.LOST]
        if not old:
            return
        try:
            async with asyncio.timeout(shortest_lease_seconds(each.lease for each in old)):
                for start in range(0, len(old), BATCH_MAX):
                    await self._renew(old[start : start + BATCH_MAX], now)
        except (LeasewayError, TimeoutError):
            pass  # the next check tries again, while the lease lasts
        self._halt_lost(old)

    async def _renew(self, old: list[Attempt], sent_at: float) -> None:
        held = [HeldLease(each.lease.id, each.lease.token, each.lease.lease_us) for each in old]
        renewed = await self._store.renew(held)
        lost, cancelled = set(renewed.lost), set(renewed.cancelled)
        for each in old:
            if each.lease.id in lost:
                self._halt(each, Stop.LOST)
            else:
                each.renewed_at = sent_at
                if each.lease.id in cancelled:
                    self._halt(each, Stop.CANCELLED)

    def _halt_lost(self, attempts: list[Attempt]) -> None:
        now = self._clock.monotonic()
        for each in attempts:
            if each.is_lost(now):
                self._halt(each, Stop.LOST)

    # -- jobs that have not started ---------------------------------------------------------------------------------

    async def _release_prefetched(self, now: float) -> None:
        """A blocked loop cannot release the jobs that it has not started. They must not lose an attempt for that."""
        stale = self._take_stale(now)
        if not stale:
            return
        try:
            async with asyncio.timeout(shortest_lease_seconds(each.lease for each in stale)):
                await self._release(each.lease for each in stale)
        except (LeasewayError, TimeoutError):
            # The release may have succeeded. In any case these jobs are too old to start here: see `Slots.fill`.
            self._prefetched.extendleft(reversed(stale))

    def _take_stale(self, now: float) -> list[Attempt]:
        """The loop may take from the same queue at the same time; each attempt is taken once."""
        taken: list[Attempt] = []
        with contextlib.suppress(IndexError):  # the queue is empty
            while len(taken) < BATCH_MAX:
                first = self._prefetched.popleft()
                if first.age(now) < RELEASE_AFTER:
                    self._prefetched.appendleft(first)
                    break
                taken.append(first)
        return taken

    async def _check_claim(self, now: float) -> None:
        """Renew the leases of an unanswered claim like those of running jobs; release them when they are old.

        Only the store knows how long these leases are. Until it answers, the shortest possible lease is assumed.
        """
        claim = self._slots.claim
        if claim is None or now - claim.checked_at < RENEW_AFTER * LEASE_SECONDS_MIN:
            return
        claim.checked_at = now
        with contextlib.suppress(LeasewayError, TimeoutError):  # a later check finds what is left
            async with asyncio.timeout(LEASE_SECONDS_MIN):
                # A repeated exchange returns the granted leases again, which renews them.
                reply = await self._store.exchange(Exchange(self._worker, (), claim.granted(), repeat=True))
                if reply.leases and self._must_release(claim, reply.leases, now):
                    await self._release(reply.leases)
                    claim.released.update(reply.leases)
                else:
                    claim.renewed = (now, frozenset(reply.leases))

    def _must_release(self, claim: Claim, leases: tuple[Lease, ...], now: float) -> bool:
        is_late = now - claim.sent_at >= RELEASE_AFTER * shortest_lease_seconds(leases)
        return (is_late or claim.is_taken) and claim.take(self)

    async def _release(self, leases: Iterable[Lease]) -> None:
        released = tuple(map(release, leases))
        for start in range(0, len(released), BATCH_MAX):
            await self._store.exchange(Exchange(self._worker, released[start : start + BATCH_MAX]))


def release(lease: Lease) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, state=State.PENDING, returns_attempt=True)


def shortest_lease_seconds(leases: Iterable[Lease]) -> float:
    return min(lease.lease_us for lease in leases) / SECOND_US


class Heartbeats:
    """Reports the worker and what it did, and learns whether an operator asks it to stop.

    A worker that runs for less than a second is not listed, but what it did is recorded.
    """

    def __init__(self, store: Store, clock: Clock, describe: Callable[[float], Heartbeat], tally: WorkTally) -> None:
        self._registry, self._history = store.workers, store.history
        self._tally = tally
        self._unrecorded: tuple[float, list[HistoryRow]] = (0.0, [])
        """Rows whose recording was not acknowledged, and since when."""
        self._clock = clock
        self._describe = describe
        self._started_at = self._tried_at = clock.monotonic()
        self._is_listed = self._is_told_to_drain = False
        self.drain: Callable[[], object] = lambda: None
        """Called once, in the thread that sent the heartbeat."""

    async def run(self, chance: float) -> None:
        """In the worker's loop. `chance` spreads the heartbeats of workers that started together."""
        seconds = jitter(FIRST_BEAT_SECONDS, chance)
        while self._registry is not None:  # until it is cancelled
            await self._clock.sleep(seconds)
            await self.send()
            seconds = BEAT_SECONDS

    async def send_overdue(self) -> None:
        """In the thread of lease renewal, because the worker's loop is blocked."""
        if self._registry is not None and self._clock.monotonic() - self._tried_at > BEAT_OVERDUE_SECONDS:
            await self.send()

    async def send(self) -> None:
        assert self._registry is not None
        now = self._tried_at = self._clock.monotonic()
        with contextlib.suppress(LeasewayError, TimeoutError):  # the next one tells the same
            async with asyncio.timeout(BEAT_SECONDS):
                reply = await self._registry.beat(self._describe(now - self._started_at))
                self._is_listed = True
                if reply.drain and not self._is_told_to_drain:
                    self._is_told_to_drain = True
                    self.drain()
                await self._record()

    async def _record(self) -> None:
        """Rows that were not acknowledged are sent again under the same ids. Their minute is merged later than that."""
        since, rows = self._unrecorded
        now = self._clock.monotonic()
        if rows and now - since > RECORD_SECONDS_MAX:
            rows = []  # whether the store has them is unknown, and sending them again could count them twice
        if not rows:
            since, rows = now, self._tally.take()
        if rows and self._history is not None:
            self._unrecorded = (since, rows)
            await self._history.record(rows)
        self._unrecorded = (0.0, [])

    async def leave(self, worker: WorkerId) -> None:
        with contextlib.suppress(LeasewayError, TimeoutError):
            async with asyncio.timeout(FIRST_BEAT_SECONDS):
                await self._record()  # what an earlier call has left
                await self._record()
                if self._is_listed and self._registry is not None:
                    await self._registry.leave(worker)


@asynccontextmanager
async def renew_in_thread(renewal: LeaseRenewal) -> AsyncIterator[None]:
    """Renew leases in a thread of their own while the body runs."""
    worker_loop = asyncio.get_running_loop()
    started: asyncio.Future[Callable[[], object]] = worker_loop.create_future()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task, loop = group.create_task(renewal.run()), asyncio.get_running_loop()
            # The timer of the repetition ends with the loop.
            end = partial(loop.call_soon_threadsafe, RepeatedCancel, [task])
            worker_loop.call_soon_threadsafe(started.set_result, end)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="leaseway-renew", daemon=True)
    thread.start()
    try:
        stop = await asyncio.shield(started)
    except asyncio.CancelledError:
        started.add_done_callback(lambda future: future.result()())  # stop it as soon as it can be stopped
        raise
    try:
        yield
    finally:
        stop()
        await asyncio.get_running_loop().run_in_executor(None, thread.join)


@asynccontextmanager
async def renew_in_loop(renewal: LeaseRenewal) -> AsyncIterator[None]:
    """Renew leases in the same loop: for a simulation, whose virtual time has no threads."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(renewal.run())
        try:
            yield
        finally:
            task.cancel()
