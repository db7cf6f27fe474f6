"""Documents of a MongoDB database that were changed or inserted by hand: every field of every collection.

The validators of the schema refuse what leaseway cannot read. What they accept is in the database when the readers and
the workers run: whatever it is, they must go on with everything else.
"""

import asyncio
from collections.abc import Iterator, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Int64, ObjectId
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import BulkWriteError
from tests.api.live_clients import by_polling
from tests.api.running_service import run_service
from tests.api.store_urls import empty_store
from tests.attacks.test_hostile_columns import failing_routes, list_jobs

from leaseway import App, Budget, Context, Limit
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.health import FindingLevel
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import Failure, NewJob, Settlement, State
from leaseway.domain.limits.limit import Rate
from leaseway.domain.quota import Quotas
from leaseway.domain.schedule import Schedule
from leaseway.domain.tenant import Tenant
from leaseway.ports.store import (
    Store,
    require_history,
    require_inspection,
    require_pauses,
    require_pools,
    require_workers,
)
from leaseway.stores.mongodb.connection import META
from leaseway.stores.mongodb.lanes import fold
from leaseway.stores.mongodb.schema import BUDGETS, JOBS, LAYOUTS
from leaseway.stores.mongodb.store import MongoStore
from leaseway.system import SystemIds
from leaseway.testing.clock import FakeClock
from leaseway.testing.history_contract import history_row
from leaseway.testing.key_store_contract import new_key, new_session
from leaseway.testing.workers_contract import heartbeat

Documents = AsyncDatabase[dict[str, Any]]
MISSING = object()
VALUES: Mapping[str, object] = {
    "a text": "no number",
    "an empty text": "",
    "odd characters": '\x01\x1b[2J\u202e\0"',
    "a long text": "x" * 100_000,
    "null": None,
    "true": True,
    "a list": [1, "a"],
    "an object": {"a": {"b": 1}},
    "a fraction": 1.5,
    "a date": datetime(2026, 1, 1, tzinfo=UTC),
    "the highest number": Int64(2**63 - 1),
    "the lowest number": Int64(-(2**63)),
    "minus one": -1,
    "zero": 0,
    "nothing": MISSING,
}
IDS = SystemIds()
MAPS, SPEND = Limit("maps", "1000/second"), Budget("spend", usd=100, every="day")


def build_app(url: str) -> App:
    app = App(url)

    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job(limits=[MAPS], budget=SPEND, cost_usd=0.01, queue="metered")
    async def metered(ctx: Context, a: int) -> int:
        async with ctx.call():
            return a

    return app


async def fill(app: App) -> None:
    """At least one document in every collection."""
    await fill_store(app)
    store = await app.store()
    assert isinstance(store, MongoStore)
    while await store.connections.transaction(fold):
        pass
    await app.submit(app.bind("add", {"a": 1}, queue="unfolded"))


async def fill_store(app: App) -> None:
    """On any store."""
    store = await app.store()
    clock = FakeClock()
    await submit_jobs(store)
    await store.tenants.set(
        Tenant(name="acme", weight=2, starts=(Rate(SECOND_US, 5),), concurrency=3, quotas=Quotas(lanes=5))
    )
    await require_pauses(store).pause("paused")
    await store.schedules.declare([Schedule(name="nightly", kind="add", cron="0 3 * * *")])
    await require_workers(store).beat(heartbeat())
    await require_pools(store).write("pool", None, "1", "{}")
    await require_history(store).record([history_row()])
    await store.keys.add(new_key(1, clock))
    await store.sessions.add(new_session(1, clock, seconds=10**9))
    await app.submit(app.bind("metered", {"a": 1}, key="k", tenant="acme"))
    await app.run_worker(queues=["metered"], until_empty=True)


async def submit_jobs(store: Store) -> None:
    """Jobs of every status; the cancellation of one is requested."""
    jobs = [
        NewJob(id=IDS.job(), kind="add", payload='{"a":1}', queue="setup", lease_us=86_400 * SECOND_US)
        for _ in range(4)
    ]
    worker, wants = WorkerId("w"), Wants(("setup",), 3, Token("t"))
    await store.jobs.submit(jobs[:3])
    assert len((await store.jobs.exchange(Exchange(worker, (), wants))).leases) == 3
    settled = (
        Settlement(id=jobs[1].id, token=wants.token, state=State.FAILED, failure=Failure("broken", "a", "b")),
        Settlement(id=jobs[2].id, token=wants.token, state=State.DONE, result="1"),
    )
    await store.jobs.exchange(Exchange(worker, settled))
    await store.operations.cancel(jobs[0].id)
    await store.jobs.submit(jobs[3:])
    await store.jobs.submit([NewJob(id=IDS.job(), kind="add", payload="{}", queue="setup", delay_us=10**12)])


def paths_of(document: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field, and the fields within it. Of a list, those of its first object."""
    for name, value in document.items():
        yield (*above, name)
        within = value[0] if isinstance(value, list) and value else value
        if isinstance(within, dict):
            yield from paths_of(within, (*above, name))


def changed_copy(document: Mapping[str, Any], path: tuple[str, ...], value: object, number: int) -> dict[str, Any]:
    copy = deepcopy(dict(document))
    copy["_id"] = new_id(copy["_id"], number)
    within: Any = copy
    for name in path[:-1]:
        within = within[name][0] if isinstance(within[name], list) else within[name]
    if value is MISSING:
        del within[path[-1]]
    else:
        within[path[-1]] = value
    return copy


def new_id(old: Any, number: int) -> Any:
    if isinstance(old, dict):
        first = next(iter(old))
        return {**old, first: f"{old[first]}-{number}"}
    if isinstance(old, ObjectId):
        return ObjectId()
    return IDS.job() if len(old) == len(IDS.job()) else f"{old}-{number}"


async def insert_changed(database: Documents, name: str) -> list[Any]:
    """For each field and each value a copy of a document that differs only there. Returns the ids of the accepted
    ones."""
    documents = await database[name].find().to_list()
    assert documents, f"{name} is empty"
    shapes = {tuple(paths_of(document)): document for document in documents}.values()
    changes = [(each, path, value) for each in shapes for path in paths_of(each) for value in VALUES.values()]
    copies = [changed_copy(*change, number) for number, change in enumerate(changes)]
    try:
        await database[name].insert_many(copies, ordered=False)
    except BulkWriteError as error:
        refused = {each["index"] for each in error.details["writeErrors"]}
        return [each["_id"] for number, each in enumerate(copies) if number not in refused]
    return [each["_id"] for each in copies]


@pytest.fixture
async def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return await empty_store("mongodb", request, tmp_path)


async def test_everything_else_goes_on(url: str) -> None:
    """An operator who repairs one job in a shell must not stop all the others, nor the pages that show why."""
    app = build_app(url)
    async with app, AsyncMongoClient[dict[str, Any]](url) as client:
        await fill(app)
        database: Documents = client.get_default_database()
        accepted = {name: await insert_changed(database, name) for name in LAYOUTS.keys() - {META}}
        changed = [JobId(id_) for id_ in accepted[JOBS]]
        assert changed
        async with run_service(app) as served:
            honest = [await app.submit(app.bind(kind, {"a": 1})) for kind in ("add", "metered")]
            assert await failing_routes(served, changed[::20]) == []
            assert {str(job.id) for job in honest} <= set(await list_jobs(served))
            async with by_polling(served.url) as watcher:
                await watcher.frame()
            working = asyncio.create_task(app.run_worker(queues=["default", "metered", "setup"]))
            try:
                assert [(await app.wait(job, 60)).state for job in honest] == [State.DONE] * 2
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
        findings = await require_inspection(await app.store()).health(deep=True)
    assert findings[-1].check == "failed", f"this check ended the others: {findings[-1]}"


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.validator is not None])
async def test_doctor_names_a_document_that_bypassed_the_validator(url: str, name: str) -> None:
    """mongorestore and copies of a database bypass validators."""
    async with build_app(url) as app, AsyncMongoClient[dict[str, Any]](url) as client:
        inspection = require_inspection(await app.store())
        database: Documents = client.get_default_database()
        await database[name].insert_one({"_id": "restored"}, bypass_document_validation=True)
        (found,) = [each for each in await inspection.health() if each.check == "documents"]
        assert (found.level, name in found.text, "'restored'" in found.text) == (FindingLevel.PROBLEM, True, True)


async def test_a_definition_that_cannot_be_used_is_left_out_and_named(url: str) -> None:
    """No validator knows time zones. One wrong name must not hide all other budgets."""
    async with build_app(url) as app, AsyncMongoClient[dict[str, Any]](url) as client:
        await fill(app)
        budgets = client.get_default_database()[BUDGETS]
        wrong = changed_copy(await budgets.find_one() or {}, ("definition", "tz"), "Mars/Olympus", 1)
        await budgets.insert_one(wrong)
        async with run_service(app) as served:
            listed = (await served.client.get("/v1/budgets")).json()["items"]
        assert {each["name"] for each in listed} == {"spend"}
        findings = await require_inspection(await app.store()).health()
    (found,) = [each for each in findings if each.check == "documents"]
    assert (found.level, "Mars/Olympus" in found.text) == (FindingLevel.WARNING, True)
    assert findings[-1].check == "failed", "the other checks were made as well"
