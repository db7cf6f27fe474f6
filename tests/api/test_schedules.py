"""Schedules over HTTP: list, pause and resume."""

from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for
from tests.api.running_service import Served

from leaseway.domain.schedule import Schedule

NIGHTLY = Schedule(name="reports/nightly", kind="add", cron="0 3 * * *", tz="Europe/Berlin")


async def test_a_schedule_is_paused_and_resumed(served: Served) -> None:
    """An operator must see that a paused schedule does not fire. Names may contain slashes."""
    await served.service.world.store.schedules.declare([NIGHTLY])
    (listed,) = (await served.client.get("/v1/schedules")).json()["items"]
    assert (listed["name"], listed["paused"], listed["next_fire"] is None) == ("reports/nightly", False, False)
    paused = (await served.client.post("/v1/schedules/reports/nightly/pause")).json()
    assert (paused["paused"], paused["next_fire"]) == (True, None)
    assert (await served.client.get("/v1/schedules/reports/nightly")).json() == paused
    resumed = (await served.client.post("/v1/schedules/reports/nightly/resume")).json()
    assert (resumed["paused"], resumed["next_fire"]) == (False, listed["next_fire"])


async def test_what_is_not_there_cannot_be_paused(served: Served) -> None:
    """A mistyped name must not look like a paused schedule."""
    for path in ("nothing/pause", "nothing/resume"):
        assert (await served.client.post(f"/v1/schedules/{path}")).status_code == 404
    assert (await served.client.get("/v1/schedules/nothing")).status_code == 404
    assert (await served.client.get("/v1/schedules")).json() == {"items": [], "next": None}


async def test_only_operators_pause(served_with_keys: Served) -> None:
    """A schedule submits jobs for all tenants."""
    await served_with_keys.service.world.store.schedules.declare([NIGHTLY])
    async with served_with_keys.with_key((await key_for(served_with_keys)).text) as tenant:
        assert (await tenant.get("/v1/schedules")).status_code == 403
        assert (await tenant.post("/v1/schedules/reports/nightly/pause")).status_code == 403
    (row,) = await served_with_keys.service.world.store.schedules.all()
    assert row.paused is False
