"""Those who want to listen and may not: from foreign pages, without a credential, with a ticket of somebody else."""

import asyncio
from typing import Any

import pytest
from tests.api.keys import bearer, key_for, operator_of
from tests.api.listening import submitted
from tests.api.serving import Served
from tests.attacks.lines import answer_to, request
from tests.attacks.routes import sockets_of
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
    """101: it was let in."""
    try:
        async with connect(f"{served.url.replace('http', 'ws', 1)}{path}", additional_headers=headers, proxy=None):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


async def test_only_our_own_pages_open_a_websocket(served: Served) -> None:
    """A browser sends cookies with it, and asks nobody beforehand: the exact Origin is all that there is."""
    for path in sockets_of(served.api):
        assert {await status_of(served, path, {"Origin": origin}) for origin in FOREIGN} == {403}
        assert await status_of(served, path, {"Origin": served.url}) == 101
        assert await status_of(served, path, {"Origin": served.url, "Sec-Fetch-Site": "cross-site"}) == 403


async def test_a_foreign_page_opens_no_stream_of_events(served: Served) -> None:
    """It could not read it, but its listeners would take the places of others."""
    stream = "Accept: text/event-stream"
    for line in ("Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"):
        answer = await answer_to(served, request("GET", "/v1/events", stream, line))
        assert (answer.status, "access-control-allow-origin" in answer.names) == (403, False)
    own = await answer_to(served, request("GET", "/v1/events", stream, f"Origin: {served.url}", host=served.url[7:]))
    assert own.status == 200


async def test_no_wrong_credential_opens_a_websocket(
    served_with_keys: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """The matrix of tenants has only routes with methods; this is the same for those without. Nor does it fill the log:
    anybody can do it."""
    served = served_with_keys
    revoked, worker = await operator_of(served), await key_for(served, None, Role.WORKER)
    await served.service.world.store.keys.revoke(revoked.key.id)
    expired = await operator_of(served, life_us=1)
    wrong: list[dict[str, str]] = [
        {}, bearer(revoked), bearer(expired), {"Authorization": "Bearer x"}, {"Authorization": "Basic eA=="},
        {"Cookie": "leaseway_session=x"}, {"Sec-WebSocket-Protocol": revoked.text},
    ]  # fmt: skip
    for path in sockets_of(served.api):
        assert {await status_of(served, path, headers) for headers in wrong} <= {401, 403}
        assert await status_of(served, path, bearer(worker)) == 403
        assert await status_of(served, path, bearer(await key_for(served))) == 101
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_ticket_opens_once_whoever_comes_first(served_with_keys: Served) -> None:
    """Tickets are part of a URL and appear in logs, so a used one must be worthless."""
    served, acme = served_with_keys, await key_for(served_with_keys)

    async def ticket() -> str:
        return str((await served.client.post("/v1/tickets", headers=bearer(acme))).json()["ticket"])

    (path,) = sockets_of(served.api)
    used = await ticket()
    assert await status_of(served, f"{path}?ticket={used}", {}) == 101
    assert await status_of(served, f"{path}?ticket={used}", {}) == 401
    # Of many at once, one.
    once = await ticket()
    found = await asyncio.gather(*(status_of(served, f"{path}?ticket={once}", {}) for _ in range(20)))
    assert sorted(found) == [101, *[401] * 19]
    # A wrong one is no reason to fall back on the credential, nor is it used up by a foreign page.
    assert await status_of(served, f"{path}?ticket=x", bearer(acme)) == 401
    kept = await ticket()
    assert await status_of(served, f"{path}?ticket={kept}", {"Origin": "https://evil.example"}) == 403
    assert await status_of(served, f"{path}?ticket={kept}", {"Origin": served.url}) == 101


async def test_a_ticket_is_for_its_tenant_alone(served_with_keys: Served) -> None:
    """A ticket must not give access to another tenant's events."""
    served = served_with_keys
    acme, other = await key_for(served), await key_for(served, "other")
    job = await submitted(served, **bearer(acme))
    ticket = (await served.client.post("/v1/tickets", headers=bearer(other))).json()["ticket"]
    (path,) = sockets_of(served.api)
    told = await first_frames(served, f"{path}?ticket={ticket}&follow={job}")
    assert job not in told
    ticket = (await served.client.post("/v1/tickets", headers=bearer(other))).json()["ticket"]
    assert await status_of(served, f"{path}?ticket={ticket}&tenant=acme", {}) == 403


async def first_frames(served: Served, path: str) -> str:
    """Up to the one with a number: then everything has been told."""
    url = f"{served.url.replace('http', 'ws', 1)}{path}"
    told: list[Any] = []
    async with asyncio.timeout(30), connect(url, proxy=None) as line:
        while not told or '"seq":null' in told[-1]:
            told.append(await line.recv())
    return "".join(told)
