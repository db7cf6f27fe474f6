"""Limits over HTTP: how operators read and change them."""

import asyncio
from typing import Any

from tests.api.every_store import store_url as store_url
from tests.api.keys import bearer, key_for, operator_of
from tests.api.running_service import Served, run_service
from tests.worker.observe import close_lanes, count_closed

from leaseway import App
from leaseway.domain.identity import Role
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.buckets import Notice
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import Needs, render_needs
from leaseway.testing.job_store_contract.fixtures import new_job

MAPS: dict[str, Any] = {"rates": ["100/minute"]}


async def test_a_limit_is_defined_shown_changed_and_forgotten(served: Served) -> None:
    """The main path must work, and each change must take effect immediately."""
    made = await served.client.put("/v1/limits/maps", json=MAPS)
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    shown = await served.client.get("/v1/limits/maps")
    assert shown.headers["etag"] == '"1"'
    assert shown.json()["rates"] == [{"count": 100, "window_seconds": 60.0}]
    changed = await served.client.put("/v1/limits/maps", json={"rates": [{"count": 5, "window_seconds": 1.5}]})
    assert (changed.status_code, changed.json()["version"]) == (200, 2)
    assert changed.json()["definition"]["rates"] == ["5 per 1.5 s"]
    assert (await served.client.delete("/v1/limits/maps")).status_code == 204
    assert (await served.client.get("/v1/limits/maps")).status_code == 404
    assert (await served.client.delete("/v1/limits/maps")).status_code == 404


async def test_what_is_shown_can_be_sent_back(served: Served) -> None:
    """A form reads a limit, changes one field and sends all fields back."""
    sent = {"rates": ["3/second", "100/minute"], "concurrency": 7, "burst": 0.1, "cost_max": 2, "delay_seconds": 0.25}
    sent["breaker"] = 5
    await served.client.put("/v1/limits/maps", json=sent)
    definition = (await served.client.get("/v1/limits/maps")).json()["definition"]
    assert definition == {**sent, "lease_seconds": None, "degraded_share": 0.0, "start": None, "unit": "requests"}
    again = await served.client.put("/v1/limits/maps", json=definition)
    assert again.json()["definition"] == definition


async def test_gauges_say_what_is_used(served: Served) -> None:
    """Used and free capacity must add up to the limit, for permits and for in-flight calls."""
    await served.client.put("/v1/limits/maps", json={"rates": ["600/minute"], "concurrency": 3})
    await served.service.world.limiter.renew_calls([PermitRequest("maps", "maps")], "a worker", 2, 60 * SECOND_US)
    (shown,) = (await served.client.get("/v1/limits")).json()["items"]
    tokens, seats = shown["gauges"]
    assert (tokens["what"], tokens["rate"], tokens["window_seconds"]) == ("permits", "600/minute", 60.0)
    assert tokens["used"] + tokens["room"] == tokens["of"] > 0
    assert (seats["what"], seats["used"], seats["room"], seats["of"]) == ("concurrency", 2, 1, 3)


async def test_an_open_circuit_breaker_is_shown(served: Served) -> None:
    """No call leaves although permits are there, and an operator must see at once that the provider is down."""
    await served.client.put("/v1/limits/frail", json={"rates": ["600/minute"], "breaker": 1})
    shown = (await served.client.get("/v1/limits/frail")).json()
    assert (shown["breaker"], shown["breaker_until"]) == ("closed", None)
    await served.service.world.limiter.observe(Notice("frail", "frail", 0, failed=True))
    shown = (await served.client.get("/v1/limits/frail")).json()
    assert (shown["breaker"], shown["reason"]) == ("open", "its circuit breaker is open: a call failed")
    assert shown["until"] == shown["breaker_until"]
    text = (await served.client.get("/metrics")).text
    assert 'leaseway_limit_breaker_state{limit="frail",state="open"} 1' in text
    assert 'leaseway_limit_breaker_state{limit="frail",state="closed"} 0' in text
    assert 'leaseway_limit_breaker_state{limit="slow"' not in text


async def test_a_limit_that_is_shut_says_why_and_until_when(served: Served) -> None:
    """A limit that does not grant its first permit is what operators ask about first."""
    await served.client.put("/v1/limits/slow", json={"rates": ["1/day"], "start": "empty"})
    shown = (await served.client.get("/v1/limits/slow")).json()
    assert "starts empty" in shown["reason"]
    assert shown["until"].endswith("Z")


async def test_a_limit_with_fields_is_shown_for_one_value(served: Served) -> None:
    """A limit with fields has one instance per value, and the response must describe the requested one."""
    await served.client.put("/v1/limits/maps:%7Btenant%7D", json=MAPS)
    (listed,) = (await served.client.get("/v1/limits")).json()["items"]
    assert (listed["name"], listed["gauges"]) == ("maps:{tenant}", [])
    shown = (await served.client.get("/v1/limits/maps:acme")).json()
    assert (shown["name"], shown["limit"]) == ("maps:acme", "maps:{tenant}")
    assert len(shown["gauges"]) == 1


async def test_names_with_slashes_are_names(served: Served) -> None:
    """Providers are often named after URL paths."""
    assert (await served.client.put("/v1/limits/maps/geo%20code", json=MAPS)).status_code == 201
    assert (await served.client.get("/v1/limits/maps%2Fgeo%20code")).json()["name"] == "maps/geo code"


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "/rates"),
    ({"rates": ["many"]}, "/rates"),
    ({"rates": [{"count": -1, "window_seconds": 1}]}, "/rates"),
    ({"rates": [{"count": 1, "window_seconds": 1e300}]}, "/rates"),
    ({"rates": [{"count": 1, "window_seconds": 1, "x": 1}]}, "/rates/0"),
    ({**MAPS, "concurrency": 0}, "/concurrency"),
    ({**MAPS, "burst": 2}, "/burst"),
    ({**MAPS, "cost_max": 101}, "/cost_max"),
    ({**MAPS, "lease_seconds": 1e308}, "/lease_seconds"),
    ({**MAPS, "delay_seconds": -1}, "/delay_seconds"),
    ({**MAPS, "degraded_share": 0.9}, "/degraded_share"),
    ({**MAPS, "rates": "100/minute"}, "/rates"),
    ({**MAPS, "name": "other"}, ""),
]


async def test_bad_input_is_pointed_at(served: Served) -> None:
    """The client must learn which field is invalid, and no part of an invalid definition may take effect."""
    for body, pointer in BAD:
        answer = await served.client.put("/v1/limits/maps", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), body
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer], body
    assert (await served.client.get("/v1/limits")).json()["items"] == []


async def test_the_caps_of_tenants_are_changed_elsewhere(served: Served) -> None:
    """Otherwise the tenant's settings and its caps would contradict each other."""
    answer = await served.client.put("/v1/limits/tenant:acme", json=MAPS)
    assert (answer.status_code, "/v1/tenants/acme" in answer.json()["detail"]) == (422, True)
    assert (await served.client.delete("/v1/limits/tenant:acme")).status_code == 422


async def test_a_change_of_what_was_changed_meanwhile_is_refused(served: Served) -> None:
    """When two operators edit the same form, the second must not silently overwrite the first one's change."""
    await served.client.put("/v1/limits/maps", json=MAPS)
    await served.client.put("/v1/limits/maps", json={"rates": ["50/minute"]})
    answer = await served.client.put("/v1/limits/maps", json=MAPS, headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.json()["code"], answer.json()["version"]) == (412, "stale", 2)
    assert (await served.client.delete("/v1/limits/maps", headers={"If-Match": '"1"'})).status_code == 412
    assert (await served.client.get("/v1/limits/maps")).json()["definition"]["rates"] == ["50/minute"]
    assert (await served.client.put("/v1/limits/maps", json=MAPS, headers={"If-Match": '"2"'})).status_code == 200


async def test_preconditions_about_what_is_not_there(served: Served) -> None:
    """`If-Match` on a missing limit and `If-None-Match` on an existing one must both be refused."""
    for headers, status in (
        ({"If-Match": "*"}, 412), ({"If-Match": '"1"'}, 412), ({"If-None-Match": '"1"'}, 400),
        ({"If-None-Match": "*"}, 201), ({"If-None-Match": "*"}, 412), ({"If-Match": "maps"}, 400),
    ):  # fmt: skip
        answer = await served.client.put("/v1/limits/maps", json=MAPS, headers=headers)
        assert answer.status_code == status, headers


async def test_of_many_changes_to_one_version_one_wins(served: Served) -> None:
    """Reading and changing are two calls to the store, and no other change may come between them."""
    await served.client.put("/v1/limits/maps", json=MAPS)
    # Connect first: a request that must connect would be too late for the race.
    await asyncio.gather(*(served.client.get("/healthz") for _ in range(20)))
    headers = {"If-Match": '"1"'}
    answers = await asyncio.gather(
        *(served.client.put("/v1/limits/maps", json={"rates": [f"{n}/minute"]}, headers=headers) for n in range(1, 21))
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 19


async def test_lists_have_pages(served: Served) -> None:
    """A list in order of names must not have gaps, and a cursor of another list must be refused."""
    for number in range(5):
        await served.client.put(f"/v1/limits/limit-{number}", json=MAPS)
    first = (await served.client.get("/v1/limits", params={"limit": 2})).json()
    second = (await served.client.get("/v1/limits", params={"limit": 2, "cursor": first["next"]})).json()
    third = (await served.client.get("/v1/limits", params={"limit": 2, "cursor": second["next"]})).json()
    names = [item["name"] for each in (first, second, third) for item in each["items"]]
    assert names == [f"limit-{number}" for number in range(5)]
    assert third["next"] is None
    assert (await served.client.get("/v1/budgets", params={"cursor": first["next"]})).status_code == 400
    await served.client.delete("/v1/limits/limit-1")
    gone = await served.client.get("/v1/limits", params={"cursor": first["next"]})
    assert (gone.status_code, gone.json()["code"]) == (400, "bad_cursor")
    assert (await served.client.get("/v1/limits", params={"limit": 0})).status_code == 422


async def test_only_operators_see_and_change_limits(served_with_keys: Served) -> None:
    """Limits are shared by all tenants, and their names may reveal other tenants."""
    served = served_with_keys
    async with served.with_key((await key_for(served)).text) as tenant:
        assert (await tenant.get("/v1/limits")).status_code == 403
        assert (await tenant.put("/v1/limits/maps", json=MAPS)).status_code == 403
        assert (await tenant.delete("/v1/limits/maps")).status_code == 403
    async with served.with_key((await operator_of(served)).text) as operator:
        assert (await operator.put("/v1/limits/maps", json=MAPS)).status_code == 201
    assert (await served.client.get("/v1/limits")).status_code == 401


async def test_of_changes_through_two_processes_to_one_version_one_wins(served: Served) -> None:
    """Behind a load balancer, each change may reach another process, so the store must compare the versions."""
    await served.client.put("/v1/limits/maps", json=MAPS)
    async with run_service(App(served.app.url)) as other:
        headers, clients = {"If-Match": '"1"'}, (served.client, other.client)
        await asyncio.gather(*(client.get("/v1/limits") for client in clients for _ in range(8)))
        answers = await asyncio.gather(
            *(
                clients[n % 2].put("/v1/limits/maps", json={"rates": [f"{n}/minute"]}, headers=headers)
                for n in range(1, 17)
            )
        )
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 15


async def test_a_limit_is_paused_and_resumed(served: Served) -> None:
    """Every view must show the pause, and a change of the limit's numbers must not end it."""
    await served.client.put("/v1/limits/maps", json=MAPS)
    paused = await served.client.post("/v1/limits/maps/pause")
    assert (paused.status_code, paused.json()["paused"], paused.headers["etag"]) == (200, True, '"2"')
    shown = (await served.client.get("/v1/limits/maps")).json()
    assert (shown["paused"], shown["reason"], shown["until"]) == (True, "it is paused", None)
    changed = await served.client.put("/v1/limits/maps", json={"rates": ["50/minute"]})
    assert changed.json()["paused"] is True
    stale = await served.client.post("/v1/limits/maps/resume", headers={"If-Match": '"2"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale")
    assert (await served.client.post("/v1/limits/maps/resume")).json()["paused"] is False
    (listed,) = (await served.client.get("/v1/limits")).json()["items"]
    assert (listed["paused"], listed["definition"]["rates"]) == (False, ["50/minute"])


async def test_only_what_is_there_can_be_paused(served: Served) -> None:
    """A limit with fields is paused as a whole, and the caps of a tenant are changed by its own route."""
    await served.client.put("/v1/limits/maps:%7Btenant%7D", json=MAPS)
    unknown = await served.client.post("/v1/limits/maps:acme/pause")
    assert (unknown.status_code, "maps:{tenant}" in unknown.json()["detail"]) == (404, True)
    assert (await served.client.post("/v1/limits/tenant:acme/pause")).status_code == 422
    whole = await served.client.post("/v1/limits/maps:%7Btenant%7D/pause")
    assert (whole.json()["name"], whole.json()["paused"]) == ("maps:{tenant}", True)
    assert (await served.client.get("/v1/limits/maps:acme")).json()["reason"] == "it is paused"


async def test_a_change_opens_the_lanes_of_its_limit(served: Served) -> None:
    """The jobs of a raised limit waited for up to a minute, because a worker had closed their lane."""
    store, path = served.service.world.store, "/v1/limits/maps"
    await served.client.put(path, json={"rates": ["1/day"]})
    await store.jobs.submit([new_job(1, needs=render_needs(Needs((PermitRequest("maps", "maps"),))))])
    assert await close_lanes(store) == 1
    await served.client.put(path, json={"rates": ["9/second"]})
    assert await count_closed(store) == 0
    await served.client.post(f"{path}/pause")
    await close_lanes(store)
    await served.client.post(f"{path}/resume")
    assert await count_closed(store) == 0
    await close_lanes(store)
    await served.client.delete(path)
    assert await count_closed(store) == 0


async def test_a_worker_of_one_tenant_opens_only_the_lanes_of_its_tenant() -> None:
    """Lanes of others are closed for a reason, and opening them makes their workers ask again."""
    async with run_service(App("memory://"), auth=True) as served:
        store, needs = served.service.world.store, render_needs(Needs((PermitRequest("maps", "maps"),)))
        await store.jobs.submit(
            [new_job(n, needs=needs, tenant=tenant) for n, tenant in enumerate(["acme", "zeta"], 1)]
        )
        assert await close_lanes(store) == 2
        headers = bearer(await key_for(served, "acme", Role.WORKER))
        body = {"name": "maps", "limit": 10, "tenant": "zeta"}
        assert (await served.client.post("/v1/work/lanes/open", json=body, headers=headers)).json() == {"value": 1}
        (closed,) = [lane for lane in await store.reads.lanes() if lane.closed_until is not None]
        assert closed.tenant == "zeta"
        for broken in ({**body, "limit": 10**9}, {**body, "name": ""}, {**body, "tenant": ""}):
            assert (await served.client.post("/v1/work/lanes/open", json=broken, headers=headers)).status_code == 422
