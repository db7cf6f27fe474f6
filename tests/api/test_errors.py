"""Every refusal is a problem document, including refusals of malformed requests and unknown paths."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.api.keys import bearer, key_for, operator_of
from tests.api.running_service import Served

from leaseway.api.connections import ConnectionBounds

GET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def told(served: Served, sent: bytes) -> tuple[bytes, dict[str, Any]]:
    """The response to these bytes: its head and its problem document."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(served.url).port)
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert b"content-type: application/problem+json" in head.lower()
    return head, json.loads(body)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (GET + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431, "header_too_large"),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 431, "header_too_large"),
        (b"hello\r\n\r\n", 400, "not_http"),
        (GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "not_http"),
    ],
)
async def test_what_is_no_request_is_refused_as_a_problem(served: Served, sent: bytes, status: int, code: str) -> None:
    """A client that parses problem documents must get one from every layer that can refuse a request."""
    head, problem = await told(served, sent)
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert (problem["status"], problem["code"], problem["type"].rpartition("/")[2]) == (status, code, code)
    assert problem["request_id"]


async def test_one_connection_too_many_is_told_to_come_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused client gets a response and does not occupy more than its connection."""
    await served.client.get("/healthz")  # keeps its connection
    monkeypatch.setattr(ConnectionBounds, "add", lambda self, address: False)
    head, problem = await told(served, GET + b"\r\n")
    assert (problem["status"], problem["code"]) == (503, "unavailable")
    assert b"retry-after: 1" in head
    assert (await served.client.get("/healthz")).status_code == 200  # earlier connections stay open


async def test_what_nobody_serves_is_told_with_a_way_out(served: Served) -> None:
    """The developer who mistyped a path needs to find the right one."""
    nothing = await served.client.get("/v1/job")
    assert (nothing.status_code, nothing.json()["code"]) == (404, "not_found")
    assert nothing.json()["detail"] == "there is nothing at /v1/job; see /v1/openapi.json for all paths"
    wrong = await served.client.patch("/v1/jobs/x")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "DELETE, GET")
    assert wrong.json()["detail"] == "this path does not support PATCH; it supports DELETE, GET"


async def test_a_job_is_found_by_its_key(served_with_keys: Served) -> None:
    """A client may know only its own idempotency key, such as an order number. Keys are scoped to a tenant, and an
    operator names the tenant.
    """
    client, body = served_with_keys.client, {"kind": "add", "arguments": {"a": 1}}
    acme, globex = bearer(await key_for(served_with_keys)), bearer(await key_for(served_with_keys, "globex"))
    operator = bearer(await operator_of(served_with_keys))
    sent = {**acme, "Idempotency-Key": '"order-7"'}
    id_ = (await client.post("/v1/jobs", json=body, headers=sent)).json()["id"]

    async def found(who: dict[str, str], **query: str) -> list[str]:
        page = (await client.get("/v1/jobs", params={"key": "order-7", **query}, headers=who)).json()
        assert page["next"] is None
        return [job["id"] for job in page["items"]]

    assert await found(acme) == [id_]
    assert await found(acme, kind="broken") == []
    assert await found(globex) == []
    assert (await found(operator), await found(operator, tenant="acme")) == ([], [id_])
    assert (await client.get("/v1/jobs", params={"key": ""}, headers=acme)).status_code == 422


async def test_a_question_with_an_unknown_word_is_not_answered(served: Served) -> None:
    """If `?stat=failed` were ignored, a user who cancels the listed jobs would cancel all jobs."""
    answer = await served.client.get("/v1/jobs", params={"stat": "failed"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/query/stat"]
    assert "shard_key, state, tenant" in answer.json()["detail"]
    for path in ("/v1/workers?limit=1", "/v1/limits?limit=1", "/v1/metrics", "/metrics", "/v1/events?wait_seconds=0"):
        assert (await served.client.get(path)).status_code == 200, path
    assert (await served.client.get("/v1/jobs/x/why?deep=1")).status_code == 422


async def test_one_key_does_not_stand_for_many_jobs(served: Served) -> None:
    """A client with a key repeats the request when the reply is lost; an ignored key would submit all jobs twice."""
    items = {"items": [{"kind": "add", "arguments": {"a": 1}}]}
    answer = await served.client.post("/v1/jobs/bulk", json=items, headers={"Idempotency-Key": '"order-7"'})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_idempotency_key")
    assert (await served.client.get("/v1/jobs")).json()["items"] == []
