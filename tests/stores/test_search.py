"""Whoever seeks a needle in a store finds it, and does not make the others wait."""

import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.stores.conftest import empty

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import NEWEST, JobFilter, SearchStep, merge_steps
from leaseway.domain.job import State
from leaseway.stores.postgres import search as postgres
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.sqlite.search import SearchQuery, search
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import Worker, failed, new_job
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.search_contract import *  # noqa: F403


@pytest.fixture(params=["sqlite", "postgres"])
async def store(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[SqliteStore | PostgresStore]:
    """Those that may hold very much."""
    store: SqliteStore | PostgresStore
    if request.param == "sqlite":
        store = SqliteStore(str(tmp_path / "work.db"), now_us=clock.now_us)
    else:
        store = PostgresStore(request.getfixturevalue("server").url, now_us=clock.now_us)
    await store.open()
    if isinstance(store, PostgresStore):
        await empty(store)
    yield store
    await store.close()


NEEDLES = (JobFilter(kind="none"), JobFilter(kind="none", tenant="t1"), JobFilter(states=(State.FAILED,), kind="none"))
MANY, LOOKS = 600, 20


async def filled(store: SqliteStore | PostgresStore) -> None:
    """Half of them have failed."""
    await store.jobs.submit([new_job(number, tenant=f"t{number % 2}", attempts_max=1) for number in range(MANY)])
    worker = Worker(store)
    await worker.settle(*(failed(lease) for lease in await worker.claim(MANY // 2)))


@pytest.mark.parametrize("which", NEEDLES)
async def test_a_look_into_a_file_reads_no_more_than_it_may(which: JobFilter, tmp_path: Path, clock: FakeClock) -> None:
    """That it says how far it came does not prove that it went no further."""
    store = SqliteStore(str(tmp_path / "much.db"), now_us=clock.now_us)
    await store.open()
    await filled(store)

    def steps(looks: int) -> int:
        counted = [0]
        with closing(sqlite3.connect(store.path)) as connection:
            connection.set_progress_handler(lambda: counted.append(0), 10)
            search(connection, SearchQuery(which, NEWEST, 50, looks))
        return len(counted)

    assert steps(LOOKS) * 5 < steps(MANY - 1)
    await store.close()


@pytest.mark.parametrize("which", NEEDLES)
async def test_a_look_into_postgresql_reads_no_more_than_it_may(which: JobFilter, server: PostgresServer) -> None:
    """The same, by what the server says that it has read."""
    store = PostgresStore(f"{server.url}?schema=search")
    await store.open()
    await empty(store)
    await filled(store)
    lanes = None if which.tenant is None else [1]
    sought = postgres.Sought(which, LOOKS, lanes, {"ready": MANY, "scheduled": MANY, "leased": MANY})
    text = postgres.render_search(sought).replace(":schema", store.address.quoted)
    values = (NEWEST, 51, lanes, which.kind, which.error_code, which.shard_key)
    async with store.connections.borrow() as connection:
        await connection.execute(f"ANALYZE {store.address.quoted}.jobs, {store.address.quoted}.history")
        plan = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", *values)
    # In a table so small the other index may be taken, in which every other job is of another lane.
    assert 0 < max(read_by(json.loads(plan)[0]["Plan"])) <= 3 * LOOKS < MANY // 2
    await store.close()


def read_by(node: dict[str, Any]) -> Iterator[float]:
    """Rows of jobs that this part of a plan has gone through, whether they fitted or not."""
    if node.get("Relation Name", "").startswith(("jobs", "history")):
        yield node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    for inner in node.get("Plans", ()):
        yield from read_by(inner)


def test_several_ways_came_as_far_as_the_slowest() -> None:
    """Behind the end of one way, another has seen jobs that this one has still to show."""
    far, near = SearchStep([JobId("9"), JobId("3")], JobId("2")), SearchStep([JobId("8")], JobId("6"))
    assert merge_steps([far, near], 10) == SearchStep([JobId("9"), JobId("8")], JobId("6"))
    assert merge_steps([far._replace(upto=None), near._replace(upto=None)], 10) == SearchStep(
        [JobId("9"), JobId("8"), JobId("3")], None
    )
    assert merge_steps([far, near], 1) == SearchStep([JobId("9")], JobId("9"))
