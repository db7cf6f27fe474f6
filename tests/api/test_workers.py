"""The fleet over HTTP."""

from tests.api.keys import key_for
from tests.api.running_service import Served

from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import Token, WorkerId


async def test_workers_are_shown_with_their_leases(served: Served) -> None:
    """A worker that holds leases must be listed with the time of its last contact; a worker without leases is not
    listed.
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


async def test_only_operators_see_the_fleet(served_with_keys: Served) -> None:
    """Worker names contain host names."""
    async with served_with_keys.with_key((await key_for(served_with_keys)).text) as tenant:
        assert (await tenant.get("/v1/workers")).status_code == 403
