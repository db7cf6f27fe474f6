"""exchange ─► run handler ─► settle, and beside it: [keep the lease]

Leases of jobs that run long are renewed outside the event loop, in a thread with a loop of its own: a handler that
blocks the worker's loop keeps its lease, and a process that was frozen learns here that it lost it. Short jobs never
get this far: a lease is first renewed after a third of its length.

Jobs that a blocked loop has leased and cannot start go back from here, without a lost attempt: those on the shelf, and
those of a claim whose reply the loop cannot read (claim.py).
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import Exchange, HeldLease, Wants
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import Lease, Settlement, State
from leaseway.domain.submission import LEASE_SECONDS_MIN
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore
from leaseway.worker.attempt import Attempt, Stop


class Claim:
    __slots__ = ("_lock", "_owner", "given_back", "looked_at", "sent_at", "wants")

    def __init__(self, wants: Wants, sent_at: float) -> None:
        self.wants = wants
        self.sent_at = sent_at
        """Before the first request left: no lease of this claim is older."""
        self.looked_at = sent_at
        """When the keeper last asked what was granted."""
        self.given_back: set[Lease] = set()
        """By the keeper, and the store knows it."""
        self._owner: object | None = None
        self._lock = threading.Lock()

    def take(self, who: object) -> bool:
        """True for whoever comes first, from then on."""
        with self._lock:
            if self._owner is None:
                self._owner = who
            return self._owner is who

    @property
    def is_taken(self) -> bool:
        return self._owner is not None

    def granted(self) -> Wants:
        """Asks, in a repeated exchange, for what was granted before, and for nothing new."""
        return Wants(self.wants.queues, 0, self.wants.token)


LOOK_SECONDS = 0.2
RENEW_AFTER = 1 / 3
"""The age, as a share of its length, at which a lease is renewed."""
SAFE_UNTIL = 0.9
"""The age at which a lease that could not be renewed counts as lost: before the store thinks so."""
CLEAR_AFTER = 0.6
"""The age at which a job that waits to start goes back, from here if its loop has not done so long ago."""
BATCH_MAX = 1_000

Tell = Callable[[Attempt, Stop], None]


class HeldLeases(Protocol):
    running: dict[JobId, Attempt]
    settling: dict[tuple[JobId, Token], Attempt]
    shelf: deque[Attempt]
    claim: Claim | None


class LeaseRenewal:
    """Looks at what the worker holds: renews what grows old, gives back what waits too long, tells what is lost."""

    def __init__(self, worker: WorkerId, slots: HeldLeases, store: JobStore, clock: Clock, tell: Tell) -> None:
        self._worker = worker
        self._slots = slots
        self._running = slots.running
        self._settling = slots.settling
        self._shelf = slots.shelf
        self._store = store
        self._clock = clock
        self._tell = tell

    async def keep(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_giving_up())
            while True:  # until it is cancelled
                await self._clock.sleep(LOOK_SECONDS)
                with contextlib.suppress(Exception):  # whatever it was, the next look tries again
                    await self.look()

    async def _keep_giving_up(self) -> None:
        """Beside the looks, because each of them may wait for a store that does not answer."""
        while True:  # until it is cancelled
            await self._clock.sleep(LOOK_SECONDS)
            self._give_up([each for each in self._running.copy().values() if each.stop is not Stop.LOST])

    async def look(self) -> None:
        """One look at all that the worker holds, and a bounded number of calls."""
        now = self._clock.monotonic()
        await self._clear_shelf(now)
        await self._keep_running(now)
        await self._keep_claim(now)

    async def _keep_running(self, now: float) -> None:
        # A copy is made in one step, so the worker may change the original meanwhile.
        ended = {job: each for (job, _), each in self._settling.copy().items()}
        # Of a job that has come to us again only the last lease can be alive, and the answer names jobs, not leases.
        running = (ended | self._running.copy()).values()
        # A handler that was told to stop may need a while for it, and the job is still ours until it has.
        old = [each for each in running if age(each, now) >= RENEW_AFTER and each.stop is not Stop.LOST]
        if not old:
            return
        try:
            async with asyncio.timeout(shortest(each.lease for each in old)):
                for start in range(0, len(old), BATCH_MAX):
                    await self._renew(old[start : start + BATCH_MAX], now)
        except (LeasewayError, TimeoutError):
            pass  # the next look tries again, as long as the lease lasts
        self._give_up(old)

    async def _clear_shelf(self, now: float) -> None:
        """A loop that stands still cannot give back what it did not start. Its jobs must not pay for that."""
        stale = self._taken_from_shelf(now)
        if not stale:
            return
        try:
            async with asyncio.timeout(shortest(each.lease for each in stale)):
                await self._give_back(each.lease for each in stale)
        except (LeasewayError, TimeoutError):
            # Perhaps they were given back. They are too old to start here in any case: see `Slots.fill`.
            self._shelf.extendleft(reversed(stale))

    def _taken_from_shelf(self, now: float) -> list[Attempt]:
        """Whoever takes a lease from the shelf owns it: the loop may do so at the same time."""
        taken: list[Attempt] = []
        with contextlib.suppress(IndexError):  # it is empty
            while len(taken) < BATCH_MAX:
                first = self._shelf.popleft()
                if age(first, now) < CLEAR_AFTER:
                    self._shelf.appendleft(first)
                    break
                taken.append(first)
        return taken

    async def _keep_claim(self, now: float) -> None:
        """A claim that stays unanswered is kept like a job that runs, and given back like one on the shelf.

        How long its leases are, only the store knows: until it has said so, the shortest ones count.
        """
        claim = self._slots.claim
        if claim is None or now - claim.looked_at < RENEW_AFTER * LEASE_SECONDS_MIN:
            return
        claim.looked_at = now
        with contextlib.suppress(LeasewayError, TimeoutError):  # a later look finds what is left
            async with asyncio.timeout(LEASE_SECONDS_MIN):
                # To be handed the leases again renews them.
                reply = await self._store.exchange(Exchange(self._worker, (), claim.granted(), repeat=True))
                if reply.leases and self._must_go_back(claim, reply.leases, now):
                    await self._give_back(reply.leases)
                    claim.given_back.update(reply.leases)

    def _must_go_back(self, claim: Claim, leases: tuple[Lease, ...], now: float) -> bool:
        is_late = now - claim.sent_at >= CLEAR_AFTER * shortest(leases)
        return (is_late or claim.is_taken) and claim.take(self)

    async def _give_back(self, leases: Iterable[Lease]) -> None:
        await self._store.exchange(Exchange(self._worker, tuple(map(given_back, leases))))

    async def _renew(self, old: list[Attempt], sent_at: float) -> None:
        held = [HeldLease(each.lease.id, each.lease.token, each.lease.lease_us) for each in old]
        renewed = await self._store.renew(held)
        lost, cancelled = set(renewed.lost), set(renewed.cancelled)
        for each in old:
            if each.lease.id in lost:
                self._tell(each, Stop.LOST)
            else:
                each.renewed_at = sent_at
                if each.lease.id in cancelled:
                    self._tell(each, Stop.CANCELLED)

    def _give_up(self, old: list[Attempt]) -> None:
        now = self._clock.monotonic()
        for each in old:
            if age(each, now) >= SAFE_UNTIL:
                self._tell(each, Stop.LOST)


def given_back(lease: Lease) -> Settlement:
    return Settlement(id=lease.id, token=lease.token, state=State.PENDING, gives_back=True)


def age(running: Attempt, now: float) -> float:
    """As a share of the lease's length, on the worker's own clock, from before the request left."""
    return (now - running.renewed_at) * SECOND_US / running.lease.lease_us


def shortest(leases: Iterable[Lease]) -> float:
    return min(lease.lease_us for lease in leases) / SECOND_US


@asynccontextmanager
async def renew_in_thread(keeper: LeaseRenewal) -> AsyncIterator[None]:
    """Keep leases in a thread of their own while the body runs."""
    worker_loop = asyncio.get_running_loop()
    started: asyncio.Future[Callable[[], object]] = worker_loop.create_future()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task, loop = group.create_task(keeper.keep()), asyncio.get_running_loop()
            worker_loop.call_soon_threadsafe(started.set_result, lambda: loop.call_soon_threadsafe(task.cancel))

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="leaseway-keep", daemon=True)
    thread.start()
    try:
        stop = await asyncio.shield(started)
    except asyncio.CancelledError:
        started.add_done_callback(lambda future: future.result()())  # as soon as it can be stopped
        raise
    try:
        yield
    finally:
        stop()
        await asyncio.get_running_loop().run_in_executor(None, thread.join)


@asynccontextmanager
async def renew_in_loop(keeper: LeaseRenewal) -> AsyncIterator[None]:
    """Keep leases in the same loop: for a simulation, whose time has no threads."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(keeper.keep())
        try:
            yield
        finally:
            task.cancel()
