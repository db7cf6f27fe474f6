"""One client cannot use up the memory, the time, the descriptors or the log of a service that others use."""

import asyncio
import json
import logging
import signal
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec.structs import replace
from tests.api.keys import key_for
from tests.api.running_service import Served, run_service
from tests.attacks.processes import service_process
from tests.attacks.raw_connections import SECONDS, connect_raw, request, send_raw
from tests.attacks.routes import routes_with_bodies

from leaseway import App
from leaseway.api import request_body
from leaseway.api.connections import ConnectionBounds
from leaseway.api.errors import Problem
from leaseway.api.request_body import BULK_BYTES_MAX, LOGIN_BYTES_MAX, VALUES_MAX, check_json
from leaseway.api.routing import RESPONSE_BYTES_MAX
from leaseway.domain.exchange import GRANT_MAX
from leaseway.domain.identity import Role, Scope
from leaseway.domain.ids import SECOND_US
from leaseway.domain.inspection import PAGE_BYTES_MAX, JobFilter, SearchPage
from leaseway.domain.job import NewJob
from leaseway.domain.validators import PAYLOAD_BYTES_MAX
from leaseway.ports.store import require_inspection
from leaseway.stores.http.client import ServiceClient, parse_address
from leaseway.stores.http.protocol import BATCH_BYTES_MAX, PREFIX, VERBS
from leaseway.stores.http.store import HttpStore
from leaseway.system import SystemIds
from leaseway.telemetry.log import REPEATS_MAX, REPEATS_SECONDS, RepeatFilter

JSON = {"Content-Type": "application/json"}


# -- bodies ---------------------------------------------------------------------------------------------------------


async def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(served: Served) -> None:
    """Empty lists need twenty times their size in memory, and their parser does not let other threads run."""
    body = b'{"items": [' + b"[]," * (BULK_BYTES_MAX // 3 - 100) + b"[]]}"
    answer = await served.client.post("/v1/jobs/bulk", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_values")
    assert f"{VALUES_MAX:,}" in answer.json()["detail"]


async def test_commas_in_texts_are_not_values(served: Served) -> None:
    """A payload with a long text must not be mistaken for an attack."""
    body = {"kind": "add", "arguments": {"a": 1}, "key": "k"}
    items = [body | {"key": f"{number}{',' * 500}"[:500]} for number in range(900)]
    answer = await served.client.post("/v1/jobs/bulk", json={"items": items})
    assert answer.status_code == 200, answer.text


async def test_brackets_count_as_values(served: Served) -> None:
    """Lists that contain each other need no commas. 16 MB of them took 16 s and 800 MB, in a parser that does not let
    other threads run.
    """
    lists = b",".join([b"[" * 60 + b"]" * 60] * (BULK_BYTES_MAX // 121 - 10))
    answer = await served.client.post("/v1/jobs/bulk", content=b'{"items": [' + lists + b"]}", headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_values")


@pytest.mark.parametrize("text", [b'""', b"]", b'"\\\\"', b'\\"', b"\\"], ids=ascii)
def test_text_that_is_not_json_is_refused_quickly(text: bytes) -> None:
    """The checks before the parser must not take longer than the parser, which stops at the first error."""
    raw = b"{" * 65 + b"," * 65 + text * (BATCH_BYTES_MAX // len(text))
    before = time.process_time()
    with pytest.raises(Problem):
        check_json(raw)
    assert time.process_time() - before < 0.25


LONG_NAME = "N" * 125_000 + "\U0001f600"
HEAVY = {
    "a long name around many values": f'{{"{LONG_NAME}": [{",".join(["0"] * 65_000)}], "z": "\\\\u0000"}}',
    "a long name around nulls": f'{{"{LONG_NAME}": [{",".join(["null"] * 26_000)}]}}',
    "many lists": f'{{"a": [{",".join(["[]"] * 85_000)}]}}',
    "many numbers": f'{{"a": [{",".join(["1"] * 130_000)}]}}',
}


@pytest.mark.parametrize("text", HEAVY.values(), ids=HEAVY.keys())
async def test_texts_that_are_expensive_to_check_do_not_stop_others(served: Served, text: str) -> None:
    """Payloads and results are JSON inside of texts, which the bounds of the body do not count. They were checked on
    the event loop: one request stopped all others for ten seconds.
    """
    count = 12
    ids = SystemIds()
    jobs = [{"id": ids.job(), "kind": "add", "payload": text} for _ in range(count)]
    settlements = [{"id": ids.job(), "token": "t", "state": "done", "result": text} for _ in range(count)]
    async with busiest_turn() as turn:
        submitted = await served.client.post("/v1/work/submit", json={"jobs": jobs})
        settled = await served.client.post("/v1/work/exchange", json={"worker": "w", "settlements": settlements})
    assert (submitted.status_code, settled.status_code) == (200, 200), (submitted.text[:300], settled.text[:300])
    assert max(turn) < 0.3


async def test_many_jobs_that_are_expensive_to_check_do_not_stop_others(tmp_path: Path) -> None:
    """Each job of a bulk submission is encoded and checked, which is much work for a thousand of them."""
    item = f'{{"kind": "x", "arguments": {{"{"N" * 200_000}": [{",".join(["null"] * 6_000)}]}}}}'
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served, busiest_turn() as turn:
        body = f'{{"items": [{",".join([item] * 34)}]}}'.encode()
        answer = await served.client.post("/v1/jobs/bulk", content=body, headers=JSON)
        assert {each["status"] for each in answer.json()["items"]} == {202}
    assert max(turn) < 0.3


@asynccontextmanager
async def busiest_turn() -> AsyncIterator[list[float]]:
    """The processor time of each turn of the event loop. Unlike the time that passes, it does not depend on what else
    this machine does.
    """
    turns: list[float] = []

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)

    watching = asyncio.get_running_loop().create_task(watch())
    try:
        yield turns
    finally:
        watching.cancel()


async def test_no_verb_of_workers_reads_more_than_it_needs(served: Served) -> None:
    """A key that may only read could otherwise make the service parse 64 MiB per request."""
    for verb in VERBS:
        assert verb.bytes_max <= (1024 * 1024 if verb.scope is Scope.JOBS_READ else BATCH_BYTES_MAX), verb
        announced = await send_raw(served, request("POST", PREFIX + verb.path, f"Content-Length: {verb.bytes_max + 1}"))
        assert (announced.status, json.loads(announced.body)["code"]) == (413, "too_large"), verb


MIB = 1024 * 1024


async def test_large_bodies_of_one_tenant_do_not_fill_the_memory(
    served_with_keys: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may have hundreds of requests at once. With large bodies that it sends slowly, they would keep gigabytes
    in memory."""
    monkeypatch.setattr(request_body, "ROOM_SECONDS_MAX", 0.05)
    served, room = served_with_keys, request_body.BodyRoom(8 * MIB)
    served.service.body_room = room
    acme, globex = [(await key_for(served, tenant)).text for tenant in ("acme", "globex")]

    def upload(key: str, size: int) -> bytes:
        head = request("POST", "/v1/jobs/bulk", f"Authorization: Bearer {key}", f"Content-Length: {size}")
        return head + b" " * MIB

    async with AsyncExitStack() as stack:
        for _ in range(2):
            slow = await stack.enter_async_context(connect_raw(served))
            await slow.say(upload(acme, 2 * MIB))
        await until(lambda: room.used == 4 * MIB)
        refused = await send_raw(served, upload(acme, 2 * MIB))
        assert (refused.status, json.loads(refused.body)["code"]) == (503, "busy")
        assert dict(refused.headers)["retry-after"] == "1"
        jobs = json.dumps({"items": [{"kind": "add", "arguments": {"a": 1}}]})
        answer = await served.client.post(
            "/v1/jobs/bulk", content=jobs + " " * MIB, headers={**JSON, "Authorization": f"Bearer {globex}"}
        )
        assert answer.status_code == 200, "the other tenant has half of the room that is left"
    await until(lambda: room.used == 0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.005)


async def test_errors_are_searched_by_few_threads(served: Served) -> None:
    """A search for secrets uses the interpreter for seconds. With a thread for each request, the event loop would wait
    for all of them."""
    text = "api_key=" * 10_000
    failures = [
        {"id": str(n), "token": "t", "state": "failed", "failure": {"code": "x", "message": text}} for n in range(4)
    ]
    before = threads_of_the_loop()
    calls = [served.client.post(f"{PREFIX}/exchange", json={"worker": "w", "settlements": failures}) for _ in range(8)]
    assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
    assert threads_of_the_loop() == before


def threads_of_the_loop() -> int:
    """Of the event loop's own executor, which has dozens."""
    return sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())


async def test_a_client_that_is_not_known_sends_four_kibibytes(served_with_keys: Served) -> None:
    """Everything that is read before a credential is checked is free for an attacker."""
    client = served_with_keys.client
    large = json.dumps({"key": "x" * LOGIN_BYTES_MAX})
    answer = await client.post("/v1/session", content=large, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    for way in routes_with_bodies(served_with_keys.api):
        if way.path == "/v1/session":
            continue
        # Announced and never sent: the response must not wait for it.
        refused = await send_raw(served_with_keys, request(way.method, way.to(), "Content-Length: 1000"))
        assert refused.status == 401, way


async def test_a_trailer_does_not_become_a_header(served_with_keys: Served) -> None:
    """Trailers arrive after the checks of the headers, so that no check applies to them."""
    key = await key_for(served_with_keys)
    body = json.dumps({"kind": "add", "arguments": {"a": 1}}).encode()
    head = request("POST", "/v1/jobs", f"Authorization: Bearer {key.text}", "Content-Type: application/json",
                   "Transfer-Encoding: chunked")  # fmt: skip
    chunked = b"%x\r\n%s\r\n0\r\nIdempotency-Key: forged\r\n\r\n" % (len(body), body)
    ids = {json.loads((await send_raw(served_with_keys, head + chunked)).body)["id"] for _ in range(2)}
    assert len(ids) == 2, "the trailer was read as an Idempotency-Key"


# -- responses ------------------------------------------------------------------------------------------------------


def large_jobs(count: int) -> list[NewJob]:
    """Jobs with payload and cursor of nearly the most bytes. Their quotes are escaped twice in a response."""
    ids, text = SystemIds(), msgspec.json.encode('"' * 120_000).decode()
    return [NewJob(id=ids.job(), kind="add", payload=text, cursor=text, lease_us=60 * SECOND_US) for _ in range(count)]


async def test_a_page_of_large_jobs_is_short(served: Served) -> None:
    """The service held a thousand large jobs in memory before it refused to send them. It must read no more than it
    sends, and a client must find the others."""
    jobs = large_jobs(40)
    await served.service.world.store.jobs.submit(jobs)
    newest_first = sorted((job.id for job in jobs), reverse=True)
    found, before = list[str](), None
    while len(found) < len(jobs):
        with peak_memory() as peak:
            answer = await served.client.post("/v1/work/jobs/list", json={"limit": 1_000, "before": before})
        assert len(answer.content) < RESPONSE_BYTES_MAX
        assert peak() < 8 * PAGE_BYTES_MAX
        found += [job["id"] for job in answer.json()["value"]]
        before = found[-1]
    assert found == newest_first
    store = HttpStore(ServiceClient(parse_address(served.url, None)))
    assert [job.id for job in await store.reads.jobs(JobFilter(), limit=1_000)] == newest_first
    await store.close()


async def test_a_page_of_a_tenants_large_jobs_is_short(served_with_keys: Served) -> None:
    """A search goes through the jobs of a tenant in steps, and ends with the step that fills the page."""
    jobs = [replace(job, tenant="acme") for job in large_jobs(40)]
    await served_with_keys.service.world.store.jobs.submit(jobs)
    newest_first = sorted((job.id for job in jobs), reverse=True)
    found, before, pages = list[str](), None, 0
    async with served_with_keys.with_key((await key_for(served_with_keys, "acme")).text) as tenant:
        while len(found) < len(jobs):
            with peak_memory() as peak:
                answer = await tenant.post("/v1/work/jobs/list", json={"limit": 1_000, "before": before})
            assert len(answer.content) < RESPONSE_BYTES_MAX
            assert peak() < 8 * PAGE_BYTES_MAX
            found += [job["id"] for job in answer.json()["value"]]
            before, pages = found[-1], pages + 1
    assert found == newest_first
    assert pages > 1


async def test_a_page_of_a_list_ends_with_its_bytes(served: Served) -> None:
    """Two hundred large jobs, which is the most of one page, would be a hundred megabytes."""
    jobs = large_jobs(60)
    await served.service.world.store.jobs.submit(jobs)
    found, cursor = list[str](), ""
    while cursor is not None:
        with peak_memory() as peak:
            page = (await served.client.get(f"/v1/jobs?limit=200{cursor and '&cursor='}{cursor}")).json()
        assert peak() < 4 * PAGE_BYTES_MAX
        found, cursor = found + [job["id"] for job in page["items"]], page["next"]
    assert found == sorted((job.id for job in jobs), reverse=True)


async def test_many_ids_of_large_jobs_are_read_without_their_texts(served_with_keys: Served) -> None:
    """A change names a thousand jobs and needs only their states. It read all of their payloads."""
    jobs = large_jobs(60)
    await served_with_keys.service.world.store.jobs.submit(jobs)
    operator = await key_for(served_with_keys, None, Role.OPERATOR)
    async with served_with_keys.with_key(operator.text) as client:
        with peak_memory() as peak:
            answer = await client.post("/v1/jobs/retry", json={"ids": [job.id for job in jobs]})
    assert len(answer.json()["refused"]) == len(jobs)
    assert peak() < PAGE_BYTES_MAX


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """The most bytes that Python allocated in the block and that were in use at once."""
    peak = 0
    tracemalloc.start()
    try:
        yield lambda: peak
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_the_answer_of_an_exchange_has_a_bound(served: Served) -> None:
    """A worker may want 10,000 jobs, each with a payload and a cursor of 256 KiB: an answer of gigabytes, which the
    service encodes in memory. The same token in many claims must not circumvent the bound, and no job may be lost."""
    jobs = large_jobs(GRANT_MAX + 6)
    await served.service.world.store.jobs.submit(jobs)
    call: dict[str, object] = {"worker": "w", "wants": {"queues": ["default"], "count": 10_000, "token": "t"}}
    granted = []
    for _ in range(3):
        answer = await served.client.post("/v1/work/exchange", json=call)
        assert len(answer.content) < GRANT_MAX * 4 * PAYLOAD_BYTES_MAX
        granted.append([lease["id"] for lease in answer.json()["leases"]])
    assert [len(each) for each in granted] == [GRANT_MAX, 6, 0]
    assert {id_ for each in granted for id_ in each} == {job.id for job in jobs}
    repeated = await served.client.post("/v1/work/exchange", json=call | {"repeat": True})
    assert [lease["id"] for lease in repeated.json()["leases"]] == granted[0]


async def test_searches_of_a_tenant_leave_the_store_to_others(
    served_with_keys: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite one thread reads for all tenants. A tenant with 100,000 small jobs searched them for an unknown kind,
    thirty times at once, and no other tenant was answered within half a minute."""
    store = served_with_keys.service.world.store
    ids = SystemIds()
    await store.jobs.submit([NewJob(id=ids.job(), kind="add", tenant="acme", payload="{}") for _ in range(9)])
    under_way, most, steps = 0, 0, 0
    inspection = type(require_inspection(store))
    search = inspection.search

    async def counted(self: Any, which: JobFilter, **named: Any) -> SearchPage:
        nonlocal under_way, most, steps
        under_way, steps = under_way + 1, steps + 1
        most = max(most, under_way)
        try:
            return await search(self, which, **{**named, "scan_max": 3})
        finally:
            under_way -= 1

    monkeypatch.setattr(inspection, "search", counted)
    async with served_with_keys.with_key((await key_for(served_with_keys, "acme")).text) as client:
        verbs = [f"/v1/work/jobs/{verb}" for verb in ("list", "retry", "discard")]
        body = {"which": {"kind": "absent"}, "limit": 1}
        answers = await asyncio.gather(*(client.post(verb, json=body) for verb in verbs * 4))
        own = await client.post(verbs[0], json={"which": {"kind": "add"}, "limit": 1_000})
    assert [answer.json() for answer in answers] == [{"value": []}] * 12
    assert len(own.json()["value"]) == 9
    assert (most, steps > len(answers)) == (1, True)


async def test_requests_that_wait_for_a_job_share_their_reads(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may have 200 requests that wait for a result. Each of them read its job, with its texts, four times a
    second and after every notification, which took the processor from all other tenants."""
    store = served.service.world.store
    (job,) = large_jobs(1)
    await store.jobs.submit([job])
    reads, read = list[str](), type(store.reads).job
    monkeypatch.setattr(type(store.reads), "job", lambda self, id_: reads.append(id_) or read(self, id_))  # type: ignore[func-returns-value]
    url = f"/v1/jobs/{job.id}/result?wait_seconds=0.6"
    answers = await asyncio.gather(*(served.client.get(url) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {409}
    assert len(reads) == 2 * len(answers), "one before the wait and one after it"


# -- connections ----------------------------------------------------------------------------------------------------


def test_one_address_cannot_have_all_connections() -> None:
    """Others must still be able to connect. A proxy on the same machine speaks for all clients."""
    bounds = ConnectionBounds(10)
    assert [bounds.add("192.0.2.1") for _ in range(6)] == [True] * 5 + [False]
    assert bounds.add("192.0.2.2")
    bounds.remove("192.0.2.1")
    assert bounds.add("192.0.2.1")
    assert [bounds.add("127.0.0.1") for _ in range(5)] == [True] * 4 + [False]


async def test_closed_connections_are_not_counted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that only grows would refuse everybody after a day. WebSockets leave by another way."""
    counted: list[int] = []
    add, remove = ConnectionBounds.add, ConnectionBounds.remove
    monkeypatch.setattr(ConnectionBounds, "add", lambda self, at: counted.append(1) or add(self, at))  # type: ignore[func-returns-value]
    monkeypatch.setattr(ConnectionBounds, "remove", lambda self, at: counted.append(-1) or remove(self, at))  # type: ignore[func-returns-value]
    upgrade = request("GET", "/v1/live", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
                      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")  # fmt: skip
    for beginning in (b"", b"GET / HTTP", request("GET", "/healthz"), upgrade):
        async with connect_raw(served) as line:
            await line.say(beginning)
            await asyncio.sleep(0.05)
    for _ in range(200):
        if sum(counted) == 0:
            break
        await asyncio.sleep(0.02)
    assert (len(counted), sum(counted)) == (8, 0)


@pytest.mark.slow
async def test_a_flood_of_half_open_requests_leaves_descriptors_for_the_store(tmp_path: Path) -> None:
    """Without a free descriptor the store cannot open its file, and accepting fails thousands of times per second."""
    half = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    async with (
        service_process(tmp_path, f"sqlite:///{tmp_path / 'work.db'}", "--no-auth", descriptors=512) as (url, process),
        httpx2.AsyncClient(base_url=url, trust_env=False) as client,
        AsyncExitStack() as stack,
    ):
        assert (await client.get("/readyz")).status_code == 200  # keeps its connection
        process.send_signal(signal.SIGSTOP)  # so that it finds all of them at once
        for _ in range(1_000):
            _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            stack.callback(writer.close)
            writer.write(half)
        process.send_signal(signal.SIGCONT)
        assert (await client.get("/v1/jobs")).status_code == 200, "the store has no descriptor left"
    log = (tmp_path / "service.log").read_text(errors="replace")
    assert "Too many open files" not in log
    assert len(log.splitlines()) < 100


# -- the log --------------------------------------------------------------------------------------------------------


def test_a_line_that_repeats_is_left_out_and_counted() -> None:
    """A client that causes a warning per request must not fill the disk; an operator must still see that it happens."""
    repeats, now = RepeatFilter(), time.time()

    def passes(name: str, at: float, text: str = "refused %s") -> logging.LogRecord | None:
        record = logging.LogRecord(name, logging.WARNING, __file__, 1, text, ("x",), None)
        record.created = at
        return record if repeats.filter(record) else None

    assert sum(passes("uvicorn.error", now) is not None for _ in range(5_000)) == REPEATS_MAX
    assert passes("uvicorn.error", now, "another %s") is not None
    assert all(passes("users.app", now) is not None for _ in range(100))
    later = passes("uvicorn.error", now + REPEATS_SECONDS + 1)
    assert later is not None
    assert later.getMessage() == f"refused x ({5_000 - REPEATS_MAX:,} similar lines were left out)"
