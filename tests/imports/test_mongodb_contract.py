"""Rows in MongoDB keep the promises of every sink, with transactions and without."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.imports.mongodb_fixtures import ELSEWHERE, MongoPlace

from leaseway.imports.sinks.port import Sink
from leaseway.testing.clock import FakeClock
from leaseway.testing.mongodb import MongoServer, mongodb_server
from leaseway.testing.sink_contract import *  # noqa: F403


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
async def witness(request: pytest.FixtureRequest) -> MongoPlace:
    place = MongoPlace(request.getfixturevalue(request.param).url)
    await place.empty()
    return place


@pytest.fixture
async def sink(witness: MongoPlace, clock: FakeClock) -> AsyncIterator[Sink]:
    sink = witness.sink(clock.now_us)
    await sink.open()
    yield sink
    await sink.close()


@pytest.fixture
async def other(witness: MongoPlace, sink: Sink, clock: FakeClock) -> AsyncIterator[Sink]:
    other = witness.sink(clock.now_us)
    await other.open()
    yield other
    await other.close()


@pytest.fixture
async def elsewhere(witness: MongoPlace, sink: Sink, clock: FakeClock) -> AsyncIterator[Sink]:
    elsewhere = witness.sink(clock.now_us, table=ELSEWHERE)
    await elsewhere.open()
    yield elsewhere
    await elsewhere.close()
