"""The fleet over HTTP."""

import msgspec
from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for
from tests.api.running_service import Served

from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.identity import Role
from leaseway.domain.ids import Token, WorkerId
from leaseway.ports.store import require_workers
from leaseway.testing.workers_contract import heartbeat


async def test_workers_are_shown_with_their_leases(served: Served) -> None:
    """A worker that holds leases must be listed with the time of its last contact, also if it has not reported itself
    yet.
    """
    assert (await served.client.get("/v1/workers")).json() == {"items": [], "next": None}
    for number in range(3):
        await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": number}})
    store = served.service.world.store
    for name, jobs in (("b", 1), ("a", 2)):
        await store.jobs.exchange(Exchange(WorkerId(name), (), Wants(("default",), jobs, Token(f"token-{name}"))))
    items = (await served.client.get("/v1/workers")).json()["items"]
    assert [(item["name"], item["leased"], item["expired"]) for item in items] == [("a", 2, 0), ("b", 1, 0)]
    assert all(item["seen_at"] < item["until"] for item in items)
    first = (await served.client.get("/v1/workers", params={"limit": 1})).json()
    rest = (await served.client.get("/v1/workers", params={"cursor": first["next"]})).json()
    assert [item["name"] for item in first["items"] + rest["items"]] == ["a", "b"]


async def test_idle_workers_are_shown_and_drained(served: Served) -> None:
    """An operator who sees no worker starts another one. A drained worker must be shown as such at once."""
    workers = require_workers(served.service.world.store)
    await workers.beat(heartbeat("vm:1:a", version="1.0"))
    (shown,) = (await served.client.get("/v1/workers")).json()["items"]
    assert (shown["name"], shown["state"], shown["leased"], shown["until"]) == ("vm:1:a", "idle", 0, None)
    assert (shown["slots"], shown["queues"], shown["version"]) == (20, ["default", "mail"], "1.0")
    drained = await served.client.post("/v1/workers/vm:1:a/drain")
    assert (drained.status_code, drained.json()["state"]) == (200, "draining")
    assert (await workers.beat(heartbeat("vm:1:a"))).drain
    assert (await served.client.post("/v1/workers/unknown/drain")).status_code == 404
    assert (await served.client.get("/v1/metrics")).json()["workers"]["count"] == 1


async def test_a_worker_of_one_tenant_sees_its_own_kind_only(served_with_keys: Served) -> None:
    """Names of workers contain host names, and tenants are strangers. A tenant must not drain the workers of another
    one, nor take the name of one.
    """
    registry = require_workers(served_with_keys.service.world.store)
    await registry.beat(heartbeat("vm:1:a"))
    key = await key_for(served_with_keys, tenant="acme", role=Role.WORKER)
    async with served_with_keys.with_key(key.text) as tenant:
        body = msgspec.to_builtins(heartbeat("vm:1:a", tenant="globex"))
        assert (await tenant.post("/v1/work/workers/beat", json=body)).status_code == 200
        own = (await tenant.post("/v1/work/workers/list", json={})).json()["value"]
        assert [(each["beat"]["worker"], each["beat"]["tenant"]) for each in own] == [("vm:1:a", "acme")]
        assert (await tenant.post("/v1/work/workers/drain", json={"worker": "vm:1:a"})).status_code == 403
        await tenant.post("/v1/work/workers/leave", json={"worker": "vm:1:a"})
    assert [each.name for each in await registry.all()] == ["vm:1:a"]


async def test_only_operators_see_the_fleet(served_with_keys: Served) -> None:
    """Worker names contain host names."""
    async with served_with_keys.with_key((await key_for(served_with_keys)).text) as tenant:
        assert (await tenant.get("/v1/workers")).status_code == 403
