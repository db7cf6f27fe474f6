"""Rows that no way into the store would write: damaged by hand, by a defect, or by a version with other rules.

One such row must not keep an operator from seeing all others, stop the live stream of everybody, or stop the workers.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace
from tests.api.live_clients import TRANSPORTS
from tests.api.running_service import Served, run_service
from tests.attacks.routes import PARAMETER, served_routes
from tests.cli.conftest import place as place
from tests.cli.place import Place
from tests.postgres_tables import empty_schema
from tests.sqlite_files import open_sqlite

from leaseway import App
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import Failure, NewJob, Settlement, State
from leaseway.ports.store import Store
from leaseway.system import SystemIds
from leaseway.testing.postgres import PostgresServer

TEXTS = {
    "deep": "[" * 900 + "]" * 900,
    "too deep for Python": '{"a":' * 60_000 + "1" + "}" * 60_000,
    "cut off": '{"a": [1, 2',
    "not JSON": "no json",
    "empty": "",
    "a lone surrogate": '"\\ud800"',
    "an escaped NUL": '{"a":"\\u0000"}',
    "not a number": "NaN",
    "a huge number": "1" + "0" * 5_000,
    "an infinite number": '{"done":1e999,"total":-1e999}',
    "another shape": '[{"done":"x","total":{},"message":[1]}]',
    "progress of another shape": '{"done":true,"total":[],"message":{"a":1}}',
    "a negative cost": '{"limits":[{"name":"a","limit":"a","cost":-5}],"budgets":[{"name":"","budget":"{x}"}]}',
    "escape sequences": '\x1b[2J\u202e"',
    "2 MB": '"' + "x" * 2_000_000 + '"',
}
COLUMNS = ("payload", "cursor", "progress", "result", "shard_key", "last_error_code", "owner")
INSTANTS = ("run_at", "created_at", "finished_at", "until", "last_error_at")
SPANS = ("lease_us", "timeout_us")
EXTREMES = (-(2**63), 2**63 - 1, 0)
KEY_LENGTH_MAX = 2_000
"""PostgreSQL cannot index longer texts, and so no lane has them."""
NULLABLE = ("cursor", "progress", "result")
IDS = SystemIds()


class Town:
    """A store with four jobs for each hostile value: pending, leased, failed and done; and a lane for each text."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ids: list[JobId] = []
        self.queues = ["default", "later"]

    async def build(self) -> "Town":
        async with App(self.url) as app:
            store = await app.store()
            stored = [(await self.submit(store, text), COLUMNS, text) for text in TEXTS.values()]
            extreme = [(await self.submit(store, ""), (*INSTANTS, *SPANS), number) for number in EXTREMES]
            for text in TEXTS.values():
                if len(text) <= KEY_LENGTH_MAX:
                    await self.damage_lanes(store, text)
            for ids, columns, value in [*stored, *extreme]:
                await self.damage(ids, columns, value)
        return self

    async def submit(self, store: Store, text: str) -> list[JobId]:
        jobs = [NewJob(id=IDS.job(), kind="add", payload="{}", lease_us=86_400 * SECOND_US) for _ in range(4)]
        worker, wants = WorkerId("w"), Wants(("default",), 3, Token(jobs[0].id))
        await store.jobs.submit(jobs[1:])
        leases = (await store.jobs.exchange(Exchange(worker, (), wants))).leases
        assert [lease.id for lease in leases] == [job.id for job in jobs[1:]]
        failure = Failure("broken", text, text)
        settled = (
            Settlement(id=leases[1].id, token=wants.token, state=State.FAILED, failure=failure),
            Settlement(id=leases[2].id, token=wants.token, state=State.DONE, result="1"),
        )
        await store.jobs.exchange(Exchange(worker, settled))
        # A pending job of an earlier round must not be claimed by this one.
        await store.jobs.submit([replace(jobs[0], queue="later")])
        self.ids += [job.id for job in jobs]
        return [job.id for job in jobs]

    async def damage(self, ids: Sequence[JobId], columns: Sequence[str], value: object) -> None:
        statements = []
        for table in ("jobs",) if self.is_sqlite else ("jobs", "payloads", "history"):
            for column in columns:
                condition = "" if column in NULLABLE else f" AND {column} IS NOT NULL"
                statements += [(f"UPDATE {table} SET {column} = ? WHERE id = ?{condition}", value, id_) for id_ in ids]
        await self.run(*statements)

    async def damage_lanes(self, store: Store, text: str) -> None:
        """One lane with these needs, and one whose queue has this name."""
        jobs = [NewJob(id=IDS.job(), kind="add", payload='{"a":1}', queue=queue) for queue in ("needs", "name")]
        await store.jobs.submit(jobs)
        self.ids += [job.id for job in jobs]
        self.queues.append(f"queue-{len(self.queues)}")
        await self.run(
            ("UPDATE lanes SET needs = ?, queue = ? WHERE queue = 'needs'", text, self.queues[-1]),
            ("UPDATE lanes SET queue = ? WHERE queue = 'name'", text),
        )

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    async def run(self, *statements: tuple[Any, ...]) -> None:
        if self.is_sqlite:
            with open_sqlite(self.url.removeprefix("sqlite:///")) as connection:
                for statement, *values in statements:
                    connection.execute(statement, values)
            return
        address, _, schema = self.url.partition("?schema=")
        connection = await asyncpg.connect(address, server_settings={"search_path": schema})
        try:
            for statement, *values in statements:
                for number in range(1, len(values) + 1):
                    statement = statement.replace("?", f"${number}", 1)
                # The columns of a job are divided between three tables.
                with suppress(asyncpg.UndefinedColumnError):
                    await connection.execute(statement, *values)
        finally:
            await connection.close()


async def answers_of(served: Served, town: Town) -> list[tuple[object, ...]]:
    """The routes and verbs that fail."""
    holes: list[tuple[object, ...]] = []
    for way in served_routes(served.api):
        if way.method != "GET" or way.path in ("/v1/events", "/v1/work/wait"):
            continue
        names = town.ids if way.path.startswith("/v1/jobs/") and PARAMETER.search(way.path) else ["default"]
        for name in names:
            answer = await served.client.get(way.to(name))
            if answer.status_code >= 500:
                holes.append((way.path, name, answer.status_code))
    for path in ("/v1/work/jobs/show", "/v1/work/jobs/errors"):
        for name in town.ids:
            answer = await served.client.post(path, json={"job": name})
            if not answer.is_success:
                holes.append((path, name, answer.status_code))
    for path, body in (("/v1/work/jobs/list", {"limit": 5}), ("/v1/work/lanes", {})):
        answer = await served.client.post(path, json=body)
        if not answer.is_success:
            holes.append((path, answer.status_code))
    return holes


async def test_every_route_shows_what_is_stored(store_url: str) -> None:
    """A list that fails because of one job hides all the others."""
    town = await Town(store_url).build()
    async with run_service(App(store_url)) as served:
        assert await answers_of(served, town) == []
        listed, params = [], {"limit": 100}
        while True:
            page = (await served.client.get("/v1/jobs", params=params)).json()
            listed += [job["id"] for job in page["items"]]
            if page["next"] is None:
                break
            params = {"limit": 100, "cursor": page["next"]}
    assert sorted(listed) == sorted(town.ids)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_live_stream_shows_what_is_stored(store_url: str, transport: str) -> None:
    """One poll serves all subscribers: if a row stops it, nobody receives anything any more."""
    town = await Town(store_url).build()
    async with run_service(App(store_url)) as served, TRANSPORTS[transport](served.url) as watcher:
        await watcher.until(lambda seen: len(set(town.ids) & set(seen.jobs)) > len(town.ids) // 2)
        honest = (await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})).json()["id"]
        await watcher.until(lambda seen: honest in seen.jobs)


async def test_workers_go_on(store_url: str) -> None:
    """A worker claims whatever is ready. Jobs that cannot be read fail; the others run."""
    town = await Town(store_url).build()
    app = App(store_url)

    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    async with app:
        honest = await app.submit(app.bind("add", {"a": 1}))
        working = asyncio.create_task(app.run_worker(queues=town.queues))
        try:
            assert (await app.wait(honest, 60)).result == 2
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


READERS = (
    ["jobs", "list", "--limit", "1000"],
    ["jobs", "list"],
    ["lanes", "list"],
    ["limits", "list"],
    ["doctor"],
    ["cron", "list"],
    ["tenants", "list"],
)


def test_the_command_line_shows_what_is_stored(place: Place, server: PostgresServer) -> None:
    """At night, the command line is what an operator has. Every reader must answer, as text and as JSON."""
    asyncio.run(empty_schema(server.url, "attacks"))
    for url in (f"sqlite:///{place.folder / 'hostile.db'}", f"{server.url}?schema=attacks"):
        town = asyncio.run(Town(url).build())
        # Each hostile value is stored in jobs of every state, so every third one of PostgreSQL shows all values.
        ids = town.ids[:: 1 if town.is_sqlite else 3]
        calls = [[*words, *options] for words in READERS for options in ([], ["--json"])]
        calls += [["jobs", words, id_] for words in ("show", "why") for id_ in ids[::2]]
        calls += [["jobs", words, id_, "--json"] for words in ("show", "why") for id_ in ids[1::2]]
        for call in calls:
            answer = place.run("--store", url, *call)
            assert answer.code in (0, 1) if call[0] == "doctor" else answer.code == 0, (call, answer.err[-500:])
            if call[-1] == "--json":
                json.loads(answer.out)


async def test_a_state_that_sqlite_should_not_hold(store_url: str) -> None:
    """PostgreSQL has a type for the states of jobs. SQLite has a text, which a defect could fill with anything."""
    if not store_url.startswith("sqlite"):
        return
    async with App(store_url) as app:
        store = await app.store()
        jobs = [NewJob(id=IDS.job(), kind="add", payload="{}") for _ in range(2)]
        await store.jobs.submit(jobs)
    town = Town(store_url)
    town.ids = [job.id for job in jobs]
    await town.run(("UPDATE jobs SET state = 'bogus' WHERE id = ?", jobs[0].id))
    async with run_service(App(store_url)) as served:
        assert await answers_of(served, town) == []
        seen: Any = (await served.client.get(f"/v1/jobs/{jobs[0].id}")).json()
        assert seen["state"] == "failed"
