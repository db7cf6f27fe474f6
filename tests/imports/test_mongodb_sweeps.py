"""Several processes sweep the same run. One of them stops before one of its calls to the server and goes on when the
run has been swept, its marks were used, and another run has seen the rows. Then it must change nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pymongo.asynchronous.collection import AsyncCollection
from tests.imports.mongodb_fixtures import MongoPlace

from leaseway.imports.sinks.mongodb import MongoSink
from leaseway.imports.sinks.port import Sweep
from leaseway.testing.clock import FakeClock
from leaseway.testing.mongodb import MongoServer, mongodb_server
from leaseway.testing.sink_contract.fixtures import imported, rows
from leaseway.testing.sink_contract.sweeps import import_remembering, swept

CALLS = ("find_one", "aggregate", "insert_many", "update_one", "bulk_write", "delete_many", "count_documents")
CALLS_MAX = 8
"""A sweep makes this many calls of small runs, or fewer."""


class Pause:
    """Stops one task before its n-th call to the server."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.reached, self.over = asyncio.Event(), asyncio.Event()
        self.task: asyncio.Task[Any] | None = None

    async def before_call(self) -> None:
        if asyncio.current_task() is self.task:
            self.number -= 1
            if self.number == 0:
                self.reached.set()
                await self.over.wait()

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def paused(*positional: Any, **named: Any) -> Any:
            await self.before_call()
            return await call(*positional, **named)

        return paused

    async def begin(self, sink: MongoSink, run: str) -> asyncio.Task[Sweep]:
        self.task = task = asyncio.create_task(sink.sweeps.sweep(run))
        waiting = asyncio.create_task(self.reached.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return task


@pytest.fixture(scope="module")
def replica_set() -> Iterator[MongoServer]:
    with mongodb_server() as server:
        yield server


@pytest.fixture(scope="module")
def standalone() -> Iterator[MongoServer]:
    with mongodb_server(replica_set=False) as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["replica_set", "standalone"])
async def sinks(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[list[MongoSink]]:
    place = MongoPlace(request.getfixturevalue(request.param).url)
    await place.empty()
    sinks = [place.sink(clock.now_us) for _ in range(2)]
    for sink in sinks:
        await sink.open()
    yield sinks
    for sink in sinks:
        await sink.close()


@pytest.fixture(params=range(1, CALLS_MAX + 1))
def pause(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pause:
    pause = Pause(request.param)
    for name in CALLS:
        monkeypatch.setattr(AsyncCollection, name, pause.wrap(getattr(AsyncCollection, name)))
    return pause


async def test_a_late_sweeper_leaves_no_marks(sinks: list[MongoSink], clock: FakeClock, pause: Pause) -> None:
    """A mark that appears after the row was seen again counts as an absence. With the next one the row is deleted."""
    sink, other = sinks
    await imported(sink, "run-0", *rows(1, 2, 3))
    await import_remembering(sink, clock, "run-1", *rows(1))
    late = await pause.begin(other, "run-1")
    assert await sink.sweeps.sweep("run-1") == Sweep(3, 2)
    assert await swept(sink, clock, "run-2", 1, 2, 3) == Sweep(3, 0)
    pause.over.set()
    assert await late == Sweep(3, 2)
    assert await sink.sweeps.find_absent("maps", 1, 10) == []
    assert await swept(sink, clock, "run-3", 1) == Sweep(3, 2)
    assert await sink.sweeps.find_absent("maps", 2, 10) == []
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["2", "3"]


async def test_a_late_sweeper_forgets_no_marks(sinks: list[MongoSink], clock: FakeClock, pause: Pause) -> None:
    """If it deleted the marks of later runs, a row that is gone would never be deleted."""
    sink, other = sinks
    await imported(sink, "run-0", *rows(1, 2, 3))
    await import_remembering(sink, clock, "run-1", *rows(1, 2))
    late = await pause.begin(other, "run-1")
    assert await sink.sweeps.sweep("run-1") == Sweep(3, 1)
    assert await swept(sink, clock, "run-2", 1) == Sweep(3, 2)
    pause.over.set()
    assert await late == Sweep(3, 1)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["2", "3"]
    assert await sink.sweeps.find_absent("maps", 2, 10) == ["3"]


async def test_a_sweeper_that_ends_halfway_has_counted_once_or_not_at_all(
    sinks: list[MongoSink], clock: FakeClock, pause: Pause
) -> None:
    """Another process sweeps the run again after another run was swept. That must not count as two absences."""
    sink, other = sinks
    await imported(sink, "run-0", *rows(1, 2, 3))
    await import_remembering(sink, clock, "run-1", *rows(1))
    late = await pause.begin(other, "run-1")
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert await swept(sink, clock, "run-2", 1, 2, 3) == Sweep(3, 0)
    assert (await sink.sweeps.sweep("run-1")).stored == 3
    assert await sink.sweeps.find_absent("maps", 2, 10) == []
    assert await swept(sink, clock, "run-3", 1, 2, 3) == Sweep(3, 0)
    assert await sink.sweeps.find_absent("maps", 1, 10) == []
