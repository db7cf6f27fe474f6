"""Workers over HTTP: which jobs a key may lease, and how errors reach the worker.

The contract suites run over HTTP elsewhere: tests/stores, tests/limits and tests/budgets.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace
from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served, run_service
from tests.api.shared_service import service_in_memory, shared

from leaseway import App, Budget, Context, Limit
from leaseway.api.worker_protocol.routes import store_errors
from leaseway.domain.budgets.budget import Charge
from leaseway.domain.errors import (
    BadValue,
    KeyConflict,
    LeasewayError,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TransientError,
    UnknownBudget,
    UnknownLimit,
    UnknownOutcome,
)
from leaseway.domain.exchange import GRANT_MAX
from leaseway.domain.identity import Role
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import State
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.schedule import Schedule
from leaseway.stores.http.client import ServiceClient, parse_address
from leaseway.stores.http.protocol import VERBS
from leaseway.stores.http.store import HttpStore
from leaseway.stores.memory.store import MemoryStore
from leaseway.system import SystemIds
from leaseway.telemetry.log import LogEvents
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, id_of, keyed_job, new_job
from leaseway.wiring import build_environment
from leaseway.worker.environment import Environment


def with_jobs(app: App) -> App:
    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    return app


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A service with authentication, over SQLite."""
    async with run_service(with_jobs(App(f"sqlite:///{tmp_path / 'work.db'}")), auth=True) as served:
        yield served


@pytest.fixture
async def world(served: Served) -> AsyncIterator[Callable[[str], Environment]]:
    """The environment of a client with this key."""
    made: list[Environment] = []

    def with_key(key: str) -> Environment:
        made.append(build_environment(served.url, None, LogEvents(), key))
        return made[-1]

    yield with_key
    for each in made:
        await each.limiter.close()
        await each.store.close()


# -- authorization --------------------------------------------------------------------------------------------------


async def test_a_worker_needs_no_more_than_an_address_and_a_key(served: Served) -> None:
    """Remote workers must not need database credentials."""
    ids = [(await served.app.submit(served.app.bind("add", {"a": n}))).id for n in range(30)]
    key = (await key_for(served, None, Role.WORKER)).text
    async with with_jobs(App(served.url, key=key)) as app:
        worked = await app.run_worker(until_empty=True)
    assert (worked.settled, worked.lost, worked.is_clean) == (30, 0, True)
    jobs = [await served.app.find(id_) for id_ in ids]
    assert [job.result for job in jobs if job is not None] == [n + 1 for n in range(30)]


async def test_results_that_exceed_one_request_are_sent_in_several(tmp_path: Path) -> None:
    """A worker whose jobs end together must not stop because their results do not fit into one request."""

    def with_long_results(app: App) -> App:
        @app.job
        async def long(number: int) -> str:
            await started.wait()
            return "x" * 250_000

        return app

    started, count = asyncio.Event(), 100
    async with run_service(with_long_results(App(f"sqlite:///{tmp_path / 'work.db'}"))) as served:
        await served.app.submit_many([served.app.bind("long", {"number": n}) for n in range(count)])
        async with with_long_results(App(served.url)) as app:
            asyncio.get_running_loop().call_later(1, started.set)
            worked = await app.run_worker(until_empty=True, concurrency=count)
    assert (worked.settled, worked.lost, worked.is_clean) == (count, 0, True)


async def test_a_worker_reaches_its_concurrency_with_several_claims(tmp_path: Path) -> None:
    """One answer of a service has a bounded number of jobs. Slots that stay empty would waste the worker."""
    count, running, all_run = 2 * GRANT_MAX + 5, 0, asyncio.Event()

    def with_waiting_jobs(app: App) -> App:
        @app.job
        async def wait(number: int) -> None:
            nonlocal running
            running += 1
            if running == count:
                all_run.set()
            await all_run.wait()

        return app

    async with run_service(with_waiting_jobs(App(f"sqlite:///{tmp_path / 'work.db'}"))) as served:
        await served.app.submit_many([served.app.bind("wait", {"number": n}) for n in range(count)])
        async with with_waiting_jobs(App(served.url)) as app:
            worked = await app.run_worker(until_empty=True, concurrency=count)
    assert (worked.settled, worked.lost, worked.is_clean) == (count, 0, True)


async def test_a_tenants_program_submits_by_the_same_address(served: Served) -> None:
    """Jobs that a tenant submits must belong to it, whatever the request says."""
    key = (await key_for(served, "acme")).text
    async with with_jobs(App(served.url, key=key)) as app:
        first = await app.submit(app.bind("add", {"a": 1}, key="once"))
        again = await app.submit(app.bind("add", {"a": 1}, key="once"))
        assert (again.id, again.replayed) == (first.id, True)
        with pytest.raises(KeyConflict, match="once"):
            await app.submit(app.bind("add", {"a": 2}, key="once"))
        with pytest.raises(StoreRefused, match="tenant acme only"):
            await app.submit(app.bind("add", {"a": 1}, tenant="globex"))
        with pytest.raises(StoreRefused, match="lacks the scope work"):
            await app.run_worker(until_empty=True)
        with pytest.raises(TimeoutError, match="still pending"):
            await app.wait(first, timeout=2)
    job = await served.app.find(first)
    assert job is not None
    assert job.tenant == "acme"


async def test_a_worker_of_one_tenant_gets_nothing_of_others(
    served: Served, world: Callable[[str], Environment]
) -> None:
    """Payloads of other tenants are confidential."""
    inside = served.service.world.store
    await inside.jobs.submit([new_job(n, tenant="acme" if n % 2 else "globex") for n in range(6)])
    store = world((await key_for(served, "acme", Role.WORKER)).text).store
    worker = ContractWorker(store)
    assert [lease.tenant for lease in await worker.claim(6)] == ["acme"] * 3
    assert await store.jobs.wait_us(("default",)) != 0
    assert {lane.tenant for lane in await store.reads.lanes()} == {"acme"}
    sneaky = replace(worker.wants(6), tenant="globex")
    assert (await worker.exchange(wants=sneaky)).leases == ()
    everybody = ContractWorker(world((await key_for(served, None, Role.WORKER)).text).store)
    wants = everybody.wants(6)
    assert [lease.tenant for lease in (await everybody.exchange(wants=wants)).leases] == ["globex"] * 3
    assert len((await everybody.exchange(wants=wants, repeat=True)).leases) == 3
    assert (await worker.exchange(wants=wants, repeat=True)).leases == ()


async def test_a_worker_of_one_tenant_leaves_alone_what_belongs_to_all(
    served: Served, world: Callable[[str], Environment]
) -> None:
    """A worker of one tenant could otherwise change schedules and limits of all tenants."""
    mine = world((await key_for(served, "acme", Role.WORKER)).text)
    await served.service.world.store.jobs.submit([new_job(1, tenant="acme")])
    (lease,) = await ContractWorker(mine.store).claim(1)
    child = new_job(2, tenant="acme", id=SystemIds().job(), kind="add", payload='{"a":1}')
    with pytest.raises(StoreRefused, match="tenant acme only"):
        await ContractWorker(mine.store).settle(done(lease, children=(replace(child, tenant="globex"),)))
    with pytest.raises(BadValue, match="needs"):
        await ContractWorker(mine.store).settle(done(lease, children=(replace(child, needs="no json"),)))
    await ContractWorker(mine.store).settle(done(lease, children=(child,)))
    with pytest.raises(StoreRefused, match="schedules belong to all tenants"):
        await mine.store.schedules.declare([Schedule(name="nightly", kind="add", cron="0 3 * * *")])
    with pytest.raises(StoreRefused, match="undefined limits"):
        await mine.limiter.definitions.declare([Limit("maps", "1/second").definition])
    with pytest.raises(StoreRefused, match="undefined budgets"):
        await mine.ledger.definitions.declare([Budget("spend", usd=1).definition])
    assert await mine.store.operations.prune(0, 100) == 0
    assert await served.service.world.store.reads.job(id_of(1)) is not None


async def test_what_is_defined_is_not_changed_by_a_worker_of_one_tenant(
    served: Served, world: Callable[[str], Environment]
) -> None:
    """A tenant could otherwise raise the shared limit of a provider."""
    strict = Limit("maps", "1/minute").definition
    await served.service.world.limiter.definitions.declare([strict])
    mine = world((await key_for(served, "acme", Role.WORKER)).text)
    await mine.limiter.definitions.declare([Limit("maps", "1000/second").definition])
    found = {definition.name: definition for definition, _ in await mine.limiter.definitions.all()}
    assert found["maps"] == strict


async def test_another_tenants_jobs_are_none(served: Served, world: Callable[[str], Environment]) -> None:
    """Even the existence of a job is confidential."""
    await served.service.world.store.jobs.submit([new_job(1, tenant="globex")])
    store = world((await key_for(served, "acme")).text).store
    assert await store.reads.job(id_of(1)) is None
    assert await store.reads.errors(id_of(1)) == []
    assert await store.operations.cancel(id_of(1)) == "unknown"
    assert await store.reads.jobs(JobFilter()) == []
    assert await store.operations.discard(JobFilter(ids=(id_of(1),)), 10) == []
    with pytest.raises(StoreRefused, match="own tenant only"):
        await store.reads.jobs(JobFilter(tenant="globex"))
    record = await served.service.world.store.reads.job(id_of(1))
    assert record is not None
    assert record.state is State.PENDING


async def test_an_operator_leases_nothing(served: Served, world: Callable[[str], Environment]) -> None:
    """An operator's key in a browser must not be able to take work away from workers."""
    store = world((await operator_of(served)).text).store
    with pytest.raises(StoreRefused, match="lacks the scope work"):
        await ContractWorker(store).claim(1)


@pytest.mark.parametrize("key", [None, f"lw_{'a' * 12}_{'B' * 27}"])
async def test_who_is_not_known_is_told_how_to_be(
    served: Served, world: Callable[[Any], Environment], key: Any
) -> None:
    """A worker without a key must name the variable to set."""
    with pytest.raises(StoreRefused, match="LEASEWAY_KEY"):
        await ContractWorker(world(key).store).claim(1)


# -- validation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/submit", {"jobs": [{"id": "1", "kind": "k", "payload": "{}", "lease_us": 10**15}]}, "lease_us"),
        ("/submit", {"jobs": [{"id": "1", "kind": "k", "payload": "{}", "lease_us": 0}]}, "lease_us"),
        (
            "/exchange",
            {
                "worker": "w",
                "settlements": [
                    {
                        "id": "1",
                        "token": "t",
                        "state": "done",
                        "children": [{"id": "2", "kind": "k", "payload": "{}", "lease_us": 0}],
                    }
                ],
            },
            "lease_us",
        ),
        ("/submit", {"jobs": [{"id": "1", "kind": "k", "payload": "{}", "priority": 5_000}]}, "priority"),
        ("/submit", {"jobs": [{"id": "1", "kind": "k", "payload": "no json"}]}, "payload"),
        ("/submit", {"jobs": [{"id": "1", "kind": "k", "payload": "{}", "delay_us": 10**30}]}, "too large"),
        ("/exchange", {"worker": ""}, "worker"),
        ("/exchange", {"worker": "w", "wants": {"queues": ["q"], "count": 10**6, "token": "t"}}, "wants.count"),
        (
            "/exchange",
            {"worker": "w", "settlements": [{"id": "1", "token": "t", "state": "leased"}]},
            "settlements.state",
        ),
        ("/renew", {"leases": [{"id": "1", "token": "t", "lease_us": 0}]}, "leases.lease_us"),
        ("/limits/acquire", {"asks": []}, "asks"),
        ("/limits/declare", {"definitions": [{"name": "x"}]}, "limits nothing"),
        ("/limits/change", {"definition": {"name": "x", "concurrency": 1}, "expected": 2**40}, "expected"),
        ("/limits/acquire", {"asks": [{"name": "x", "limit": "x"}], "holder": "h" * 201}, "holder"),
        ("/budgets/hold", {"id": "", "lines": [], "ttl_us": 1}, "id"),
        ("/budgets/hold", {"id": "h", "lines": [], "ttl_us": 1, "owner": "o" * 201}, "owner"),
        ("/budgets/settle", {"id": "h", "actuals": {}, "owner": "o" * 201}, "owner"),
        ("/jobs/show", {"job": "1", "more": 1}, "more"),
    ],
)
async def test_nonsense_is_refused_by_name(path: str, body: Any, field: str) -> None:
    """A value out of range that reaches the store would fail there without naming its field."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        reply = await client.post(f"{shared().url}/v1/work{path}", json=body)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert field in reply.json()["detail"]


def test_every_verb_has_one_route() -> None:
    """A verb without a route would only fail when a remote worker uses it."""
    assert len({verb.url for verb in VERBS}) == len(VERBS)
    served = {path for path in shared().api.openapi()["paths"] if path.startswith("/v1/work/")}
    assert served == {verb.url for verb in VERBS} | {"/v1/work/wait"}


# -- errors ---------------------------------------------------------------------------------------------------------


async def test_errors_are_the_same_at_both_ends() -> None:
    """Code that handles errors must work the same with a local and a remote store."""
    async with service_in_memory(FakeClock()) as world:
        await world.store.jobs.submit([keyed_job(1)])
        with pytest.raises(KeyConflict, match="key-1"):
            await world.store.jobs.submit([keyed_job(2, fingerprint="other")])
        with pytest.raises(UnknownLimit, match="maps"):
            await world.limiter.acquire([PermitRequest("maps", "maps")])
        with pytest.raises(UnknownBudget, match="spend"):
            await world.ledger.hold("h", [(Charge("spend", "spend"), 1)], 1_000_000)
        with pytest.raises(BadValue) as caught:
            await world.ledger.settle("nobody", {})
        with pytest.raises(BadValue) as beside_us:
            await shared().service.world.ledger.settle("nobody", {})
        assert (caught.value.field, caught.value.problem) == (beside_us.value.field, beside_us.value.problem)


@pytest.mark.parametrize("error", [StoreBusy, StoreFull, UnknownOutcome, TransientError])
async def test_what_the_services_store_does_not_know_nobody_knows(error: type[LeasewayError]) -> None:
    """The client decides by the error whether to repeat the call or only to wait."""

    async def fail(jobs: Any) -> Any:
        raise error("sick")

    sick = MemoryStore(FakeClock().now_us)
    sick.jobs.submit = fail  # type: ignore[method-assign]
    async with service_in_memory(FakeClock()) as world:
        shared().service.world = shared().service.world._replace(store=sick)
        with pytest.raises(TransientError) as caught:
            await world.store.jobs.submit([new_job(1)])
        assert type(caught.value) is error


def test_others_pass() -> None:
    """A bug that is turned into a store error would be retried instead of reported."""
    with pytest.raises(ZeroDivisionError), store_errors():
        raise ZeroDivisionError


async def spoken_to(answer: bytes | None) -> tuple[asyncio.Server, HttpStore]:
    """A server that reads a request, sends this response, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        await reader.readexactly(int(length[1]) if length else 0)
        writer.write(answer or b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return server, HttpStore(ServiceClient(parse_address(f"http://127.0.0.1:{port}")))


def said(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, UnknownOutcome),  # the connection was lost after the request was sent
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", UnknownOutcome),
        (said(200, "<html>"), UnknownOutcome),
        (said(502, "<html>"), UnknownOutcome),
        (said(500, '{"code":"failed"}'), UnknownOutcome),
        (said(503, '{"code":"unavailable"}'), TransientError),
        (said(404, "<html>"), StoreRefused),
        (said(301, ""), StoreRefused),
        (said(429, '{"code":"too_many"}'), StoreBusy),
        (said(413, '{"code":"too_large","detail":"x"}'), BadValue),
    ],
)
async def test_an_answer_that_did_not_come_is_not_a_no(answer: bytes | None, error: type[LeasewayError]) -> None:
    """A client that believes the request failed would submit the job twice."""
    server, store = await spoken_to(answer)
    with pytest.raises(LeasewayError) as caught:
        await store.jobs.submit([new_job(1)])
    assert type(caught.value) is error
    await store.close()
    server.close()
    await server.wait_closed()


async def test_a_request_that_never_left_changed_nothing() -> None:
    """A refused connection is safe to retry and must not be reported as an unknown outcome."""
    server, store = await spoken_to(None)
    server.close()
    await server.wait_closed()
    with pytest.raises(TransientError) as caught:
        await store.jobs.submit([new_job(1)])
    assert type(caught.value) is TransientError
    assert await store.notifications.wait(0.01) is False
    await store.close()


async def test_every_loop_has_its_own_connections() -> None:
    """Leases are renewed in a separate thread with its own event loop."""
    async with service_in_memory(FakeClock()) as world:
        await world.store.jobs.submit([new_job(1)])
        assert await asyncio.to_thread(lambda: asyncio.run(world.store.reads.now())) == await world.store.reads.now()


async def test_who_waits_is_sent_home_when_the_service_stops() -> None:
    """Long polls would otherwise delay every shutdown by their whole duration."""
    async with run_service(App("memory://")) as served, asyncio.timeout(20):
        waiting = asyncio.ensure_future(served.client.get("/v1/work/wait", params={"seconds": 25}))
        await served.client.get("/healthz")  # ensures that the service has read the other request
        served.service.stopping.set()
        assert (await waiting).json() == {"value": False}


# -- addresses ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEASEWAY_KEY", "LEASEWAY_INSECURE"):
        monkeypatch.delenv(name, raising=False)


def test_keys_do_not_travel_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is sent without TLS can be read on the network."""
    with pytest.raises(StoreRefused, match="unencrypted"):
        App("http://jobs.example")
    for url in ("http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "https://jobs.example/"):
        assert not parse_address(url).url.endswith("/")
    monkeypatch.setenv("LEASEWAY_INSECURE", "1")
    assert parse_address("http://jobs.example").url == "http://jobs.example"


def test_a_key_is_shown_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Representations and error messages end up in logs."""
    key = f"lw_{'a' * 12}_{'B' * 27}"
    assert "BBB" not in repr(parse_address("https://jobs.example", key))
    monkeypatch.setenv("LEASEWAY_KEY", key)
    assert parse_address("https://jobs.example").key == key
    for wrong in (f"https://x:{key}@jobs.example", "https://jobs.example?key=x", "https://"):
        with pytest.raises(StoreRefused) as caught:
            parse_address(wrong)
        assert "BBB" not in str(caught.value)
    for wrong in ("lw_short", "with space", "ä"):
        with pytest.raises(StoreRefused, match="not an API key"):
            parse_address("https://jobs.example", wrong)


def test_a_key_stays_with_its_service() -> None:
    """An app that is pointed at another service must not send its key there."""
    app = App("https://jobs.example", key=f"lw_{'a' * 12}_{'B' * 27}")
    app.move("https://other.example")
    store = app.world.store
    assert isinstance(store, HttpStore)
    assert store.line.address.key is None


async def test_a_refused_child_fails_its_job_and_no_other(served: Served) -> None:
    """The service refuses the whole exchange, because it is one transaction. The worker must find the job whose child
    is refused, report the error there, and settle all others.
    """
    key = (await key_for(served, "acme", Role.WORKER)).text
    store = served.service.world.store
    async with with_jobs(App(served.url, key=key)) as app:

        @app.job
        async def parent(ctx: Context, into: str) -> str:
            ctx.submit(app.bind("add", {"a": 1}, queue=into))
            return "done"

        queues = ["fine", "imports:ocm", "fine", "imports:ocm", "fine"]
        jobs = [
            new_job(number, tenant="acme", kind="parent", payload=f'{{"into":"{queue}"}}')
            for number, queue in enumerate(queues, start=1)
        ]
        await store.jobs.submit([*jobs, new_job(9, tenant="acme", kind="add", payload='{"a":1}')])
        worked = await app.run_worker(until_empty=True, queues=["default"])
    assert worked.is_clean
    found = [await store.reads.job(job.id) for job in jobs]
    assert [job and job.state.value for job in found] == ["done", "failed", "done", "failed", "done"]
    assert [job and job.last_error_code for job in found] == [None, "child_refused", None, "child_refused", None]
    (error,) = await store.reads.errors(jobs[1].id)
    assert "queue: queues that start with imports: are reserved" in error.message
    assert len(await store.reads.jobs(JobFilter(queue="fine"))) == 3
    other = await store.reads.job(id_of(9))
    assert other is not None
    assert other.state is State.DONE
