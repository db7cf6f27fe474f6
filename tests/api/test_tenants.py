"""Tenant settings over HTTP."""

from typing import Any

from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served


async def test_an_agreement_is_made_shown_changed_and_forgotten(served: Served) -> None:
    """The caps must reach the limiter, which enforces them for all workers."""
    sent = {"weight": 3, "starts": ["10/minute"], "concurrency": 2}
    made = await served.client.put("/v1/tenants/acme", json=sent)
    assert (made.status_code, made.json()) == (201, {"name": "acme", **sent, "quotas": {}})
    assert [definition.name for definition, _ in await served.service.world.limiter.definitions.all()] == [
        "tenant:acme"
    ]
    assert (await served.client.get("/v1/tenants")).json()["items"] == [made.json()]
    changed = await served.client.put("/v1/tenants/acme", json={"weight": 2})
    assert (changed.status_code, changed.json()["starts"], changed.json()["concurrency"]) == (200, [], None)
    assert (await served.client.get("/v1/tenants/acme")).json() == changed.json()
    assert (await served.client.delete("/v1/tenants/acme")).status_code == 204
    assert (await served.client.get("/v1/tenants/acme")).status_code == 404
    assert (await served.client.delete("/v1/tenants/acme")).status_code == 404


BAD: list[tuple[dict[str, Any], str]] = [
    ({"weight": 0}, "/weight"),
    ({"weight": "2"}, "/weight"),
    ({"starts": ["often"]}, "/starts"),
    ({"starts": ["1/minute", "2/minute"]}, "/starts"),
    ({"concurrency": 0}, "/concurrency"),
    ({"name": "other"}, ""),
]


async def test_bad_input_is_pointed_at(served: Served) -> None:
    """The client must learn which field is invalid, and no part of invalid settings may take effect."""
    for body, pointer in BAD:
        answer = await served.client.put("/v1/tenants/acme", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), body
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer], body
    assert (await served.client.get("/v1/tenants")).json()["items"] == []


async def test_tenants_see_what_is_agreed_with_them_and_with_nobody_else(served_with_keys: Served) -> None:
    """The settings of another tenant must look like missing ones, and a tenant must not change its own weight."""
    served = served_with_keys
    async with served.with_key((await operator_of(served)).text) as operator:
        for name in ("acme", "other"):
            assert (await operator.put(f"/v1/tenants/{name}", json={"weight": 5})).status_code == 201
    async with served.with_key((await key_for(served, "acme")).text) as tenant:
        assert (await tenant.get("/v1/tenants/acme")).json()["weight"] == 5
        foreign, unknown = await tenant.get("/v1/tenants/other"), await tenant.get("/v1/tenants/never")
        assert (foreign.status_code, unknown.status_code) == (404, 404)
        assert foreign.json()["detail"].replace("other", "never") == unknown.json()["detail"]
        assert (await tenant.get("/v1/tenants")).status_code == 403
        assert (await tenant.put("/v1/tenants/acme", json={"weight": 1000})).status_code == 403
        assert (await tenant.delete("/v1/tenants/acme")).status_code == 403
