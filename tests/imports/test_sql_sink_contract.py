"""Every sink keeps every promise: the shipped contract, run against each shipped sink."""

from collections import Counter
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from tests.imports.sql_sink_fixtures import PLACES, Place, empty_place

from leaseway.imports.sinks.port import Sink
from leaseway.testing import sink_contract
from leaseway.testing.clock import FakeClock
from leaseway.testing.sink_contract import *  # noqa: F403


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=PLACES)
async def witness(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return await empty_place(request, tmp_path)


@pytest.fixture
async def sink(witness: Place, clock: FakeClock) -> AsyncIterator[Sink]:
    sink = witness.sink(clock.now_us)
    await sink.open()
    yield sink
    await sink.close()


@pytest.fixture
async def other(witness: Place, sink: Sink, clock: FakeClock) -> AsyncIterator[Sink]:
    other = witness.sink(clock.now_us)
    await other.open()
    yield other
    await other.close()


@pytest.fixture
async def elsewhere(witness: Place, sink: Sink, clock: FakeClock) -> AsyncIterator[Sink]:
    elsewhere = witness.sink(clock.now_us, table="other places")
    await elsewhere.open()
    yield elsewhere
    await elsewhere.close()


def test_no_promise_of_a_sink_hides_another() -> None:
    """Of two tests with one name only the last would run, and a contract module that is not imported would not run at
    all.
    """
    chapters = [
        import_module(f"{sink_contract.__name__}.{found.name}") for found in iter_modules(sink_contract.__path__)
    ]
    written = Counter(name for chapter in chapters for name in vars(chapter) if name.startswith("test_"))
    assert len(written) > 40
    assert [name for name, times in written.items() if times > 1] == []
    assert [name for name in written if name not in globals()] == []
