"""Lanes over HTTP: what waits, and why."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served, run_service
from tests.api.test_health import take_away

from leaseway import App, Budget, Limit


@pytest.fixture
async def metered(store_url: str) -> AsyncIterator[Served]:
    """A service with one job that needs a limit and a budget, and one job that needs neither."""
    app = App(store_url)

    @app.job(limits=[Limit("maps", "1/day")], budget=Budget("spend", usd=1), cost_usd=0.5)
    async def geocode(place: str) -> None: ...

    @app.job
    async def plain() -> None: ...

    async with run_service(app) as served:
        yield served


async def test_a_lane_says_why_and_until_when_it_waits(metered: Served) -> None:
    """This is the first question of an operator whose queue does not move."""
    await metered.client.post("/v1/jobs", json={"kind": "geocode", "arguments": {"place": "Bern"}})
    await metered.client.post("/v1/jobs", json={"kind": "plain"})
    await metered.client.put("/v1/limits/maps", json={"rates": ["1/day"], "start": "empty"})
    await metered.client.put("/v1/budgets/spend", json={"unit": "usd", "limit": 1})
    shown = (await metered.client.get("/v1/lanes")).json()
    free, waiting = shown["items"]
    assert (free["needs"], free["reason"], free["until"], free["waits_for"]) == (None, None, None, [])
    assert waiting["reason"].startswith("limit maps: 1/day starts empty")
    assert waiting["until"].endswith("Z")
    assert [each["name"] for each in waiting["waits_for"]] == ["maps"]
    assert shown["total"] == {"ready": 2, "scheduled": 0, "leased": 0, "done": 0, "failed": 0, "cancelled": 0}


async def test_what_nobody_defined_is_said_with_the_way_out(metered: Served) -> None:
    """Jobs that wait for an undefined limit would otherwise wait forever without a reason."""
    await metered.client.post("/v1/jobs", json={"kind": "geocode", "arguments": {"place": "Bern"}})
    (lane,) = (await metered.client.get("/v1/lanes")).json()["items"]
    assert {each["why"] for each in lane["waits_for"]} == {"it is not defined"}
    assert lane["waits_for"][0]["advice"]
    assert lane["until"] is None


async def test_lanes_say_how_long_their_oldest_job_waits(served: Served) -> None:
    """An empty lane must stay in the list without a waiting time."""
    await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})
    (lane,) = (await served.client.get("/v1/lanes")).json()["items"]
    assert lane["oldest_ready_seconds"] >= 0
    await served.settle()
    (lane,) = (await served.client.get("/v1/lanes")).json()["items"]
    assert (lane["ready"], lane["done"], lane["oldest_ready_seconds"]) == (0, 1, None)


async def test_tenants_see_their_own_lanes(served_with_keys: Served) -> None:
    """Lanes of other tenants are confidential; only operators may read all lanes or select a tenant."""
    served = served_with_keys
    for tenant in ("acme", "other"):
        async with served.with_key((await key_for(served, tenant)).text) as client:
            assert (await client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})).status_code == 202
            items = (await client.get("/v1/lanes")).json()["items"]
            assert [item["tenant"] for item in items] == [tenant]
            assert (await client.get("/v1/lanes", params={"tenant": "acme" if tenant == "other" else "other"})
                    ).status_code == 403  # fmt: skip
    async with served.with_key((await operator_of(served)).text) as client:
        assert [item["tenant"] for item in (await client.get("/v1/lanes")).json()["items"]] == ["acme", "other"]
        named = await client.get("/v1/lanes", params={"tenant": "other", "queue": "default"})
        assert [item["tenant"] for item in named.json()["items"]] == ["other"]


async def test_lanes_have_pages(served: Served) -> None:
    """A lane that two pages skip would never be seen."""
    for queue in ("a", "b", "c"):
        await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}, "queue": queue})
    first = (await served.client.get("/v1/lanes", params={"limit": 2})).json()
    second = (await served.client.get("/v1/lanes", params={"limit": 2, "cursor": first["next"]})).json()
    assert [lane["queue"] for lane in first["items"] + second["items"]] == ["a", "b", "c"]
    assert (second["next"], second["total"]["ready"]) == (None, 3)


async def test_a_limiter_that_is_away_does_not_hide_the_lanes(tmp_path: Path) -> None:
    """An operator who investigates an outage must still see the lanes. The response must not reveal the limiter's
    address.
    """
    limits = tmp_path / "secret-limits.db"
    app = App(f"sqlite:///{tmp_path / 'work.db'}", limits=f"sqlite:///{limits}")

    @app.job(limits=[Limit("maps", "1/day")])
    async def geocode() -> None: ...

    async with run_service(app) as served:
        await served.client.post("/v1/jobs", json={"kind": "geocode"})
        await take_away(served.service.world.limiter, limits)
        answer = await served.client.get("/v1/lanes")
        (lane,) = answer.json()["items"]
        assert "cannot be read from here" in lane["reason"]
        assert "secret-limits" not in answer.text
        assert (await served.client.get("/v1/metrics")).json()["ready"] == 1
        limits.rmdir()


async def test_the_lanes_of_a_queue_are_paused_and_resumed(served: Served) -> None:
    """No job of a paused queue may start, and the lane and the job must report the pause and how to end it."""
    job = (await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})).json()["id"]
    paused = await served.client.post("/v1/lanes/pause", json={"queue": "default"})
    assert (paused.status_code, paused.json()["paused"], paused.json()["tenant"]) == (200, True, None)
    (listed,) = (await served.client.get("/v1/lanes/pauses")).json()["items"]
    assert (listed["queue"], listed["since"]) == ("default", paused.json()["since"])
    (lane,) = (await served.client.get("/v1/lanes")).json()["items"]
    assert (lane["reason"], lane["until"]) == ("lane default: it is paused", None)
    assert (await served.client.get("/v1/metrics")).json()["blocked"] == 1
    why = (await served.client.get(f"/v1/jobs/{job}/why")).json()
    assert (why["code"], why["text"]) == ("lane", "It waits for lane default: it is paused.")
    assert why["advice"] == "Resume it: leaseway lanes resume default"
    assert (await served.client.post("/v1/lanes/resume", json={"queue": "default"})).json()["paused"] is False
    await served.settle()
    assert (await served.client.get(f"/v1/jobs/{job}")).json()["state"] == "done"


async def test_a_due_job_that_no_worker_has_looked_at_tells_of_the_pause(served: Served) -> None:
    """Only a worker moves due jobs to the ready ones. Until then the counters of the lane say that nothing is ready,
    and "start a worker" would be wrong advice."""
    await served.client.post("/v1/lanes/pause", json={"queue": "default"})
    body = {"kind": "add", "arguments": {"a": 1}, "delay_seconds": 0.01}
    job = (await served.client.post("/v1/jobs", json=body)).json()["id"]
    async with asyncio.timeout(30):
        while (why := (await served.client.get(f"/v1/jobs/{job}/why")).json())["code"] == "scheduled":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    (lane,) = (await served.client.get("/v1/lanes")).json()["items"]
    assert (lane["ready"], lane["scheduled"]) == (0, 1)
    assert (why["code"], why["text"]) == ("lane", "It waits for lane default: it is paused.")


async def test_a_tenant_is_not_told_whether_workers_are_busy_with_others(served_with_keys: Served) -> None:
    """It sees its own lanes only: "no worker" would be a guess, and "busy" would tell of other tenants."""
    async with served_with_keys.with_key((await key_for(served_with_keys)).text) as tenant:
        job = (await tenant.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})).json()["id"]
        advice = (await tenant.get(f"/v1/jobs/{job}/why")).json()["advice"]
    assert advice.startswith("Whether a worker serves this queue is not known here.")


async def test_what_is_not_paused_is_not_resumed(served: Served) -> None:
    """The response names the existing pauses: resuming a queue must not end a pause that applies to one tenant only."""
    await served.client.post("/v1/lanes/pause", json={"queue": "mail", "tenant": "acme"})
    answer = await served.client.post("/v1/lanes/resume", json={"queue": "mail"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "queue 'mail' of tenant 'acme'" in answer.json()["detail"]
    for body, pointer in (({}, ""), ({"queue": ""}, "/queue"), ({"queue": "mail", "tenant": ""}, "/tenant")):
        refused = await served.client.post("/v1/lanes/pause", json=body)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)


async def test_only_operators_pause_lanes(served_with_keys: Served) -> None:
    """A queue is shared by all tenants."""
    async with served_with_keys.with_key((await key_for(served_with_keys)).text) as tenant:
        assert (await tenant.post("/v1/lanes/pause", json={"queue": "default"})).status_code == 403
        assert (await tenant.get("/v1/lanes/pauses")).status_code == 403
