"""exchange ─► run handler ─► settle, and beside it: [keep the lease]

Leases of jobs that run long are renewed outside the event loop, in a thread with a loop of its own: a handler that
blocks the worker's loop keeps its lease, and a process that was frozen learns here that it lost it. Short jobs never
get this far: a lease is first renewed after a third of its length.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import Exchange, Held
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import Settlement, State
from leaseway.flows.running import Running, Stop
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore

LOOK_SECONDS = 0.2
RENEW_AFTER = 1 / 3
"""The age, as a share of its length, at which a lease is renewed."""
SAFE_UNTIL = 0.9
"""The age at which a lease that could not be renewed counts as lost: before the store thinks so."""
CLEAR_AFTER = 0.6
"""The age at which a job that waits on the shelf is given back from here: its loop should have done so long ago."""
BATCH_MAX = 1_000

Tell = Callable[[Running, Stop], None]


class Slots(Protocol):
    running: dict[JobId, Running]
    settling: dict[tuple[JobId, Token], Running]
    shelf: deque[Running]


class Keeper:
    """Looks at the running jobs, renews what grows old, tells what is lost or to be cancelled."""

    def __init__(self, worker: WorkerId, slots: Slots, store: JobStore, clock: Clock, tell: Tell) -> None:
        self._worker = worker
        self._running = slots.running
        self._settling = slots.settling
        self._shelf = slots.shelf
        self._store = store
        self._clock = clock
        self._tell = tell

    async def keep(self) -> None:
        while True:  # until it is cancelled
            await self._clock.sleep(LOOK_SECONDS)
            with contextlib.suppress(Exception):  # whatever it was, the next look tries again
                await self.look()

    async def look(self) -> None:
        """One look at all that runs; a bounded number of renewals."""
        now = self._clock.monotonic()
        await self._clear_shelf(now)
        # A copy is made in one step, so the worker may change the original meanwhile.
        ended = {job: each for (job, _), each in self._settling.copy().items()}
        # Of a job that has come to us again only the last lease can be alive, and the answer names jobs, not leases.
        running = (ended | self._running.copy()).values()
        # A handler that was told to stop may need a while for it, and the job is still ours until it has.
        old = [each for each in running if age(each, now) >= RENEW_AFTER and each.stop is not Stop.LOST]
        if not old:
            return
        try:
            async with asyncio.timeout(shortest(old)):
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
            async with asyncio.timeout(shortest(stale)):
                await self._store.exchange(Exchange(self._worker, tuple(map(given_back, stale))))
        except (LeasewayError, TimeoutError):
            self._shelf.extendleft(reversed(stale))

    def _taken_from_shelf(self, now: float) -> list[Running]:
        """Whoever takes a lease from the shelf owns it: the loop may do so at the same time."""
        taken: list[Running] = []
        with contextlib.suppress(IndexError):  # it is empty
            while len(taken) < BATCH_MAX:
                first = self._shelf.popleft()
                if age(first, now) < CLEAR_AFTER:
                    self._shelf.appendleft(first)
                    break
                taken.append(first)
        return taken

    async def _renew(self, old: list[Running], sent_at: float) -> None:
        held = [Held(each.lease.id, each.lease.token, each.lease.lease_us) for each in old]
        renewed = await self._store.renew(held)
        lost, cancelled = set(renewed.lost), set(renewed.cancelled)
        for each in old:
            if each.lease.id in lost:
                self._tell(each, Stop.LOST)
            else:
                each.renewed_at = sent_at
                if each.lease.id in cancelled:
                    self._tell(each, Stop.CANCELLED)

    def _give_up(self, old: list[Running]) -> None:
        now = self._clock.monotonic()
        for each in old:
            if age(each, now) >= SAFE_UNTIL:
                self._tell(each, Stop.LOST)


def given_back(running: Running) -> Settlement:
    return Settlement(id=running.lease.id, token=running.lease.token, state=State.PENDING, gives_back=True)


def age(running: Running, now: float) -> float:
    """As a share of the lease's length, on the worker's own clock, from before the request left."""
    return (now - running.renewed_at) * SECOND_US / running.lease.lease_us


def shortest(running: list[Running]) -> float:
    return min(each.lease.lease_us for each in running) / SECOND_US


@asynccontextmanager
async def in_thread(keeper: Keeper) -> AsyncIterator[None]:
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
async def in_loop(keeper: Keeper) -> AsyncIterator[None]:
    """Keep leases in the same loop: for a simulation, whose time has no threads."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(keeper.keep())
        try:
            yield
        finally:
            task.cancel()
