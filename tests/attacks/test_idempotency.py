"""One idempotency key creates one job, whatever happens."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx2
import pytest
from tests.api.running_service import Served
from tests.attacks.processes import service

BODY = {"kind": "add", "arguments": {"a": 1}}
KEY = {"Idempotency-Key": '"order-7"'}
AT_ONCE = 200


async def post(client: httpx2.AsyncClient, body: Any = BODY) -> httpx2.Response:
    return await client.post("/v1/jobs", json=body, headers=KEY)


async def jobs(client: httpx2.AsyncClient) -> list[Any]:
    return list((await client.get("/v1/jobs")).json()["items"])


async def test_two_hundred_at_once_at_two_processes_make_one_job(store_url: str, tmp_path: Path) -> None:
    """A client that lost the response repeats the request, at any process behind the load balancer."""
    async with AsyncExitStack() as stack:
        starting = [stack.enter_async_context(service(tmp_path, store_url, "--no-auth")) for _ in range(2)]
        urls = await asyncio.gather(*starting)
        clients = [await stack.enter_async_context(many(url)) for url in urls]
        answers = await asyncio.gather(*(post(clients[number % 2]) for number in range(AT_ONCE)))
        found = await jobs(clients[0])
    assert {answer.status_code for answer in answers} == {202}
    assert {answer.json()["id"] for answer in answers} == {job["id"] for job in found}
    assert len(found) == 1
    assert ["idempotent-replayed" in answer.headers for answer in answers].count(False) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1


def many(url: str) -> httpx2.AsyncClient:
    """Send the requests with one connection each, so that the client does not serialize them."""
    bounds = httpx2.Limits(max_connections=AT_ONCE)
    return httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=bounds)


async def test_of_different_bodies_with_one_key_one_is_accepted(served: Served) -> None:
    """The requests are concurrent, so that neither finds the job of the other."""
    bodies = [{"kind": "add", "arguments": {"a": number % 5}} for number in range(50)]
    async with many(served.url) as client:
        answers = await asyncio.gather(*(post(client, body) for body in bodies))
    (job,) = await jobs(served.client)
    for body, answer in zip(bodies, answers, strict=True):
        if body["arguments"] == job["payload"]:
            assert answer.status_code == 202
        else:
            assert (answer.status_code, answer.json()["code"]) == (422, "key_conflict")


async def test_while_the_first_is_being_stored_the_others_receive_409(
    served: Served, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most stores answer within milliseconds, so a request waits for a moment, but not for a store that hangs."""
    monkeypatch.setattr("leaseway.api.submit_batcher.SAME_KEY_SECONDS_MAX", 0.05)
    async with asyncio.TaskGroup() as group:
        async with hung(store_url):
            both = [group.create_task(post(served.client)) for _ in range(2)]
            (sent_away,), (waiting,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            again = sent_away.result()
            assert (again.status_code, again.json()["code"]) == (409, "still_running")
            assert int(again.headers["retry-after"]) >= 1
            assert (await served.client.get("/healthz")).status_code == 200
        made = await waiting
    assert (made.status_code, "idempotent-replayed" in made.headers) == (202, False)
    replayed = await post(served.client)
    assert (replayed.status_code, replayed.headers["idempotent-replayed"]) == (202, "true")
    assert len(await jobs(served.client)) == 1


async def test_a_server_error_does_not_use_up_the_key(served: Served, store_url: str) -> None:
    """The transaction fails halfway: job and key are rolled back, and the repeated request counts as the first."""
    async with broken(store_url):
        failed = await post(served.client)
        assert failed.status_code in (500, 503)
        assert "idempotent-replayed" not in failed.headers
    made, again = await post(served.client), await post(served.client)
    assert (made.status_code, "idempotent-replayed" in made.headers) == (202, False)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.content == made.content
    assert len(await jobs(served.client)) == 1


async def test_a_refused_request_does_not_use_up_the_key(served: Served) -> None:
    """A client that corrects its request sends the same key."""
    for wrong in ({"kind": "add"}, {"kind": "nobody"}, {"kind": "add", "arguments": {"a": "x"}}, {}):
        assert (await post(served.client, wrong)).status_code == 422
    assert (await post(served.client)).status_code == 202


# -- failing stores
# -----------------------------------------------------------------------------------------------------


def is_sqlite(store_url: str) -> bool:
    return store_url.startswith("sqlite:")


@contextmanager
def sqlite(store_url: str) -> Iterator[sqlite3.Connection]:
    """Closing the connection ends its transaction."""
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"), isolation_level=None)) as database:
        yield database


@asynccontextmanager
async def postgres(store_url: str) -> AsyncIterator[Any]:
    parts = urlsplit(store_url)
    connection = await asyncpg.connect(parts._replace(query="").geturl())
    try:
        await connection.execute(f"SET search_path = {parts.query.removeprefix('schema=')}")
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def hung(store_url: str) -> AsyncIterator[None]:
    """Another transaction holds a lock that every submission needs."""
    if is_sqlite(store_url):
        with sqlite(store_url) as database:
            database.execute("BEGIN IMMEDIATE")
            yield
    else:
        async with postgres(store_url) as connection:
            await connection.execute("BEGIN")
            await connection.execute("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE")
            yield


SQLITE_BREAKS = "CREATE TRIGGER broken AFTER INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'broken'); END"
POSTGRES_BREAKS = """
CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken'; END $$;
CREATE TRIGGER broken AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION broken();
"""


@asynccontextmanager
async def broken(store_url: str) -> AsyncIterator[None]:
    """The transaction fails after the job was written and before the commit."""
    if is_sqlite(store_url):
        with sqlite(store_url) as database:
            database.execute(SQLITE_BREAKS)
            yield
            database.execute("DROP TRIGGER broken")
    else:
        async with postgres(store_url) as connection:
            await connection.execute(POSTGRES_BREAKS)
            yield
            await connection.execute("DROP FUNCTION broken CASCADE")
