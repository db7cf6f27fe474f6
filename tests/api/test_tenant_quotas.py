"""Quotas of tenants, over HTTP.

Without them, one tenant fills the disk, the list of lanes or the list of keys of all tenants. A tenant at its quota
must learn what to do, must always be able to clean up, and must not affect another tenant.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served, run_service

from leaseway import App, Context
from leaseway.api import tenant_quotas
from leaseway.domain.errors import IdConflict, QuotaExceeded
from leaseway.domain.exchange import ProgressReport
from leaseway.domain.identity import Role, Scope
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Failure, Lease, NewJob, State
from leaseway.domain.outcome import Backoff
from leaseway.domain.quota import JOB_BYTES, Quotas
from leaseway.stores.http.client import ServiceClient, parse_address
from leaseway.stores.http.store import HttpStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, new_job, retry

SMALL = Quotas(lanes=2, unfinished=3, bytes=10_000, keys=2)


@pytest.fixture
async def served(app: App) -> AsyncIterator[Served]:
    """A service whose tenants have small quotas."""
    async with run_service(app, auth=True, quotas=SMALL) as served:
        yield served


@asynccontextmanager
async def client_for(served: Served, tenant: str = "acme", **wanted: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with served.with_key((await key_for(served, tenant, **wanted)).text) as client:
        yield client


@asynccontextmanager
async def store_for(served: Served, tenant: str = "acme", role: Role = Role.WORKER) -> AsyncIterator[HttpStore]:
    """The store over HTTP, as workers and apps of a tenant use it."""
    key = await key_for(served, tenant, role)
    store = HttpStore(ServiceClient(parse_address(served.url, key.text)))
    try:
        yield store
    finally:
        await store.close()


async def submit(client: httpx2.AsyncClient, queue: str = "default", **arguments: Any) -> httpx2.Response:
    return await client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1, **arguments}, "queue": queue})


def acme_job(served: Served) -> NewJob:
    return new_job(0, id=served.app.world.ids.job(), tenant="acme", kind="add", payload='{"a":1}')


def figures(answer: httpx2.Response) -> tuple[Any, ...]:
    body = answer.json()
    return (answer.status_code, body["code"], body["quota"], body["used"], body["limit"])


async def test_a_tenant_at_its_quota_is_told_what_to_do(served: Served) -> None:
    """The response names the quota, the present use and the ways to make room; a refused job is not stored."""
    async with client_for(served) as acme:
        for _ in range(3):
            assert (await submit(acme)).status_code == 202
        refused = await submit(acme)
        assert figures(refused) == (429, "quota_exceeded", "unfinished", 3, 3)
        assert int(refused.headers["Retry-After"]) > 0
        for words in ("tenant acme has 3 unfinished jobs", "its quota is 3", "cancel some", "--quota unfinished=N"):
            assert words in refused.json()["detail"]
        assert len((await acme.get("/v1/jobs")).json()["items"]) == 3


async def test_another_tenant_is_not_affected(served: Served) -> None:
    """One tenant that has used all of its quotas must not cost another tenant a single job."""
    async with client_for(served, "acme") as acme, client_for(served, "globex") as globex:
        while (await submit(acme, "one")).status_code == 202:
            pass
        answers = [await submit(globex, queue) for queue in ("a", "b", "b")]
        assert [answer.status_code for answer in answers] == [202, 202, 202]
        assert (await submit(acme, "one")).status_code == 429


async def test_room_that_was_made_is_found_at_once(served: Served) -> None:
    """A tenant that cleans up must not be refused because of an old count."""
    async with client_for(served) as acme:
        ids = [(await submit(acme)).json()["id"] for _ in range(3)]
        assert (await submit(acme)).status_code == 429
        assert (await acme.post(f"/v1/jobs/{ids[0]}/cancel")).status_code == 200
        assert (await submit(acme)).status_code == 202
        assert (await submit(acme)).status_code == 429
        await served.settle()
        assert (await submit(acme)).status_code == 202


async def test_a_new_lane_is_refused_and_a_known_one_is_not(served: Served) -> None:
    """Each queue costs a lane, which every claim and every metric of all tenants reads."""
    async with client_for(served) as acme:
        assert [(await submit(acme, queue)).status_code for queue in ("a", "b")] == [202, 202]
        assert figures(await submit(acme, "c")) == (429, "quota_exceeded", "lanes", 2, 2)
        assert (await submit(acme, "a")).status_code == 202


async def test_stored_bytes_are_counted_until_jobs_are_deleted(served: Served) -> None:
    """Finished jobs are stored for days. Without a quota they fill the disk of all tenants."""
    async with client_for(served) as acme:
        text = "x" * 3_000
        for _ in range(2):
            answer = await acme.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": text}})
            assert answer.status_code == 202
        await served.settle()
        refused = await acme.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": text}})
        status, code, quota, used, limit = figures(refused)
        assert (status, code, quota, limit) == (429, "quota_exceeded", "bytes", 10_000)
        assert used > 2 * (3_000 + JOB_BYTES)  # with the message of the error
        counted = (await acme.get("/v1/quotas")).json()["quotas"]
        assert [each["used"] for each in counted if each["quota"] == "bytes"] == [used]
        deleted = await acme.post("/v1/jobs/discard", json={"filter": {"states": ["failed"]}, "confirm": 2})
        assert deleted.json()["discarded"] == 2
        again = await acme.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": text}})
        assert again.status_code == 202


async def test_a_job_that_exceeds_the_whole_quota_is_413(served: Served) -> None:
    """Waiting does not help, so a client must not repeat the request."""
    async with client_for(served) as acme:
        answer = await acme.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": "x" * 20_000}})
        assert figures(answer) == (413, "quota_exceeded", "bytes", 0, 10_000)
        assert "Retry-After" not in answer.headers


async def test_of_a_bulk_submission_as_many_jobs_are_stored_as_fit(served: Served) -> None:
    """Items are independent: those beyond the quota are refused one by one."""
    async with client_for(served) as acme:
        items = [{"kind": "add", "arguments": {"a": number}} for number in range(5)]
        answer = (await acme.post("/v1/jobs/bulk", json={"items": items})).json()["items"]
        assert [each["status"] for each in answer] == [202, 202, 202, 429, 429]
        assert answer[3]["problem"]["quota"] == "unfinished"
        assert len((await acme.get("/v1/jobs")).json()["items"]) == 3


async def test_concurrent_requests_do_not_exceed_the_quota(served: Served) -> None:
    """Requests that arrive together must not all find the same free place."""
    async with client_for(served) as acme:
        answers = await asyncio.gather(*[submit(acme) for _ in range(20)])
        assert sorted(answer.status_code for answer in answers) == [202] * 3 + [429] * 17


async def test_two_processes_share_the_count(served: Served, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters of the store are the truth. A process that has just counted itself may lag by a second."""
    other_app = App(store_url)
    async with run_service(other_app, auth=True, quotas=SMALL) as other:
        key = (await key_for(served)).text
        async with served.with_key(key) as here, other.with_key(key) as there:
            assert (await submit(here)).status_code == 202
            assert (await submit(there)).status_code == 202
            monkeypatch.setattr(tenant_quotas, "USE_SECONDS", 0.0)
            assert (await submit(here)).status_code == 202
            assert figures(await submit(there)) == (429, "quota_exceeded", "unfinished", 3, 3)
            assert figures(await submit(here)) == (429, "quota_exceeded", "unfinished", 3, 3)


async def test_two_processes_exceed_a_quota_by_a_second_at_most(served: Served, store_url: str) -> None:
    """The stated bound: within one second, each process admits what its last count left free, and no more after it."""
    async with run_service(App(store_url), auth=True, quotas=SMALL) as other:
        key = (await key_for(served)).text
        async with served.with_key(key) as here, other.with_key(key) as there:
            pairs = [asyncio.gather(submit(here), submit(there)) for _ in range(6)]
            answers = [answer for pair in await asyncio.gather(*pairs) for answer in pair]
            stored = [answer for answer in answers if answer.status_code == 202]
            assert 3 <= len(stored) <= 6
            assert (await submit(here)).status_code == (await submit(there)).status_code == 429


# -- repetitions ----------------------------------------------------------------------------------------------------


async def fill(client: httpx2.AsyncClient) -> None:
    while (await submit(client)).status_code == 202:
        pass


async def test_a_repetition_is_answered_at_the_quota(served: Served) -> None:
    """Its client never learned the id of the job that it has submitted. The repetition needs no room, so a 429 would
    lose the job from the client's view for as long as the tenant has no room."""
    body, headers = {"kind": "add", "arguments": {"a": 1}}, {"Idempotency-Key": '"order-7"'}
    async with client_for(served) as acme, client_for(served, "globex") as globex:
        first = await acme.post("/v1/jobs", json=body, headers=headers)
        await fill(acme)
        again = await acme.post("/v1/jobs", json=body, headers=headers)
        assert (again.status_code, again.json()) == (202, first.json())
        assert again.headers["Idempotent-Replayed"] == "true"
        other_body = await acme.post("/v1/jobs", json={**body, "arguments": {"a": 2}}, headers=headers)
        assert (other_body.status_code, other_body.json()["code"]) == (422, "key_conflict")
        other_key = await acme.post("/v1/jobs", json=body, headers={"Idempotency-Key": '"order-8"'})
        assert figures(other_key) == (429, "quota_exceeded", "unfinished", 3, 3)
        await fill(globex)
        foreign = await globex.post("/v1/jobs", json=body, headers=headers)
        assert figures(foreign) == (429, "quota_exceeded", "unfinished", 3, 3)
        assert len((await acme.get("/v1/jobs")).json()["items"]) == 3


async def test_repetitions_in_a_bulk_submission_are_answered_at_the_quota(served: Served) -> None:
    """A client repeats the whole request after a lost reply: known items have their jobs, new ones are refused."""
    items = [{"kind": "add", "arguments": {"a": number}, "key": f"order-{number}"} for number in range(4)]
    async with client_for(served) as acme:
        first = (await acme.post("/v1/jobs/bulk", json={"items": items[:3]})).json()["items"]
        again = (await acme.post("/v1/jobs/bulk", json={"items": items[::-1]})).json()["items"]
        assert [each["status"] for each in again] == [429, 202, 202, 202]
        assert [each["id"] for each in again[:0:-1]] == [each["id"] for each in first]
        assert all(each["replayed"] for each in again[1:])


async def test_a_repetition_waits_for_the_first_request_at_the_quota(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose connection broke repeats at once, while the first request is still being stored. That request
    may have taken the last place."""
    submitter, begun, stored = served.service.submitter, asyncio.Event(), asyncio.Event()
    store_jobs = submitter._store_jobs

    async def slowly(jobs: Any) -> Any:
        begun.set()
        await stored.wait()
        return await store_jobs(jobs)

    monkeypatch.setattr(submitter, "_store_jobs", slowly)
    body, headers = {"kind": "add", "arguments": {"a": 1}}, {"Idempotency-Key": '"order-7"'}
    async with client_for(served) as acme:
        first = asyncio.create_task(acme.post("/v1/jobs", json=body, headers=headers))
        await begun.wait()
        others = [asyncio.create_task(submit(acme)) for _ in range(3)]
        await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)  # two of the three have a place
        again = asyncio.create_task(acme.post("/v1/jobs", json=body, headers=headers))
        await asyncio.wait([again], timeout=0.2)
        stored.set()
        assert (await again).json() == (await first).json()
        assert [(await each).status_code for each in others].count(202) == 2


async def test_repetitions_of_the_worker_protocol_are_answered_at_the_quota(served: Served) -> None:
    """An app over HTTP repeats a call whose reply was lost, with the same ids. Known jobs need no room, new ones do."""
    keyed = replace(acme_job(served), key="order-7", fingerprint="same", key_keep_us=3_600_000_000)
    jobs = [acme_job(served), acme_job(served), keyed]
    async with store_for(served, role=Role.TENANT) as store:
        first = await store.jobs.submit(jobs)
        assert await store.jobs.submit(jobs) == first
        (same_key,) = await store.jobs.submit([replace(keyed, id=served.app.world.ids.job())])
        assert (same_key.id, same_key.replayed) == (keyed.id, True)
        with pytest.raises(QuotaExceeded, match="1 more would exceed it"):
            await store.jobs.submit([*jobs, acme_job(served)])
        with pytest.raises(QuotaExceeded):
            await store.jobs.submit([acme_job(served)])
    async with store_for(served, "globex", role=Role.TENANT) as other:
        with pytest.raises(IdConflict):
            await other.jobs.submit([replace(jobs[0], tenant="globex")])


async def test_a_settlement_is_repeated_at_the_quota(served: Served) -> None:
    """The children of a repeated settlement are stored already. The repetition must not be turned into another
    settlement, which the store would report as lost."""
    store = served.service.world.store
    await store.jobs.submit([acme_job(served)])
    async with store_for(served) as over_http:
        worker = ContractWorker(over_http)
        settlement = done(await worker.claim_one(), children=tuple(acme_job(served) for _ in range(3)))
        first = await worker.exchange(settlement)
        again = await worker.exchange(settlement, repeat=True)
        assert (first.lost, again.lost) == ((), ())
    parent = await store.reads.job(settlement.id)
    assert parent is not None
    assert (parent.state, parent.last_error_code) == (State.DONE, None)


# -- the worker protocol --------------------------------------------------------------------------------------------


async def test_submissions_of_the_worker_protocol_have_the_same_quotas(served: Served) -> None:
    """An app over HTTP submits there. The call is one transaction: all of its jobs are stored, or none."""
    async with store_for(served, role=Role.TENANT) as store:
        jobs = [acme_job(served) for _ in range(4)]
        with pytest.raises(QuotaExceeded, match="tenant acme has 0 unfinished jobs, and its quota is 3"):
            await store.jobs.submit(jobs)
        await store.jobs.submit(jobs[:3])
        with pytest.raises(QuotaExceeded, match="Wait until jobs finish"):
            await store.jobs.submit(jobs[3:])
    assert len(await served.service.world.store.reads.lanes("acme")) == 1


async def test_a_settlement_is_accepted_at_the_quota(served: Served) -> None:
    """A worker that could not settle could never make room. Children that do not fit are not stored: the job runs again
    later, with an error that says why."""
    store = served.service.world.store
    await store.jobs.submit([acme_job(served) for _ in range(3)])
    async with store_for(served) as over_http:
        worker = ContractWorker(over_http)
        one, two, three = await worker.claim(3)
        children = (acme_job(served), acme_job(served))
        reply = await worker.settle(done(one, children=children), done(two), done(three, children=children[:0]))
        assert reply.lost == ()
    found = {job.id: job for job in [await store.reads.job(lease.id) for lease in (one, two, three)] if job}
    assert [found[lease.id].state for lease in (one, two, three)] == [State.PENDING, State.DONE, State.DONE]
    assert found[one.id].last_error_code == "quota_exceeded"
    assert "quota unfinished" in (await store.reads.errors(one.id))[0].message
    assert await store.reads.job(children[0].id) is None


async def test_a_child_takes_the_place_of_its_parent(served: Served) -> None:
    """A chain of jobs at the quota must not stop: each job finishes as the next one is stored."""
    store = served.service.world.store
    await store.jobs.submit([acme_job(served) for _ in range(3)])
    async with store_for(served) as over_http:
        worker = ContractWorker(over_http)
        child = acme_job(served)
        await worker.settle(done(await worker.claim_one(), children=(child,)))
    assert await store.reads.job(child.id) is not None


async def test_a_job_whose_children_never_fit_runs_a_bounded_number_of_times(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run repeats the effects of the handler. A tenant that never makes room must not cost its worker a slot for
    ever, and its owner must learn why the job failed."""
    monkeypatch.setattr(tenant_quotas, "QUOTA_BACKOFF", Backoff(0.0))
    store = served.service.world.store
    parent = replace(acme_job(served), attempts_max=3)
    await store.jobs.submit([parent, *(replace(acme_job(served), queue="other") for _ in range(2))])
    async with store_for(served) as over_http:
        worker = ContractWorker(over_http)
        runs = 0
        while leases := await worker.claim():
            runs += 1
            await worker.settle(done(leases[0], children=(acme_job(served), acme_job(served))))
    failed = await store.reads.job(parent.id)
    assert failed is not None
    assert (runs, failed.state, failed.last_error_code, failed.attempts) == (3, State.FAILED, "quota_exceeded", 3)
    errors = await store.reads.errors(parent.id)
    assert len(errors) == 3
    assert all("Wait until jobs finish" in error.message for error in errors)
    assert len(await store.reads.jobs(JobFilter())) == 3


async def leased_jobs(served: Served, worker: ContractWorker, count: int) -> tuple[Lease, ...]:
    await served.service.world.store.jobs.submit([acme_job(served) for _ in range(count)])
    return await worker.claim(count)


async def test_a_checkpoint_without_room_is_refused(served: Served) -> None:
    """Cursors of unfinished jobs are stored for as long as a tenant likes. With a hundred thousand jobs, it could keep
    gigabytes beside its quota. Small cursors are stored, so that a tenant at its quota can finish its jobs."""
    async with store_for(served) as store:
        worker = ContractWorker(store)
        one, two = await leased_jobs(served, worker, 2)
        large, small = f'"{"x" * 6_000}"', '"small"'
        assert await store.jobs.checkpoint(one.id, one.token, large)
        with pytest.raises(QuotaExceeded, match="quota bytes: tenant acme has"):
            await store.jobs.checkpoint(two.id, two.token, large)
        assert await store.jobs.checkpoint(two.id, two.token, small)
        assert await store.jobs.checkpoint(one.id, one.token, small)
        assert await store.jobs.checkpoint(two.id, two.token, large), "the room that was made is not found"
        with pytest.raises(QuotaExceeded):
            await store.jobs.checkpoint(one.id, one.token, f'"{"x" * 20_000}"')
        await worker.settle(done(one), done(two))
    assert [job.cursor for job in await served.service.world.store.reads.jobs(JobFilter())] == [large, small]


async def test_progress_and_tracebacks_without_room_are_left_out(served: Served) -> None:
    """They are shown to people, and no job depends on them: a worker of a tenant at its quota must be able to go on."""
    large = f'"{"x" * 6_000}"'
    async with store_for(served) as store:
        worker = ContractWorker(store)
        one, two, three = await leased_jobs(served, worker, 3)
        await store.jobs.report([ProgressReport(one.id, one.token, large)])
        await store.jobs.report([ProgressReport(two.id, two.token, large), ProgressReport(three.id, three.token, "1")])
        error = Failure("broken", "m" * 600, "t" * 6_000)
        await worker.settle(retry(two, progress=large, failure=error, delay_us=9), done(three, result=large))
    reads = served.service.world.store.reads
    first, second, third = reversed(await reads.jobs(JobFilter()))
    assert (first.progress, second.progress, third.progress) == (large, None, "1")
    assert third.result == large, "a result was not stored, and its job would run again"
    assert [(each.code, each.message, each.traceback) for each in await reads.errors(two.id)] == [
        ("broken", "m" * JOB_BYTES, "")
    ]


async def test_workers_of_all_tenants_store_texts_without_a_quota(served: Served) -> None:
    """They run the operator's code for every tenant, and a quota of one of them must not apply to the others."""
    key = await key_for(served, None, Role.WORKER)
    store = HttpStore(ServiceClient(parse_address(served.url, key.text)))
    (lease,) = await leased_jobs(served, ContractWorker(store), 1)
    assert await store.jobs.checkpoint(lease.id, lease.token, f'"{"x" * 20_000}"')
    await store.close()


def test_the_wait_for_room_grows() -> None:
    """As the guide says: 15 minutes with the default of 5 attempts."""
    waits = [tenant_quotas.QUOTA_BACKOFF.delay_us(attempt, 0.0) // 60_000_000 for attempt in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert sum(waits[:4]) == 15


async def test_a_worker_goes_on_when_children_have_no_room(served: Served) -> None:
    """One job with too many children must not stop the worker, delay its other jobs, or run again for ever: it runs
    again later if its children can fit then, and fails if they need more than the whole quota."""
    key = (await key_for(served, "acme", Role.WORKER)).text
    store = served.service.world.store
    async with App(served.url, key=key) as app:

        @app.job
        async def add(a: int) -> int:
            return a

        @app.job
        async def parent(ctx: Context, children: int) -> None:
            for _ in range(children):
                ctx.submit(app.bind("add", {"a": 1}, queue="later"))

        wanted = [5, 3, 1, 0]
        jobs = [
            new_job(number, tenant="acme", kind="parent", payload=f'{{"children":{count}}}')
            for number, count in enumerate(wanted, start=1)
        ]
        await store.jobs.submit([*jobs, acme_job(served)])
        worker = app.worker(queues=["default"], concurrency=1)
        working = asyncio.create_task(worker.run())
        is_done = JobFilter(states=(State.DONE,))
        while len(await store.reads.jobs(is_done)) < 3:  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.02)
        worker.drain()
        worked = await working
    assert worked.is_clean
    found = [job for job in [await store.reads.job(each.id) for each in jobs] if job]
    assert [job.state.value for job in found] == ["failed", "pending", "done", "done"]
    assert [job.last_error_code for job in found] == ["child_refused", "quota_exceeded", None, None]
    assert found[1].attempts == 1
    (error,) = await store.reads.errors(jobs[0].id)
    assert "4 more would exceed it" in error.message
    assert len(await store.reads.jobs(JobFilter(queue="later"))) == 1


# -- settings -------------------------------------------------------------------------------------------------------


async def test_an_operator_sets_the_quotas_of_a_tenant(served: Served) -> None:
    """Omitted quotas have the defaults, null is unlimited, and a change takes effect with the next submission."""
    async with client_for(served) as acme, served.with_key((await operator_of(served)).text) as operator:
        sent = {"unfinished": 4, "lanes": None}
        made = await operator.put("/v1/tenants/acme", json={"quotas": sent})
        assert (made.status_code, made.json()["quotas"]) == (201, sent)
        assert [(await submit(acme, queue)).status_code for queue in "abcde"] == [202] * 4 + [429]
        shown = (await acme.get("/v1/quotas")).json()
        limits = {each["quota"]: each["limit"] for each in shown["quotas"]}
        assert (shown["tenant"], limits) == ("acme", {"lanes": None, "unfinished": 4, "bytes": 10_000, "keys": 2})
        assert (await operator.get("/v1/quotas", params={"tenant": "acme"})).json() == shown
        assert (await acme.put("/v1/tenants/acme", json={})).status_code == 403
        await operator.put("/v1/tenants/acme", json={"quotas": {"unfinished": 5}})
        assert (await submit(acme, "a")).status_code == 202
        assert (await operator.delete("/v1/tenants/acme")).status_code == 204
        assert (await submit(acme, "a")).status_code == 429


async def test_a_bad_quota_is_pointed_at(served: Served) -> None:
    """No part of invalid settings may take effect."""
    async with served.with_key((await operator_of(served)).text) as operator:
        for quotas in ({"lanes": -1}, {"bytes": "much"}, {"disk": 1}, {"keys": 10**16}):
            answer = await operator.put("/v1/tenants/acme", json={"quotas": quotas})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), quotas
            assert "/quotas" in answer.json()["errors"][0]["pointer"], answer.json()
        assert (await operator.get("/v1/tenants/acme")).status_code == 404


async def test_the_operator_has_the_quotas_that_were_set_and_no_defaults(served: Served) -> None:
    """On a laptop, the only user is the operator, and a default would only be in the way."""
    async with served.with_key((await key_for(served, "default", Role.OPERATOR)).text) as operator:
        for number in range(5):
            assert (await submit(operator, f"queue-{number}")).status_code == 202
        await operator.put("/v1/tenants/default", json={"quotas": {"unfinished": 5}})
        assert figures(await submit(operator)) == (429, "quota_exceeded", "unfinished", 5, 5)


async def test_an_app_with_direct_access_has_no_quotas(served: Served) -> None:
    """It is part of the operator's own system."""
    await served.service.world.store.jobs.submit([acme_job(served) for _ in range(5)])
    (lane,) = await served.service.world.store.reads.lanes("acme")
    assert lane.ready == 5


async def test_refusals_are_counted(served: Served) -> None:
    """An operator must see that a tenant needs more, or misbehaves."""
    async with client_for(served) as acme, served.with_key((await operator_of(served)).text) as operator:
        for _ in range(5):
            await submit(acme)
        text = (await operator.get("/metrics")).text
        assert 'leaseway_quota_refusals_total{quota="unfinished"} 2' in text
        assert 'leaseway_quota_refusals_total{quota="bytes"} 0' in text


# -- keys -----------------------------------------------------------------------------------------------------------


async def test_an_admin_of_one_tenant_has_a_quota_of_keys(served: Served) -> None:
    """The store keeps a bounded number of keys for all tenants; one tenant must not use them up. Revoking makes room,
    and a key can be rotated at the quota."""
    scopes = (Scope.ADMIN, Scope.JOBS_READ, Scope.JOBS_WRITE)
    made = await key_for(served, "acme", Role.OPERATOR, scopes=scopes)
    async with served.with_key(made.text) as admin:
        wanted = {"role": "tenant", "tenant": "acme", "scopes": ["jobs:read"]}
        second = await admin.post("/v1/keys", json=wanted)
        assert second.status_code == 201
        refused = await admin.post("/v1/keys", json=wanted)
        assert figures(refused) == (429, "quota_exceeded", "keys", 2, 2)
        assert "revoke keys" in refused.json()["detail"].lower()
        rotated = await admin.post(f"/v1/keys/{second.json()['id']}/rotate", json={"grace_seconds": 60})
        assert rotated.status_code == 201
        again = await admin.post(f"/v1/keys/{rotated.json()['id']}/rotate", json={"grace_seconds": 60})
        assert again.status_code == 429
        for id_ in (second.json()["id"], rotated.json()["id"]):
            assert (await admin.delete(f"/v1/keys/{id_}")).status_code == 200
        assert (await admin.post("/v1/keys", json=wanted)).status_code == 201


async def test_revoked_keys_of_a_tenant_do_not_pile_up(served: Served) -> None:
    """A revoked key stays visible for weeks. A tenant that creates and revokes keys must not fill the list of all."""
    made = await key_for(served, "acme", Role.OPERATOR, scopes=(Scope.ADMIN, Scope.JOBS_READ))
    async with served.with_key(made.text) as admin:
        for _ in range(6):
            key = await admin.post("/v1/keys", json={"tenant": "acme", "scopes": ["jobs:read"]})
            assert (await admin.delete(f"/v1/keys/{key.json()['id']}")).status_code == 200
    assert len(await served.service.world.store.keys.all("acme")) <= 1 + 2 + 1
