"""Hostile values in every column of the tables that hold jobs.

SQLite stores any bytes as text and, without STRICT, any value in any column; PostgreSQL allows every number of a type
and every character but NUL. For each value, each column of the job tables receives it in jobs of its own, one per
state. Whatever the value is, every reader must show all other jobs, and a worker must run them.
"""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, NamedTuple

import asyncpg
import pytest
from msgspec.structs import replace
from tests.api.live_clients import by_polling, submit_job
from tests.api.running_service import Served, run_service
from tests.attacks.routes import PARAMETER, served_routes
from tests.cli.conftest import place as place
from tests.cli.place import Place
from tests.postgres_tables import empty_schema

from leaseway import App
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import Failure, NewJob, Settlement, State
from leaseway.ports.store import Store
from leaseway.system import SystemIds

SQLITE_VALUES = {
    "a blob": "x'00ff80'",
    "invalid UTF-8": "CAST(x'22ff80c3' AS TEXT)",
    "a cut UTF-8 sequence": "CAST(x'f09f98' AS TEXT)",
    "an encoded surrogate": "CAST(x'eda080' AS TEXT)",
    "a NUL character": "'a' || char(0) || '\"b'",
    "a text": "'no number'",
    "an empty text": "''",
    "deep JSON": "replace(hex(zeroblob(5000)), '0', '[')",
    "a real number": "1e300",
    "the lowest integer": "-9223372036854775807 - 1",
    "the highest integer": "9223372036854775807",
    "minus one": "-1",
    "zero": "0",
    "null": "NULL",
}
POSTGRES_VALUES = {
    "odd characters": "E'\\x01\\x1b[2J\\u202e\\uffff\\U0010ffff\"'",
    "an empty text": "''",
    "a long text": "repeat('x', 2000000)",
    "deep JSON": "repeat('[', 5000) || repeat(']', 5000)",
    "a huge number": "'1' || repeat('0', 5000)",
    "the lowest bigint": "-9223372036854775808",
    "the highest bigint": "9223372036854775807",
    "the lowest integer": "-2147483648",
    "the highest integer": "2147483647",
    "the highest smallint": "32767",
    "the lowest smallint": "-32768",
    "minus one": "-1",
    "zero": "0",
    "null": "NULL",
}
TABLES = {"sqlite": ("jobs", "errors"), "postgres": ("jobs", "payloads", "errors", "history")}
KEYS = {"errors": "job"}
IDS = SystemIds()


class Damage(NamedTuple):
    table: str
    column: str
    value: str

    def statement(self, parameter: str) -> str:
        key = KEYS.get(self.table, "id")
        return f"UPDATE {self.table} SET {self.column} = {self.value} WHERE {key} = {parameter}"


class SqliteRows:
    """The rows of a store in SQLite, without the store's checks."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    async def list_columns(self) -> list[tuple[str, str]]:
        return [
            (table, name)
            for table in TABLES["sqlite"]
            for _, name, *_ in self.connection.execute(f"PRAGMA table_info({table})")
        ]

    async def damage(self, damage: Damage, id_: str) -> bool:
        """Return whether the schema accepted the value."""
        with suppress(sqlite3.IntegrityError):
            return self.connection.execute(damage.statement("?"), (id_,)).rowcount > 0
        return False


class PostgresRows:
    """The rows of a store in PostgreSQL, without the store's checks."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def list_columns(self) -> list[tuple[str, str]]:
        rows = await self.connection.fetch(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = current_schema() AND table_name = ANY ($1) ORDER BY table_name, ordinal_position",
            list(TABLES["postgres"]),
        )
        return [(table, column) for table, column in rows]

    async def damage(self, damage: Damage, id_: str) -> bool:
        """Return whether the schema accepted the value."""
        with suppress(asyncpg.PostgresError):
            return bool(await self.connection.fetch(f"{damage.statement('$1')} RETURNING 1", id_))
        return False


@asynccontextmanager
async def open_rows(url: str) -> AsyncIterator[SqliteRows | PostgresRows]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            yield SqliteRows(file)
        return
    address, _, schema = url.partition("?schema=")
    connection = await asyncpg.connect(address, server_settings={"search_path": schema})
    try:
        yield PostgresRows(connection)
    finally:
        await connection.close()


class DamagedStore:
    """Four jobs for each column: ready, leased, failed and done. Each has the hostile value in this column only."""

    def __init__(self, url: str, value: str) -> None:
        self.url = url
        self.value = value
        self.damaged: list[JobId] = []
        self.honest: list[JobId] = []

    async def build(self) -> None:
        async with open_rows(self.url) as rows:
            async with App(self.url) as app:
                store = await app.store()
                columns = await rows.list_columns()
                submitted = [(await self.submit(store), *column) for column in columns]
                self.honest = await self.submit(store)
            for ids, table, column in submitted:
                for id_ in ids:
                    is_damaged = await rows.damage(Damage(table, column, self.value), id_)
                    (self.damaged if is_damaged else self.honest).append(id_)

    async def submit(self, store: Store) -> list[JobId]:
        jobs = [NewJob(id=IDS.job(), kind="add", payload='{"a":1}', lease_us=86_400 * SECOND_US) for _ in range(4)]
        worker, wants = WorkerId("w"), Wants(("setup",), 3, Token(jobs[0].id))
        await store.jobs.submit([replace(job, queue="setup") for job in jobs[1:]])
        leases = (await store.jobs.exchange(Exchange(worker, (), wants))).leases
        assert [lease.id for lease in leases] == [job.id for job in jobs[1:]]
        settled = (
            Settlement(id=jobs[2].id, token=wants.token, state=State.FAILED, failure=Failure("broken", "a", "b")),
            Settlement(id=jobs[3].id, token=wants.token, state=State.DONE, result="1"),
        )
        await store.jobs.exchange(Exchange(worker, settled))
        await store.jobs.submit(jobs[:1])
        return [job.id for job in jobs]


CASES = [
    pytest.param(backend, value, id=f"{backend}: {name}")
    for backend, values in (("sqlite", SQLITE_VALUES), ("postgres", POSTGRES_VALUES))
    for name, value in values.items()
]


async def damaged_store(backend: str, value: str, request: pytest.FixtureRequest) -> DamagedStore:
    if backend == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path') / 'work.db'}"
    else:
        server = request.getfixturevalue("server")
        await empty_schema(server.url, "api")
        url = f"{server.url}?schema=api"
    store = DamagedStore(url, value)
    await store.build()
    return store


async def failing_routes(served: Served, ids: Sequence[JobId]) -> list[tuple[object, ...]]:
    failing: list[tuple[object, ...]] = []
    for way in served_routes(served.api):
        if way.method != "GET" or way.path in ("/v1/events", "/v1/work/wait"):
            continue
        names = ids if way.path.startswith("/v1/jobs/") and PARAMETER.search(way.path) else ["default"]
        for name in names:
            answer = await served.client.get(way.to(name))
            if answer.status_code >= 500:
                failing.append((way.path, name, answer.status_code, answer.text[:300]))
    for path in ("/v1/work/jobs/show", "/v1/work/jobs/errors"):
        for name in ids:
            answer = await served.client.post(path, json={"job": name})
            if not answer.is_success:
                failing.append((path, name, answer.status_code, answer.text[:300]))
    answer = await served.client.post("/v1/work/jobs/list", json={"limit": 5})
    if not answer.is_success:
        failing.append(("/v1/work/jobs/list", answer.status_code, answer.text[:300]))
    return failing


async def list_jobs(served: Served, **filters: str) -> list[str]:
    listed: list[str] = []
    params: dict[str, str | int] = {"limit": 100, **filters}
    while True:
        answer = await served.client.get("/v1/jobs", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        listed += [job["id"] for job in page["items"]]
        if page["next"] is None:
            return listed
        params["cursor"] = page["next"]


@pytest.mark.parametrize(("backend", "value"), CASES)
async def test_readers_show_and_a_worker_runs_all_other_jobs(
    backend: str, value: str, request: pytest.FixtureRequest
) -> None:
    """A reader that fails because of one row hides all the others. An exchange that does stops every worker."""
    damaged = await damaged_store(backend, value, request)
    async with run_service(App(damaged.url)) as served:
        await check_readers(served, damaged)
    await check_worker(App(damaged.url))


async def check_readers(served: Served, damaged: DamagedStore) -> None:
    assert await failing_routes(served, damaged.damaged) == []
    assert set(damaged.honest) <= set(await list_jobs(served))
    for filters in ({"state": "failed"}, {"kind": "add"}, {"queue": "default"}, {"state": "pending"}):
        await list_jobs(served, **filters)
    async with by_polling(served.url) as watcher:
        await watcher.frame()  # a snapshot of the jobs that changed last, which may all be damaged
        new = await submit_job(served)
        await watcher.until(lambda seen: new in seen.jobs)


async def check_worker(app: App) -> None:
    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    async with app:
        honest = await app.submit(app.bind("add", {"a": 1}))
        working = asyncio.create_task(app.run_worker(queues=["default", "setup"]))
        try:
            assert (await app.wait(honest, 60)).result == 2
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


ODD = ("invalid UTF-8", "a NUL character", "the highest integer", "the lowest integer")


@pytest.mark.parametrize("name", ODD)
def test_the_command_line_shows_all_other_jobs(name: str, place: Place, request: pytest.FixtureRequest) -> None:
    """An operator repairs a damaged store with these commands. They must answer, as text and as JSON."""
    damaged = asyncio.run(damaged_store("sqlite", SQLITE_VALUES[name], request))
    calls = [["jobs", "list", "--limit", "1000"], ["jobs", "list", "--state", "failed"], ["doctor"], ["lanes", "list"]]
    for call in [[*words, *options] for words in calls for options in ([], ["--json"])]:
        answer = place.run("--store", damaged.url, *call)
        assert answer.code in (0, 1) if call[0] == "doctor" else answer.code == 0, (call, answer.err[-500:])
        if call[-1] == "--json":
            json.loads(answer.out)
    for number, id_ in enumerate(damaged.damaged):
        answer = place.run("--store", damaged.url, "jobs", "why" if number % 2 else "show", id_)
        # A job whose id or lane is damaged is not found.
        assert answer.code == 0 or "no job" in answer.err, (id_, answer.err[-500:])
