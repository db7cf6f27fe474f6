"""exchange ─► run handler ─► settle, and beside it: [keep the lease]

Leases of jobs that run long are renewed outside the event loop, in a thread with a loop of its own: a handler that
blocks the worker's loop keeps its lease, and a process that was frozen learns here that it lost it. Short jobs never
get this far: a lease is first renewed after a third of its length.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import Held
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.flows.running import Running, Stop
from leaseway.ports.clock import Clock
from leaseway.ports.job_store import JobStore

LOOK_SECONDS = 0.2
RENEW_AFTER = 1 / 3
"""The age, as a share of its length, at which a lease is renewed."""
SAFE_UNTIL = 0.9
"""The age at which a lease that could not be renewed counts as lost: before the store thinks so."""
BATCH_MAX = 1_000

Tell = Callable[[Running, Stop], None]


class Keeper:
    """Looks at the running jobs, renews what grows old, tells what is lost or to be cancelled."""

    def __init__(self, running: dict[JobId, Running], store: JobStore, clock: Clock, tell: Tell) -> None:
        self._running = running
        self._store = store
        self._clock = clock
        self._tell = tell

    async def keep(self) -> None:
        while True:  # until it is cancelled
            await self._clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One look at all that runs; a bounded number of renewals."""
        now = self._clock.monotonic()
        # A copy is made in one step, so the worker may change the original meanwhile.
        running = self._running.copy().values()
        # A handler that was told to stop may need a while for it, and the job is still ours until it has.
        old = [each for each in running if age(each, now) >= RENEW_AFTER and each.stop is not Stop.LOST]
        if not old:
            return
        try:
            async with asyncio.timeout(shortest(old)):
                await self._renew(old[:BATCH_MAX], now)
        except (LeasewayError, TimeoutError):
            pass  # the next look tries again, as long as the lease lasts
        self._give_up(old)

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
    stop = await started
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
