"""The request quota of one tenant, shared by all processes of the service."""

import asyncio
from collections import Counter

import pytest
from tests.api.keys import key_for
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.api.auth.tenant_rate_limit import AT_ONCE, TenantRateLimit, limit_definitions, rate_limit_terms
from leaseway.api.errors import Problem
from leaseway.api.settings import ServiceSettings
from leaseway.domain.errors import StoreBusy
from leaseway.domain.identity import Role
from leaseway.domain.limits.buckets import Verdict
from leaseway.stores.http.client import ServiceClient, parse_address
from leaseway.stores.http.store import HttpStore

WAIT = "/v1/work/wait?seconds=0"


def limiting_of(served: Served, settings: ServiceSettings, holder: str) -> TenantRateLimit:
    """Another process of the service at the same store."""
    return TenantRateLimit(served.service.world.limiter, served.service.world.clock, settings, holder)


async def test_a_tenant_that_asks_too_much_is_told_when_to_come_back(app: App) -> None:
    """The tenant must learn when to retry, and other tenants must not be affected."""
    async with run_service(app, auth=True, requests_per_minute=600) as served:
        loud, calm = await key_for(served, "loud"), await key_for(served, "calm")
        async with served.with_key(loud.text) as client:
            answers = await asyncio.gather(*(client.get("/v1/jobs") for _ in range(150)))
        async with served.with_key(calm.text) as client:
            assert (await client.get("/v1/jobs")).status_code == 200
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert (refused.json()["code"], refused.json()["violated-policies"]) == ("rate_limited", ["minute"])
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["ratelimit-policy"] == '"minute";q=600;w=60, "at-once";q=200;qu="concurrent-requests"'
    assert refused.headers["ratelimit"].startswith('"minute";r=0;t=')
    taken = next(answer for answer in answers if answer.status_code == 200)
    assert taken.headers["ratelimit"].startswith('"minute";r=')


async def test_operators_and_workers_of_all_tenants_are_not_limited(app: App) -> None:
    """A limit of one tenant on them would stop the work of all tenants."""
    async with run_service(app, auth=True, requests_per_minute=10, worker_requests_per_minute=10) as served:
        for role, path in ((Role.OPERATOR, "/v1/jobs"), (Role.WORKER, WAIT)):
            async with served.with_key((await key_for(served, None, role)).text) as client:
                answers = [await client.get(path) for _ in range(15)]
            assert {answer.status_code for answer in answers} == {200}


async def test_the_workers_of_one_tenant_have_a_limit_of_their_own(app: App) -> None:
    """A tenant's worker that sends requests in a tight loop must not take the service from others, nor from the clients
    of its own tenant."""
    async with run_service(app, auth=True, worker_requests_per_minute=600) as served:
        loud, calm = [await key_for(served, tenant, Role.WORKER) for tenant in ("acme", "globex")]
        async with served.with_key(loud.text) as client:
            answers = await asyncio.gather(*(client.get(WAIT) for _ in range(150)))
        for key, path in ((calm, WAIT), (await key_for(served, "acme"), "/v1/jobs")):
            async with served.with_key(key.text) as client:
                assert (await client.get(path)).status_code == 200
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["code"] == "rate_limited"
    assert "the workers of this tenant is 600 requests per minute" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_worker_over_http_waits_when_it_is_told_to(app: App) -> None:
    """A refused exchange is not an error of the worker: it comes back when the service says, and loses nothing."""
    async with run_service(app, auth=True, worker_requests_per_minute=240) as served:
        key = (await key_for(served, "acme", Role.WORKER)).text
        store = HttpStore(ServiceClient(parse_address(served.url, key)))

        counted, calls, route = served.api.state.requests.counts, 0, ("POST", "/v1/work/tenants/list")
        while not counted[route, "4xx"]:  # a new limit starts full
            assert await store.tenants.all() == []
            calls += 1
        await store.close()
        assert counted[route, "2xx"] == calls


async def test_a_worker_over_http_does_not_wait_for_longer_than_a_call_may_take(app: App) -> None:
    """The caller decides what to do in the meantime, for example give a job back."""
    async with run_service(app, auth=True, worker_requests_per_minute=1) as served:
        key = (await key_for(served, "acme", Role.WORKER)).text
        store = HttpStore(ServiceClient(parse_address(served.url, key)))
        await store.tenants.all()  # a new limit starts full
        with pytest.raises(StoreBusy, match="try again in"):
            await asyncio.wait_for(store.tenants.all(), 10)
        await store.close()


async def test_all_processes_together_let_no_more_in_at_once(served: Served) -> None:
    """A quota per process would grow with each process that is added."""
    settings = ServiceSettings(requests_at_once=10, requests_per_minute=100_000)
    processes = [limiting_of(served, settings, f"process {number}") for number in range(3)]
    for each in processes:
        await each.open()
    admitted, refused = [], 0
    for number in range(30):
        try:
            admitted.append(await processes[number % 3].admit("acme"))
        except Problem as problem:
            refused += problem.extra == {"violated-policies": ["at-once"]}
    # A process that reserved in-flight calls without using them withholds them from others for a moment, so the count
    # can be lower but never higher.
    assert 1 <= len(admitted) <= 10
    assert refused == 30 - len(admitted)
    for let_in in admitted:
        let_in.release()
        let_in.release()  # a second release has no effect
    assert all(allowance.in_progress == 0 for each in processes for allowance in each._quotas.values())
    for each in processes:
        await each.close()
    last = limiting_of(served, settings, "last")
    await last.open()
    again = [await last.admit("acme") for _ in range(10)]
    assert len(again) == 10, "the seats of those who left are free"
    await last.close()


async def test_seats_that_are_not_needed_are_left_to_other_processes(served: Served) -> None:
    """A process that reserves capacity and does not use it would make the others refuse requests."""
    settings = ServiceSettings(requests_at_once=8)
    first, second = limiting_of(served, settings, "first"), limiting_of(served, settings, "second")
    await first.open()
    await second.open()
    one = await first.admit("acme")  # reserved all eight
    one.release()
    for _ in range(2):  # the first call reports that one was needed since the last call
        await first._quotas["acme"].renew()
    assert (await second.admit("acme")).headers
    await first.close()
    await second.close()


async def test_a_request_that_is_refused_keeps_no_seat(served: Served) -> None:
    """Capacity that leaks with each refusal would lock the tenant out."""
    limiting = limiting_of(served, ServiceSettings(requests_at_once=5, requests_per_minute=2), "one")
    await limiting.open()
    results = await asyncio.gather(*(limiting.admit("acme") for _ in range(20)), return_exceptions=True)
    refused = [each for each in results if isinstance(each, Problem)]
    assert refused
    assert limiting._quotas["acme"].in_progress == 20 - len(refused)
    await limiting.close()


async def test_a_busy_tenant_does_not_cost_a_call_for_each_request(served: Served) -> None:
    """One limiter call per request would double the load on the store."""
    limiting = limiting_of(served, ServiceSettings(requests_per_minute=1_000_000), "one")
    await limiting.open()
    taken, take = 0, served.service.world.limiter.acquire

    async def counted(*arguments: object, **options: object) -> Verdict:
        nonlocal taken
        taken += 1
        return await take(*arguments, **options)  # type: ignore[arg-type]

    served.service.world.limiter.acquire = counted  # type: ignore[method-assign]
    (await limiting.admit("acme")).release()
    await asyncio.sleep(0.2)  # a new limit starts empty, and 500 admissions are quicker than its first permits
    for _ in range(500):
        (await limiting.admit("acme")).release()
    # Ten doublings, one call for the concurrency limit, and one call per second of the test.
    assert taken < 100
    await limiting.close()


async def test_a_limiter_that_does_not_answer_is_no_reason_to_refuse(served: Served) -> None:
    """The quota protects the service, and its outage must not become an outage of the service."""
    limiting = limiting_of(served, ServiceSettings(), "one")
    await limiting.open()

    async def busy(*_: object, **__: object) -> Verdict:
        raise StoreBusy("not now")

    served.service.world.limiter.acquire = busy  # type: ignore[method-assign]
    assert (await limiting.admit("acme")).headers
    await limiting.close()


async def test_limits_that_somebody_forgot_are_declared_again(served: Served) -> None:
    """An operator may delete the limit, and all requests would fail from then on."""
    limiting = limiting_of(served, ServiceSettings(), "one")
    await limiting.open()
    for definition in limit_definitions(rate_limit_terms(ServiceSettings(), "one")):
        assert await served.service.world.limiter.definitions.forget(definition.name)
    assert (await limiting.admit("acme")).headers
    assert AT_ONCE in [definition.name for definition, _ in await served.service.world.limiter.definitions.all()]
    await limiting.close()


async def test_the_longest_name_of_a_tenant_has_a_limit_too(served: Served) -> None:
    """A name that is too long for the limiter would be refused or be unlimited."""
    limiting = limiting_of(served, ServiceSettings(), "one")
    await limiting.open()
    assert (await limiting.admit("t" * 200)).headers
    await limiting.close()
