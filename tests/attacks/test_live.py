"""Subscribers that must be refused: pages of other sites, missing credentials, and tickets of other tenants."""

import asyncio
from typing import Any

import pytest
from tests.api.keys import bearer, key_for, operator_of
from tests.api.live_clients import submit_job
from tests.api.running_service import Served
from tests.attacks.raw_connections import request, send_raw
from tests.attacks.routes import websocket_paths
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from leaseway.domain.identity import Role

FOREIGN = (
    "https://evil.example",
    "null",
    "http://127.0.0.1",
    "http://localhost:1",
    "http://127.0.0.1.evil.example",
    "file://",
    "",
)


async def status_of(served: Served, path: str, headers: dict[str, str]) -> int:
    """The response status; 101 means that the connection was accepted."""
    try:
        async with connect(f"{served.url.replace('http', 'ws', 1)}{path}", additional_headers=headers, proxy=None):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


async def test_only_our_own_pages_open_a_websocket(served: Served) -> None:
    """Browsers send cookies with a WebSocket and make no preflight request: the Origin header is the only
    protection.
    """
    for path in websocket_paths(served.api):
        assert {await status_of(served, path, {"Origin": origin}) for origin in FOREIGN} == {403}
        assert await status_of(served, path, {"Origin": served.url}) == 101
        assert await status_of(served, path, {"Origin": served.url, "Sec-Fetch-Site": "cross-site"}) == 403


async def test_a_foreign_page_opens_no_stream_of_events(served: Served) -> None:
    """The page could not read the stream, but its connections would use up the subscriptions."""
    stream = "Accept: text/event-stream"
    for line in ("Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"):
        answer = await send_raw(served, request("GET", "/v1/events", stream, line))
        assert (answer.status, "access-control-allow-origin" in answer.names) == (403, False)
    own = await send_raw(served, request("GET", "/v1/events", stream, f"Origin: {served.url}", host=served.url[7:]))
    assert own.status == 200


async def test_no_wrong_credential_opens_a_websocket(
    served_with_keys: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """The matrix of tenants covers only routes with methods; this is the same for WebSockets. It must not fill the log
    either, because any client can do it.
    """
    served = served_with_keys
    revoked, worker = await operator_of(served), await key_for(served, None, Role.WORKER)
    await served.service.world.store.keys.revoke(revoked.key.id)
    expired = await operator_of(served, life_us=1)
    wrong: list[dict[str, str]] = [
        {}, bearer(revoked), bearer(expired), {"Authorization": "Bearer x"}, {"Authorization": "Basic eA=="},
        {"Cookie": "leaseway_session=x"}, {"Sec-WebSocket-Protocol": revoked.text},
    ]  # fmt: skip
    for path in websocket_paths(served.api):
        assert {await status_of(served, path, headers) for headers in wrong} <= {401, 403}
        assert await status_of(served, path, bearer(worker)) == 403
        assert await status_of(served, path, bearer(await key_for(served))) == 101
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_ticket_can_be_used_once(served_with_keys: Served) -> None:
    """Tickets are part of a URL and appear in logs, so a used one must be worthless."""
    served, acme = served_with_keys, await key_for(served_with_keys)

    async def ticket() -> str:
        return str((await served.client.post("/v1/tickets", headers=bearer(acme))).json()["ticket"])

    (path,) = websocket_paths(served.api)
    used = await ticket()
    assert await status_of(served, f"{path}?ticket={used}", {}) == 101
    assert await status_of(served, f"{path}?ticket={used}", {}) == 401
    # Of many concurrent attempts, one succeeds.
    once = await ticket()
    found = await asyncio.gather(*(status_of(served, f"{path}?ticket={once}", {}) for _ in range(20)))
    assert sorted(found) == [101, *[401] * 19]
    # With an invalid ticket the credential is not used instead, and a refused page does not use up the ticket.
    assert await status_of(served, f"{path}?ticket=x", bearer(acme)) == 401
    kept = await ticket()
    assert await status_of(served, f"{path}?ticket={kept}", {"Origin": "https://evil.example"}) == 403
    assert await status_of(served, f"{path}?ticket={kept}", {"Origin": served.url}) == 101


async def test_a_ticket_is_for_its_tenant_alone(served_with_keys: Served) -> None:
    """A ticket must not give access to another tenant's events."""
    served = served_with_keys
    acme, other = await key_for(served), await key_for(served, "other")
    job = await submit_job(served, **bearer(acme))
    ticket = (await served.client.post("/v1/tickets", headers=bearer(other))).json()["ticket"]
    (path,) = websocket_paths(served.api)
    told = await first_frames(served, f"{path}?ticket={ticket}&follow={job}")
    assert job not in told
    ticket = (await served.client.post("/v1/tickets", headers=bearer(other))).json()["ticket"]
    assert await status_of(served, f"{path}?ticket={ticket}&tenant=acme", {}) == 403


async def first_frames(served: Served, path: str) -> str:
    """Read frames up to the first one with a sequence number, which completes the snapshot."""
    url = f"{served.url.replace('http', 'ws', 1)}{path}"
    told: list[Any] = []
    async with asyncio.timeout(30), connect(url, proxy=None) as line:
        while not told or '"seq":null' in told[-1]:
            told.append(await line.recv())
    return "".join(told)
