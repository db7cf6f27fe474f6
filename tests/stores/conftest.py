"""Every store that leaseway ships, opened empty, with a clock that the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("leaseway.testing")

from leaseway.stores.memory.store import MemoryStore  # noqa: E402 - after the registration
from leaseway.stores.sqlite.store import SqliteStore  # noqa: E402
from leaseway.testing.clock import FakeClock  # noqa: E402

Stores = MemoryStore | SqliteStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Stores]:
    store = open_store(request.param, clock, tmp_path)
    await store.open()
    yield store
    await store.close()


def open_store(name: str, clock: FakeClock, folder: Path) -> Stores:
    if name == "memory":
        return MemoryStore(clock.now_us)
    return SqliteStore(str(folder / "work.db"), now_us=clock.now_us)
