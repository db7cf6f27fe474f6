"""One tenant of a service cannot use all connections to the database."""

import asyncio

import pytest
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.domain.errors import StoreBusy
from leaseway.stores.postgres import connection
from leaseway.stores.postgres.reads import PostgresReads
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.tenant_share import CALLING_TENANT, TenantShares, calls_for
from leaseway.testing.postgres import PostgresServer

POOL = 4
SLOW = "SELECT pg_sleep(0.3)"


async def test_a_tenant_with_many_slow_calls_leaves_connections_to_others(server: PostgresServer) -> None:
    """Ten expensive calls of one tenant stopped the calls of all others for eleven seconds."""
    store = PostgresStore(f"{server.url}?pool={POOL}")
    await store.open()
    with calls_for("acme"):
        slow = [asyncio.ensure_future(store.connections.call(SLOW)) for _ in range(3 * POOL)]
    await asyncio.sleep(0)
    for tenant in ("globex", None):
        with calls_for(tenant):
            await store.connections.call("SELECT 1")
    assert not any(each.done() for each in slow)
    await asyncio.gather(*slow)
    await store.close()


async def test_a_tenant_that_waits_too_long_learns_why(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """More connections for the process help; the message must not say that all of them are in use."""
    monkeypatch.setattr(connection, "WAIT_SECONDS_MAX", 0.05)
    store = PostgresStore(f"{server.url}?pool={POOL}")
    await store.open()
    with calls_for("acme"):
        slow = [asyncio.ensure_future(store.connections.call(SLOW)) for _ in range(POOL // 2)]
        await asyncio.sleep(0)
        with pytest.raises(StoreBusy, match=r"the 2 connections of one tenant .* \?pool=8"):
            await store.connections.call("SELECT 1")
    await asyncio.gather(*slow)
    await store.close()


async def test_a_tenant_without_calls_leaves_nothing_behind() -> None:
    """A service has many tenants, and a call may be cancelled while it waits."""
    shares = TenantShares(1)
    await shares.acquire("acme")
    waiting = asyncio.ensure_future(shares.acquire("acme"))
    await asyncio.sleep(0)
    assert shares.is_used_up("acme")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    shares.release("acme")
    assert not shares._slots
    assert not shares._users
    assert not shares.is_used_up("acme")


@pytest.fixture
async def served(server: PostgresServer) -> object:
    async with run_service(App(server.url), auth=True) as served:
        yield served


async def test_a_service_calls_its_store_for_the_tenant_of_the_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that no request uses would be a promise without effect. Operators are not limited."""
    seen: list[str | None] = []
    lanes = PostgresReads.lanes

    async def watched(self: PostgresReads, tenant: str | None = None) -> object:
        seen.append(CALLING_TENANT.get())
        return await lanes(self, tenant)

    monkeypatch.setattr(PostgresReads, "lanes", watched)
    for key, expected in ((await key_for(served, "acme"), "acme"), (await operator_of(served), None)):
        seen.clear()
        headers = {"Authorization": f"Bearer {key.text}"}
        assert (await served.client.get("/v1/quotas", headers=headers)).status_code == 200
        assert set(seen) == {expected}
