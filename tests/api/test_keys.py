"""/v1/keys: create, list, rotate and revoke keys, never with more rights than the caller has."""

import re

import pytest
from tests.api.every_store import store_url as store_url
from tests.api.keys import bearer, key_for, operator_of
from tests.api.running_service import Served

from leaseway.domain.identity import Role, Scope, parse_key_text
from leaseway.domain.ids import SECOND_US


async def test_a_key_is_shown_once(served_with_keys: Served) -> None:
    """The secret must not be stored or derivable from any later response."""
    served = served_with_keys
    async with served.with_key((await operator_of(served)).text) as client:
        body = {"tenant": "acme", "name": "shop", "scopes": ["jobs:read"], "expires_seconds": 86_400}
        made = await client.post("/v1/keys", json=body)
        assert made.status_code == 201
        given = made.json()
        parts = parse_key_text(given.pop("key"))
        assert parts is not None
        assert (given["id"], given["tenant"], given["scopes"], given["state"]) == (
            parts[0],
            "acme",
            ["jobs:read"],
            "live",
        )
        shown = await client.get(made.headers["location"])
        assert shown.json() == given
        listed = await client.get("/v1/keys", params={"tenant": "acme"})
        assert listed.json() == {"items": [given], "next": None}
        for answer in (shown, listed):
            assert parts[1] not in answer.text
            assert "hash" not in answer.text
    assert (
        await served.client.get("/v1/jobs", headers={"Authorization": f"Bearer lw_{parts[0]}_{parts[1]}"})
    ).is_success


async def test_a_revoked_key_opens_nothing_any_more(served_with_keys: Served) -> None:
    """This process must refuse the key immediately, and revoking it again must give the same response."""
    served, victim = served_with_keys, await key_for(served_with_keys)
    async with served.with_key((await operator_of(served)).text) as client:
        assert (await served.client.get("/v1/jobs", headers=bearer(victim))).status_code == 200
        answers = [await client.delete(f"/v1/keys/{victim.key.id}") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert [answer.json()["state"] for answer in answers] == ["revoked", "revoked"]
        assert answers[0].json()["revoked_at"] == answers[1].json()["revoked_at"]
        assert (await served.client.get("/v1/jobs", headers=bearer(victim))).status_code == 401
        assert (await client.post(f"/v1/keys/{victim.key.id}/rotate", json={})).status_code == 422


async def test_after_a_rotation_both_keys_open_for_a_while(served_with_keys: Served) -> None:
    """Operators cannot update all programs in the same second."""
    served, old = served_with_keys, await key_for(served_with_keys, name="shop", scopes=(Scope.JOBS_READ,))
    async with served.with_key((await operator_of(served)).text) as client:
        made = await client.post(f"/v1/keys/{old.key.id}/rotate", json={"grace_seconds": 3_600})
        assert made.status_code == 201
        new = made.json()
        assert (new["name"], new["tenant"], new["scopes"]) == ("shop", "acme", ["jobs:read"])
        for text in (old.text, new["key"]):
            assert (await served.client.get("/v1/jobs", headers={"Authorization": f"Bearer {text}"})).status_code == 200
        assert (await client.get(f"/v1/keys/{old.key.id}")).json()["expires_at"] is not None
        await client.post(f"/v1/keys/{old.key.id}/rotate", json={"grace_seconds": 0})
        assert (await served.client.get("/v1/jobs", headers=bearer(old))).status_code == 401


async def test_nobody_gives_what_he_does_not_have(served_with_keys: Served) -> None:
    """Otherwise a caller with the right to create keys could give itself every other right."""
    served = served_with_keys
    maker = await operator_of(served, scopes=(Scope.ADMIN, Scope.JOBS_READ))
    strong = await key_for(served, "ops", Role.OPERATOR)
    async with served.with_key(maker.text) as client:
        for body, field in (
            ({"role": "operator", "tenant": "ops"}, "scopes"),
            ({"role": "operator", "tenant": "ops", "scopes": ["operate"]}, "scopes"),
            ({"role": "tenant", "tenant": "ops"}, "scopes"),
            ({"role": "tenant", "tenant": "acme", "scopes": ["jobs:read"]}, "tenant"),
            ({"role": "worker"}, "scopes"),
            ({"role": "worker", "tenant": "ops"}, "scopes"),
        ):
            refused = await client.post("/v1/keys", json=body)
            assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, f"/{field}")
        rotated = await client.post(f"/v1/keys/{strong.key.id}/rotate", json={})
        assert (rotated.status_code, "key" in rotated.json()) == (422, False)
        fine = {"role": "tenant", "tenant": "ops", "scopes": ["jobs:read"]}
        assert (await client.post("/v1/keys", json=fine)).status_code == 201


async def test_a_key_does_not_outlive_the_key_that_made_it(served_with_keys: Served) -> None:
    """A key for one day could otherwise give its holder access for ever, also by rotating itself."""
    served = served_with_keys
    maker = await operator_of(served, life_us=3_600 * SECOND_US)
    async with served.with_key(maker.text) as client:
        wanted = {"role": "tenant", "tenant": "acme"}
        for more in ({}, {"expires_seconds": 7_200}):
            refused = await client.post("/v1/keys", json=wanted | more)
            assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/expires_seconds")
        assert (await client.post("/v1/keys", json=wanted | {"expires_seconds": 600})).status_code == 201
        again = await client.post(f"/v1/keys/{maker.key.id}/rotate", json={"expires_seconds": 7_200})
        assert (again.status_code, again.json()["errors"][0]["pointer"]) == (422, "/expires_seconds")
    unbounded = await operator_of(served)
    async with served.with_key(unbounded.text) as client:
        assert (await client.post("/v1/keys", json=wanted)).status_code == 201


async def test_keys_of_another_tenant_are_like_none(served_with_keys: Served) -> None:
    """A caller that may create keys for one tenant must not learn about keys of other tenants."""
    served = served_with_keys
    maker, theirs = await operator_of(served, scopes=(Scope.ADMIN,)), await key_for(served, "acme")
    async with served.with_key(maker.text) as client:
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
            answer = await client.request(method, f"/v1/keys/{theirs.key.id}{path}", json={} if path else None)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        for tenant in ({}, {"tenant": "acme"}):
            found = (await client.get("/v1/keys", params=tenant)).json()["items"]
            assert [key["id"] for key in found] == [maker.key.id]
    assert (await served.client.get("/v1/jobs", headers=bearer(theirs))).status_code == 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/tenant"),
        ({"tenant": ""}, "/tenant"),
        ({"tenant": "*"}, "/tenant"),
        ({"tenant": "a\nb"}, "/tenant"),
        ({"tenant": "acme", "role": "operator", "scopes": ["work"]}, "/scopes"),
        ({"tenant": "acme", "scopes": ["operate"]}, "/scopes"),
        ({"tenant": "acme", "scopes": []}, "/scopes"),
        ({"tenant": "acme", "scopes": ["everything"]}, "/scopes/0"),
        ({"tenant": "acme", "role": "king"}, "/role"),
        ({"tenant": "acme", "name": "x" * 201}, "/name"),
        ({"tenant": "acme", "expires_seconds": 0}, "/expires_seconds"),
        ({"tenant": "acme", "expires_seconds": 1e12}, "/expires_seconds"),
        ({"tenant": "acme", "id": "aaaaaaaaaaaa"}, ""),
        ({"tenant": "acme", "hash": "x"}, ""),
    ],
)
async def test_what_cannot_be_is_refused_by_name(served: Served, body: dict[str, object], pointer: str) -> None:
    """A key with impossible rights would be refused later, far from its cause."""
    refused = await served.client.post("/v1/keys", json=body)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)


async def test_the_list_goes_on_where_it_stopped(served: Served) -> None:
    """A list in order of ids must not skip a key, and a cursor of another list must be refused."""
    made = [(await key_for(served)).key.id for _ in range(5)]
    other = (await key_for(served, "other")).key.id
    seen, cursor = [], None
    for _ in range(3):
        answer = await served.client.get("/v1/keys", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
        seen += [key["id"] for key in answer.json()["items"]]
        cursor = answer.json()["next"]
    assert (seen, cursor) == (sorted([*made, other]), None)
    first = (await served.client.get("/v1/keys", params={"limit": 2, "tenant": "acme"})).json()
    assert (await served.client.get("/v1/keys", params={"limit": 2, "cursor": first["next"]})).status_code == 400
    for params in ({"cursor": "abc"}, {"limit": 0}, {"limit": 201}):
        assert (await served.client.get("/v1/keys", params=params)).status_code in (400, 422)


async def test_ids_that_nobody_has_are_not_found(served: Served) -> None:
    """Strange ids must not reach the store as something other than an id."""
    for id_ in ("aaaaaaaaaaaa", "x" * 5_000, "%00", "'; DROP TABLE api_keys"):
        answer = await served.client.get(f"/v1/keys/{id_}")
        assert answer.status_code in (400, 404), id_


async def test_secrets_have_their_form(served: Served) -> None:
    """Secret scanners recognize keys by their prefix, and a key must have the promised entropy."""
    texts = [(await key_for(served)).text for _ in range(20)]
    assert all(re.fullmatch(r"lw_[a-z0-9]{12}_[A-Za-z0-9]{27}", text) for text in texts)
    assert len(set(texts)) == 20
    assert len({letter for text in texts for letter in text[16:]}) > 55
