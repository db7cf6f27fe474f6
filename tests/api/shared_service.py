"""One service for many tests: it runs in its own thread, and each test gives it a new environment in memory."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache

from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.memory.store import MemoryStore
from leaseway.telemetry.log import LogEvents
from leaseway.testing.clock import FakeClock
from leaseway.wiring import build_environment
from leaseway.worker.environment import Environment


@cache
def shared() -> Served:
    """Started by the first test that needs it; it stops with the process."""
    ready = threading.Event()
    found: list[Served] = []

    async def serve() -> None:
        async with run_service(App("memory://")) as served:
            found.append(served)
            ready.set()
            await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), name="service", daemon=True).start()
    assert ready.wait(30)
    return found[0]


@contextmanager
def world_in_memory(clock: FakeClock) -> Iterator[str]:
    """The URL of a service with an empty environment whose clock the test controls."""
    served = shared()
    served.service.world = served.app.world._replace(
        store=MemoryStore(clock.now_us), limiter=MemoryLimiter(clock.now_us), ledger=MemoryLedger(clock.now_us)
    )
    yield served.url


@asynccontextmanager
async def service_in_memory(clock: FakeClock) -> AsyncIterator[Environment]:
    """The environment of a client that has only the URL of a service."""
    with world_in_memory(clock) as url:
        world = build_environment(url, None, LogEvents())
        await world.store.open()
        await world.limiter.open()
        yield world
        await world.limiter.close()
        await world.store.close()
