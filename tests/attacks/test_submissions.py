"""A tenant that submits jobs through the worker protocol, which lets a client choose ids, needs and cursors."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served, run_service

from leaseway import App, Limit
from leaseway.domain.errors import IdConflict
from leaseway.domain.identity import Role
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import NewJob
from leaseway.domain.requirements import render_needs
from leaseway.stores.http.protocol import EXCHANGE, FIRE, VERBS
from leaseway.system import SystemIds, base32
from leaseway.testing.job_store_contract.fixtures import ContractWorker

IDS = SystemIds()
DEEP = "[" * 1_000 + "]" * 1_000


@pytest.fixture
def app(store_url: str) -> App:
    app = App(store_url)
    maps = Limit("maps", "1/minute")

    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job(limits=[maps, Limit("mail:{tenant}", "1/hour")])
    async def geocode(address: str) -> str:
        return address

    return app


@pytest.fixture
async def served(app: App) -> AsyncIterator[Served]:
    async with run_service(app, auth=True, requests_per_minute=100_000) as served:
        yield served


@pytest.fixture
async def strangers(served: Served) -> AsyncIterator[tuple[httpx2.AsyncClient, httpx2.AsyncClient]]:
    """Clients of two tenants."""
    texts = [(await key_for(served, tenant)).text for tenant in ("acme", "globex")]
    async with served.with_key(texts[0]) as acme, served.with_key(texts[1]) as globex:
        yield acme, globex


def job(**fields: Any) -> dict[str, Any]:
    return {"id": IDS.job(), "kind": "add", "payload": '{"a":1}'} | fields


async def submit(client: httpx2.AsyncClient, *jobs: dict[str, Any]) -> httpx2.Response:
    return await client.post("/v1/work/submit", json={"jobs": jobs})


# -- ids --------------------------------------------------------------------------------------------------------------


async def test_ids_that_a_tenant_books_ahead_do_not_stop_another_tenant(
    served: Served, strangers: tuple[httpx2.AsyncClient, httpx2.AsyncClient]
) -> None:
    """The attack: one tenant learns the form of an id from its own jobs, and submits under the ids of the next
    seconds. Every job of the other tenant must run, whether it has an idempotency key or not.
    """
    acme, globex = strangers
    own = (await acme.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 0}})).json()["id"]
    now = time.time_ns() // 1_000_000
    booked = [f"{base32(now + ms, 10)}{own[10:22]}{base32(count, 4)}" for ms in range(1_000) for count in range(1, 6)]
    assert (await submit(acme, *[job(id=id_, queue="elsewhere") for id_ in booked])).status_code == 200
    wanted = []
    for number in range(60):
        headers = {"Idempotency-Key": f'"order-{number}"'} if number % 2 else {}
        body = {"kind": "add", "arguments": {"a": number}}
        answer = await globex.post("/v1/jobs", json=body, headers=headers)
        assert answer.status_code == 202
        wanted.append(answer.json()["id"])
    await served.settle()
    results = [(await globex.get(f"/v1/jobs/{id_}")).json()["result"] for id_ in wanted]
    assert results == [number + 1 for number in range(60)]


async def test_the_id_of_another_tenants_job_is_an_error(
    served: Served, strangers: tuple[httpx2.AsyncClient, httpx2.AsyncClient]
) -> None:
    """A response of 200 would say that the job is stored, and it would never run."""
    acme, globex = strangers
    taken = (await acme.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 0}})).json()["id"]
    for jobs in ([job(id=taken)], [job(id=taken, key="k", fingerprint="f", key_keep_us=10**9)], [job(), job(id=taken)]):
        answer = await submit(globex, *jobs)
        assert (answer.status_code, answer.json()["code"]) == (409, "id_conflict")
        assert answer.json()["errors"][0]["pointer"] == "/id"
        assert "acme" not in answer.text
    assert (await globex.get("/v1/jobs")).json()["items"] == []
    await served.settle()
    assert (await submit(globex, job(id=taken))).status_code == 409, "the job has finished, and its id is still taken"
    assert (await submit(acme, job(id=taken))).status_code == 200, "a tenant may repeat its own submission"
    assert len((await acme.get("/v1/jobs")).json()["items"]) == 1


async def test_the_id_of_an_old_job_is_an_error(
    served: Served, strangers: tuple[httpx2.AsyncClient, httpx2.AsyncClient]
) -> None:
    """PostgreSQL looks for known ids among the jobs of the last day only. A tenant that took the id of an older job
    would hide that job from its owner.
    """
    _, globex = strangers
    days_ago = time.time_ns() // 1_000_000 - 5 * 86_400_000
    old = base32(days_ago, 10) + IDS.job()[10:]
    store = served.service.world.store
    await store.jobs.submit([NewJob(id=old, kind="add", payload='{"a":1}', tenant="acme")])  # type: ignore[arg-type]
    await served.settle()
    answer = await submit(globex, job(id=old))
    assert (answer.status_code, answer.json()["code"]) == (409, "id_conflict")
    unknown = base32(days_ago + 1, 10) + IDS.job()[10:]
    assert (await submit(globex, job(id=unknown))).status_code == 200


@pytest.mark.parametrize("days", [-100, 1, 100 * 365])
async def test_an_id_from_another_time_is_refused(
    strangers: tuple[httpx2.AsyncClient, httpx2.AsyncClient], days: int
) -> None:
    """Jobs are listed by the time in their ids: a forged one would stay at the top of everybody's list, or hide at its
    end.
    """
    forged = base32(time.time_ns() // 1_000_000 + days * 86_400_000, 10) + IDS.job()[10:]
    answer = await submit(strangers[0], job(id=forged))
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/id")
    assert "clock" in answer.text


@pytest.mark.parametrize("id_", ["z", "~" * 26, "Z" * 26, "a" * 25, "../../etc/passwd", "0" * 26])
async def test_an_id_of_another_form_is_refused(
    strangers: tuple[httpx2.AsyncClient, httpx2.AsyncClient], id_: str
) -> None:
    """It would sort before or after all others, and could not be shown by its own page."""
    answer = await submit(strangers[0], job(id=id_))
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/id")


# -- what POST /v1/jobs refuses ---------------------------------------------------------------------------------------

HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"kind": "import:ocm"}, "/kind"),
    ({"queue": "imports:ocm"}, "/queue"),
    ({"kind": "unknown"}, "/kind"),
    ({"payload": '{"a":"text"}'}, "/add/a"),
    ({"payload": '{"a":1,"x":2}'}, "/add"),
    ({"payload": "[1]"}, "/payload"),
    ({"payload": '{"a":' + DEEP + "}"}, "/payload"),
    ({"payload": '{"a":1,"b":"\\u0000"}'}, "/payload/b"),
    ({"payload": '{"a":"\\ud800"}'}, "/payload"),
    ({"payload": "{}" + " " * 300_000}, "/payload"),
    ({"cursor": "[" * 1_000}, "/cursor"),
    ({"cursor": DEEP}, "/cursor"),
    ({"cursor": "no json"}, "/cursor"),
    ({"cursor": '"\\u0000"'}, "/cursor"),
    ({"cursor": '"' + "x" * 300_000 + '"'}, "/cursor"),
    ({"priority": 1_001}, "/priority"),
    ({"run_at": 10**18}, "/run_at"),
    ({"run_at": 253_402_300_800 * 10**6}, "/run_at"),
    ({"run_at": -1}, "/run_at"),
    ({"lease_us": 1}, "/lease_us"),
    ({"timeout_us": 1}, "/timeout_us"),
    ({"key": "k", "key_keep_us": 10**15}, "/key_keep_us"),
    ({"queue": "a\u202eb"}, "/queue"),
    ({"queue": ""}, "/queue"),
    ({"needs": "no json"}, "/needs"),
    ({"needs": "[" * 900}, "/needs"),
    ({"needs": '{"limits":[{"name":"tenant:globex","limit":"tenant:globex"}]}'}, "/needs"),
    ({"needs": '{"limits":[{"name":"api:globex","limit":"api:{tenant}"}]}'}, "/needs"),
    ({"needs": '{"limits":[{"name":"mail:globex","limit":"mail:{tenant}"}]}'}, "/needs"),
    ({"needs": '{"budgets":[{"name":"spend:globex","budget":"spend:{tenant}"}]}'}, "/needs"),
    ({"needs": '{"limits":[{"name":"maps","limit":"maps","cost":-5}]}'}, "/ask maps/cost"),
]


@pytest.mark.parametrize(("fields", "pointer"), HOSTILE, ids=[str(each)[:50] for each, _ in HOSTILE])
async def test_the_worker_protocol_accepts_no_job_that_the_front_door_refuses(
    served: Served, fields: dict[str, Any], pointer: str
) -> None:
    """As a submission and as a child of a settled job: the error names the field, and nothing is stored."""
    tenant, worker = [(await key_for(served, "acme", role)).text for role in (Role.TENANT, Role.WORKER)]
    inside = served.service.world.store
    parent = NewJob(id=IDS.job(), kind="add", payload='{"a":1}', tenant="acme")
    await inside.jobs.submit([parent])
    (lease,) = await ContractWorker(inside).claim(1)
    settled = {"id": lease.id, "token": lease.token, "state": "done", "children": [job(tenant="acme", **fields)]}
    async with served.with_key(tenant) as client, served.with_key(worker) as working:
        answers = [
            await submit(client, job(**fields)),
            await working.post("/v1/work/exchange", json={"worker": "w", "settlements": [settled]}),
        ]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert [answer.json()["errors"][0]["pointer"] for answer in answers] == [pointer] * 2
    assert [each.id for each in await inside.reads.jobs(JobFilter())] == [parent.id]


@pytest.mark.parametrize("fields", [{"kind": "import:ocm"}, {"queue": "imports:ocm"}], ids=["kind", "queue"])
async def test_a_service_without_the_code_protects_jobs_of_imports(store_url: str, fields: dict[str, str]) -> None:
    """It knows no kinds and accepts all others, so nothing else would refuse a job that freezes an operator's
    import."""
    async with run_service(App(store_url), auth=True) as served:
        tenant, worker = [(await key_for(served, "acme", role)).text for role in (Role.TENANT, Role.WORKER)]
        inside = served.service.world.store
        parent = NewJob(id=IDS.job(), kind="add", payload='{"a":1}', tenant="acme")
        await inside.jobs.submit([parent])
        (lease,) = await ContractWorker(inside).claim(1)
        settled = {"id": lease.id, "token": lease.token, "state": "done", "children": [job(tenant="acme", **fields)]}
        body = {"kind": "add", "arguments": {"a": 1}} | fields
        async with served.with_key(tenant) as client, served.with_key(worker) as working:
            answers = [
                await client.post("/v1/jobs", json=body),
                await submit(client, job(**fields)),
                await working.post("/v1/work/exchange", json={"worker": "w", "settlements": [settled]}),
            ]
        assert [answer.status_code for answer in answers] == [422] * 3
        assert [answer.json()["errors"][0]["pointer"] for answer in answers] == [f"/{next(iter(fields))}"] * 3
        assert [each.id for each in await inside.reads.jobs(JobFilter())] == [parent.id]


@pytest.mark.parametrize("run_at", ["9999-12-31T23:59:59-14:00", "1970-01-01T00:00:00+00:01", "0001-01-01T00:00:00Z"])
async def test_a_time_that_cannot_be_shown_is_refused(served: Served, run_at: str) -> None:
    """In UTC it is in the year 10,000 or before 1970. Such a job would be shown without its time."""
    body = {"kind": "add", "arguments": {"a": 1}, "run_at": run_at}
    async with served.with_key((await key_for(served, "acme")).text) as client:
        single = await client.post("/v1/jobs", json=body)
        (item,) = (await client.post("/v1/jobs/bulk", json={"items": [body]})).json()["items"]
    assert (single.status_code, single.json()["errors"][0]["pointer"]) == (422, "/run_at")
    assert (item["status"], item["problem"]["errors"][0]["pointer"]) == (422, "/run_at")


async def test_a_settlement_cannot_name_a_time_that_cannot_be_shown(served: Served) -> None:
    """A snoozed job has a time as a submitted one has."""
    settled = {"id": IDS.job(), "token": "t", "state": "pending", "run_at": 253_402_300_800 * 10**6}
    async with served.with_key((await key_for(served, "acme", Role.WORKER)).text) as working:
        answer = await working.post("/v1/work/exchange", json={"worker": "w", "settlements": [settled]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/settlements/run_at")


async def test_every_verb_that_carries_jobs_checks_them(served: Served) -> None:
    """A verb that is added later must not become another way around the rules."""
    carriers = [verb for verb in VERBS if "NewJob" in str(msgspec.json.schema(verb.body))]
    assert {verb.path for verb in carriers} == {"/submit", EXCHANGE.path, FIRE.path}
    worker = (await key_for(served, "acme", Role.WORKER)).text
    fire = {"name": "nightly", "seen": 1, "upto": 2, "jobs": [job(kind="import:ocm", tenant="acme")]}
    async with served.with_key(worker) as working:
        assert (await working.post(f"/v1/work{FIRE.path}", json=fire)).status_code == 403


async def test_limits_follow_from_the_kind(
    served: Served, strangers: tuple[httpx2.AsyncClient, httpx2.AsyncClient]
) -> None:
    """A job that says that it needs nothing would be started past the limits of its kind."""
    acme, _ = strangers
    payload = '{"address":"Bern"}'
    kind = served.app.kinds["geocode"]
    expected = render_needs(kind.requirements.needs({"address": "Bern"}, "acme"))
    forged = '{"limits":[{"name":"maps","limit":"maps"}]}'
    for needs in ("", forged, expected):
        given = job(kind="geocode", payload=payload, needs=needs)
        assert (await submit(acme, given)).status_code == 200
        stored = await served.service.world.store.reads.job(given["id"])
        assert stored is not None
        assert (stored.needs, stored.tenant) == (expected, "acme")


async def test_a_limit_of_another_tenant_is_refused_by_its_plain_name(store_url: str) -> None:
    """A service without an app does not know what a kind needs. An operator can define the limit of one tenant by
    itself: its name does not show the tenant, but the template that it fills does.
    """
    async with run_service(App(store_url), auth=True) as served:
        world = served.service.world
        limits = [Limit(name, "5/minute").definition for name in ("mail:{tenant}", "mail:globex")]
        await world.limiter.definitions.declare(limits)
        needs = '{"limits":[{"name":"mail:globex","limit":"mail:globex"}]}'
        async with served.with_key((await key_for(served, "acme")).text) as client:
            answer = await submit(client, job(needs=needs))
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/needs")
        assert await world.store.reads.jobs(JobFilter()) == []


async def test_an_operator_submits_for_every_tenant(served: Served) -> None:
    """Programs of the operator submit imports and jobs of all tenants; only ids of other tenants are refused."""
    async with App(served.url, key=(await operator_of(served)).text) as program:

        @program.job(name="import:ocm")
        async def shard() -> None: ...

        stored = await program.submit(program.bind("import:ocm", {}, tenant="default"))
        store = await program.store()
        with pytest.raises(IdConflict, match=stored.id):
            await store.jobs.submit([NewJob(id=stored.id, kind="add", payload="{}", tenant="acme")])


async def test_a_full_batch_is_accepted(strangers: tuple[httpx2.AsyncClient, httpx2.AsyncClient]) -> None:
    """The rules must not be so strict or so slow that honest clients stop."""
    jobs = [job(payload=f'{{"a":{number}}}') for number in range(2_000)]
    answers = await asyncio.gather(submit(strangers[0], *jobs), submit(strangers[0], *jobs))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
