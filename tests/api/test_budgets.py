"""Budgets over HTTP: how operators read and change them."""

import asyncio
from datetime import datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace
from tests.api.every_store import store_url as store_url
from tests.api.keys import bearer, key_for, operator_of
from tests.api.running_service import Served, run_service
from tests.worker.observe import close_lanes, count_closed, eventually, working

from leaseway import App, Budget, Context, State
from leaseway.api import service
from leaseway.domain.budgets.budget import MICRO, Charge, HoldBooked, HoldDenied, HoldGranted
from leaseway.domain.budgets.rebooking import hold_id
from leaseway.domain.identity import Role
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.inspection import CancelResult
from leaseway.ports.ledger import Ledger
from leaseway.worker.definitions import cancel_job
from leaseway.worker.maintenance import bring_forward

ZURICH = ZoneInfo("Europe/Zurich")
SPEND: dict[str, Any] = {"unit": "usd", "limit": 25, "every": "day", "tz": "Europe/Zurich"}


async def spend(served: Served, micros: int) -> None:
    ledger = served.service.world.ledger
    await ledger.hold("call-1", [(Charge("spend", "spend"), 2 * micros)], 60 * SECOND_US, dispatch=True)
    await ledger.settle("call-1", {"usd": micros})


async def test_a_budget_is_defined_shown_changed_and_forgotten(served: Served) -> None:
    """The main path must work, and amounts must stay exact in every notation."""
    made = await served.client.put("/v1/budgets/spend", json=SPEND)
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    shown = await served.client.get("/v1/budgets/spend")
    assert (shown.json()["limit"], shown.json()["unit"], shown.headers["etag"]) == ("25", "usd", '"1"')
    changed = await served.client.put("/v1/budgets/spend", json={**shown.json()["definition"], "limit": "0.1"})
    assert (changed.status_code, changed.json()["definition"]["limit"]) == (200, "0.1")
    assert (await served.client.delete("/v1/budgets/spend")).status_code == 204
    assert (await served.client.get("/v1/budgets/spend")).status_code == 404
    assert (await served.client.delete("/v1/budgets/spend")).status_code == 404


async def test_windows_say_what_is_spent_and_how_fast_it_burns(served: Served) -> None:
    """The dashboard draws a burn-down chart against the elapsed time of the window."""
    await served.client.put("/v1/budgets/spend", json={"unit": "usd", "limit": 25, "every": "month"})
    await spend(served, 5 * MICRO)
    (budget,) = (await served.client.get("/v1/budgets")).json()["items"]
    (window,) = budget["windows"]
    assert (window["spent"], window["held"], window["left"], window["limit"]) == ("5", "0", "20", "25")
    assert (window["burn"]["spent_percent"], window["burn"]["held_percent"]) == (20.0, 0.0)
    assert 0 <= window["burn"]["passed_percent"] <= 100


async def test_a_budget_in_total_does_not_burn_by_time(served: Served) -> None:
    """The window of a total budget has no end, so a burn rate would be meaningless."""
    await served.client.put("/v1/budgets/spend", json={"unit": "usd", "limit": 25})
    await spend(served, MICRO)
    ((window,),) = [item["windows"] for item in (await served.client.get("/v1/budgets")).json()["items"]]
    assert (window["spent"], window["burn"]) == ("1", None)


async def test_the_journal_tells_what_was_booked(served: Served) -> None:
    """The journal is the evidence when the provider's bill differs."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    assert (await served.client.get("/v1/budgets/spend/journal")).json() == {"items": [], "next": None}
    await spend(served, MICRO)
    entries = (await served.client.get("/v1/budgets/spend/journal")).json()["items"]
    assert entries[0]["spent"] == "1"
    assert (await served.client.get("/v1/budgets/nothing/journal")).status_code == 404


async def test_a_captured_hold_is_corrected_under_the_name_of_the_credential(served: Served) -> None:
    """The provider's usage report says what a call has cost whose worker died. The journal must name who changed the
    amount, and a client must not be able to sign with another name."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    ledger = served.service.world.ledger
    await ledger.hold("call-1", [(Charge("spend", "spend"), 5 * MICRO)], 1, dispatch=True)
    await ledger.expire(10)
    (found,) = (await served.client.get("/v1/budgets/spend/holds")).json()["items"]
    assert (found["hold"], found["state"], found["lines"][0]["charged"]) == ("call-1", "captured", "5")
    correction = {"hold": "call-1", "amounts": {"usd": "0.5"}, "reason": "usage report"}
    for _ in range(2):
        answer = await served.client.post("/v1/budgets/settle", json=correction)
        assert answer.status_code == 200
    assert [(each["before"], each["after"]) for each in answer.json()["corrections"]] == [("5", "0.5")]
    entry = (await served.client.get("/v1/budgets/spend/journal")).json()["items"][0]
    who = answer.json()["by"]
    assert (entry["kind"], entry["by"], entry["reason"], entry["before"]) == ("correct", who, "usage report", "5")
    assert who
    assert (await served.client.get("/v1/budgets/spend/holds")).json()["items"] == []
    assert (await served.client.get("/v1/budgets/nothing/holds")).status_code == 404
    for body, pointer in (
        ({**correction, "amounts": {"usd": 1}}, "/hold"),
        ({**correction, "hold": "call-2"}, "/hold"),
        ({**correction, "amounts": {"eur": 1}}, "/amounts"),
        ({**correction, "amounts": {"usd": -1}}, "/amounts"),
        ({**correction, "amounts": {}}, "/amounts"),
        ({**correction, "reason": "a\x1bb"}, "/reason"),
        ({**correction, "by": "bob"}, ""),
    ):
        refused = await served.client.post("/v1/budgets/settle", json=body)
        assert (refused.status_code, [each["pointer"] for each in refused.json()["errors"]]) == (422, [pointer]), body
        named = pointer.removeprefix("/") or "the body"
        assert refused.json()["detail"].count(f"{named}: ") < 2, "the field is named twice"


async def test_a_worker_over_http_cannot_correct_and_an_operator_cannot_sign_for_another() -> None:
    """The same verb is part of the worker protocol, which the command line uses."""
    async with run_service(App("memory://"), auth=True) as served:
        ledger = served.service.world.ledger
        operator, worker = await operator_of(served), await key_for(served, "*", Role.WORKER)
        await ledger.definitions.declare([Budget("spend", usd=25).definition])
        await ledger.hold("call-1", [(Charge("spend", "spend"), MICRO)], 1, dispatch=True)
        await ledger.expire(10)
        body = {"id": "call-1", "actuals": {"usd": 0}, "evidence": {"by": "somebody", "reason": ""}}
        refused = await served.client.post("/v1/work/budgets/correct", json=body, headers=bearer(worker))
        assert refused.status_code == 403
        made = await served.client.post("/v1/work/budgets/correct", json=body, headers=bearer(operator))
        assert made.status_code == 200
        (entry, *_) = await ledger.reads.journal("spend")
        assert (entry.kind, entry.by) == ("correct", operator.key.id)


async def test_a_budget_with_calls_under_way_is_not_forgotten(served: Served) -> None:
    """A call is about to be charged, so its budget must still exist."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    lines = [(Charge("spend", "spend"), MICRO)]
    await served.service.world.ledger.hold("call-1", lines, 60 * SECOND_US, dispatch=True)
    answer = await served.client.delete("/v1/budgets/spend")
    assert (answer.status_code, answer.json()["code"]) == (409, "held")


async def test_a_change_of_what_was_changed_meanwhile_is_refused(served: Served) -> None:
    """When two operators edit the same form, the second must not silently overwrite the first one's change."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 30})
    answer = await served.client.put("/v1/budgets/spend", json=SPEND, headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.json()["code"]) == (412, "stale")
    assert (await served.client.delete("/v1/budgets/spend", headers={"If-Match": '"1"'})).status_code == 412
    assert (await served.client.get("/v1/budgets/spend")).json()["limit"] == "30"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"unit": "usd"}, ""),
    ({**SPEND, "limit": 0}, "/limit"),
    ({**SPEND, "limit": "a lot"}, "/limit"),
    ({**SPEND, "limit": 1e300}, "/limit"),
    ({**SPEND, "limit": True}, "/limit"),
    ({**SPEND, "limit": "0.0000001"}, "/limit"),
    ({**SPEND, "overdraft": -1}, "/overdraft"),
    ({**SPEND, "every": "year"}, "/every"),
    ({**SPEND, "over": "panic"}, "/over"),
    ({**SPEND, "tz": "Mars/Olympus"}, "/tz"),
    ({**SPEND, "tz": "../../etc/passwd"}, "/tz"),
    ({**SPEND, "unit": "xyz"}, "/unit"),
    ({**SPEND, "unit": "A unit"}, "/unit"),
    ({**SPEND, "spent": 0}, ""),
]


async def test_bad_input_is_pointed_at(served: Served) -> None:
    """The client must learn which field is invalid, and no part of an invalid definition may take effect."""
    for body, pointer in BAD:
        answer = await served.client.put("/v1/budgets/spend", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), body
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer], body
    assert (await served.client.get("/v1/budgets")).json()["items"] == []


async def test_dollars_do_not_become_tokens(served: Served) -> None:
    """A changed unit would turn 25 dollars into 25 of something else."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    answer = await served.client.put("/v1/budgets/spend", json={**SPEND, "unit": "tokens"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/unit")


async def test_only_operators_see_and_change_budgets(served_with_keys: Served) -> None:
    """Budgets are shared by all tenants, and their names may reveal other tenants."""
    async with served_with_keys.with_key((await key_for(served_with_keys)).text) as tenant:
        for method, path in (("GET", ""), ("GET", "/spend"), ("GET", "/spend/journal"), ("DELETE", "/spend")):
            assert (await tenant.request(method, f"/v1/budgets{path}")).status_code == 403
        assert (await tenant.put("/v1/budgets/spend", json=SPEND)).status_code == 403
        for verb in ("rebook", "pause", "resume"):
            assert (await tenant.post(f"/v1/budgets/spend/{verb}")).status_code == 403
        assert (await tenant.post("/v1/budgets/settle", json=CORRECTIONS["/v1/budgets/settle"])).status_code == 403


async def test_a_budget_is_paused_and_resumed(served: Served) -> None:
    """A paused budget must not spend, and a change of its amounts must not resume it."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    paused = await served.client.post("/v1/budgets/spend/pause")
    assert (paused.status_code, paused.json()["paused"], paused.headers["etag"]) == (200, True, '"2"')
    again = await served.client.post("/v1/budgets/spend/pause")
    assert (again.json()["paused"], again.headers["etag"]) == (True, '"2"'), "nothing was changed"
    stale = await served.client.post("/v1/budgets/spend/pause", headers={"If-Match": '"1"'})
    assert stale.status_code == 412, "the caller has not seen that it is paused"
    lines = [(Charge("spend", "spend"), MICRO)]
    assert isinstance(await served.service.world.ledger.hold("call-1", lines, 60 * SECOND_US), HoldDenied)
    changed = await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 30})
    assert (changed.json()["paused"], changed.json()["version"]) == (True, 3)
    assert (await served.client.get("/v1/budgets/spend")).json()["paused"] is True
    stale = await served.client.post("/v1/budgets/spend/resume", headers={"If-Match": '"2"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale")
    assert (await served.client.post("/v1/budgets/spend/resume")).json()["paused"] is False
    assert isinstance(await served.service.world.ledger.hold("call-1", lines, 60 * SECOND_US), HoldGranted)
    assert (await served.client.post("/v1/budgets/nothing/pause")).status_code == 404


async def test_of_changes_through_two_processes_to_one_version_one_wins(served: Served) -> None:
    """Behind a load balancer, each change may reach another process, so the store must compare the versions."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    async with run_service(App(served.app.url)) as other:
        headers, clients = {"If-Match": '"1"'}, (served.client, other.client)
        await asyncio.gather(*(client.get("/v1/budgets") for client in clients for _ in range(8)))
        answers = await asyncio.gather(
            *(
                clients[n % 2].put("/v1/budgets/spend", json={**SPEND, "limit": n}, headers=headers)
                for n in range(1, 17)
            )
        )
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 15


async def waiting_job(served: Served, ttl_us: int = 60 * SECOND_US, tenant: str = "default") -> str:
    """A job that waits for tomorrow, because its budget is used up today."""

    @served.app.job(budget=Budget("spend", usd=2), cost_usd=2)
    async def call(ctx: Context) -> None: ...

    tomorrow = datetime.now(ZURICH).date() + timedelta(days=1)
    job = (await call.options(run_at=datetime.combine(tomorrow, time(), ZURICH), tenant=tenant).submit()).id
    ledger, line = served.service.world.ledger, [(Charge("spend", "spend"), 2 * MICRO)]
    await ledger.hold("call-1", line, ttl_us, dispatch=True)
    assert isinstance(await ledger.hold(hold_id(tenant, job, 1, 1), line, 60 * SECOND_US), HoldBooked)
    return job


async def is_ready(served: Served, job: str) -> bool:
    return bool((await served.client.get(f"/v1/jobs/{job}/why")).json()["code"] == "ready")


async def test_raising_a_budget_brings_forward_the_jobs_that_wait_for_it(served: Served) -> None:
    """56 jobs waited for two days although the raised budget had room, and no request brought them forward."""
    await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 2})
    job = await waiting_job(served)
    told = (await served.client.get(f"/v1/jobs/{job}/why")).json()
    assert (told["code"], "It waits for budget spend" in told["text"]) == ("budget", True)
    rebooked = await served.client.post("/v1/budgets/spend/rebook")
    assert rebooked.json() == {"name": "spend", "brought_forward": 0}
    raised = await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 4})
    assert raised.json()["brought_forward"] == 1
    assert await is_ready(served, job)
    assert (await served.client.post("/v1/budgets/spend/rebook")).json()["brought_forward"] == 0
    assert (await served.client.post("/v1/budgets/unknown/rebook")).status_code == 404


async def test_the_budget_of_one_tenant_is_shown_and_rebooked_by_its_own_name(served: Served) -> None:
    """`why` and the list of windows name the budget of the tenant, which has no definition of its own."""
    await served.client.put("/v1/budgets/spend:{tenant}", json=SPEND)
    assert (await served.client.post("/v1/budgets/spend:acme/rebook")).status_code == 404
    line = [(Charge("spend:acme", "spend:{tenant}"), MICRO)]
    await served.service.world.ledger.hold("call-1", line, 60 * SECOND_US, dispatch=True)
    shown = (await served.client.get("/v1/budgets/spend:acme")).json()
    assert (shown["name"], shown["budget"], shown["windows"][0]["held"]) == ("spend:acme", "spend:{tenant}", "1")
    rebooked = await served.client.post("/v1/budgets/spend:acme/rebook")
    assert rebooked.json() == {"name": "spend:acme", "brought_forward": 0}


async def test_the_windows_of_one_tenant_are_shown_without_those_of_others(served: Served) -> None:
    """An operator who asks for the budget of one tenant would take the spending of another one for its own."""
    await served.client.put("/v1/budgets/spend:{tenant}", json=SPEND)
    for tenant, micros in (("acme", MICRO), ("bolt", 2 * MICRO)):
        line = [(Charge(f"spend:{tenant}", "spend:{tenant}"), micros)]
        await served.service.world.ledger.hold(f"call of {tenant}", line, 60 * SECOND_US, dispatch=True)
    for name, held in (("spend:acme", ["1"]), ("spend:bolt", ["2"]), ("spend:{tenant}", ["1", "2"])):
        windows = (await served.client.get(f"/v1/budgets/{name}")).json()["windows"]
        assert sorted(window["held"] for window in windows) == held


async def test_a_pause_opens_no_lane(served: Served) -> None:
    """Workers would claim the jobs of a paused budget, be refused, and close the lanes again."""
    await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 2})
    await waiting_job(served)
    store = served.service.world.store
    assert await close_lanes(store) == 1
    await served.client.post("/v1/budgets/spend/pause")
    assert await count_closed(store) == 1
    await served.client.post("/v1/budgets/spend/resume")
    assert await count_closed(store) == 0


async def test_a_budget_is_not_changed_while_it_is_forgotten(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change between the check of the version and the removal would be lost, although both requests succeed."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    definitions = served.service.world.ledger.definitions
    forget, has_begun, may_end = definitions.forget, asyncio.Event(), asyncio.Event()

    async def slow_forget(name: str) -> bool:
        has_begun.set()
        await may_end.wait()
        return await forget(name)

    monkeypatch.setattr(definitions, "forget", slow_forget)
    async with asyncio.TaskGroup() as group:
        deleted = group.create_task(served.client.delete("/v1/budgets/spend", headers={"If-Match": '"1"'}))
        await has_begun.wait()
        changed = group.create_task(served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 30}))
        for _ in range(5):  # the change could overtake it in the meantime
            assert (await served.client.get("/v1/budgets/spend")).json()["limit"] == "25"
        may_end.set()
    assert (deleted.result().status_code, changed.result().status_code) == (204, 201)


async def test_what_makes_room_without_a_request_is_used_by_the_next_one(served: Served) -> None:
    """`rebook` and `resume` bring forward what fits by then, and a corrected hold does so by itself."""
    definitions = served.service.world.ledger.definitions
    for verb in ("rebook", "resume"):
        await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 2})
        job = await waiting_job(served)
        await served.client.post(f"/v1/budgets/spend/{'pause' if verb == 'resume' else 'rebook'}")
        ((before, _),) = await definitions.all()
        await definitions.change(replace(before, limit_micros=4 * MICRO))
        assert (await served.client.post(f"/v1/budgets/spend/{verb}")).json()["brought_forward"] == 1
        assert await is_ready(served, job)
        await served.service.world.ledger.settle("call-1", {"usd": 0})
        await served.client.post(f"/v1/jobs/{job}/cancel")
        assert (await served.client.delete("/v1/budgets/spend")).status_code == 204
        served.app.kinds.clear()


CORRECTIONS: dict[str, dict[str, Any]] = {
    "/v1/budgets/settle": {"hold": "call-1", "amounts": {"usd": 0}, "reason": "the bill says so"},
    "/v1/work/budgets/correct": {"id": "call-1", "actuals": {"usd": 0}, "evidence": {"by": "somebody", "reason": ""}},
}


@pytest.mark.parametrize("route", CORRECTIONS)
async def test_a_corrected_hold_brings_forward_the_jobs_that_fit_now(served: Served, route: str) -> None:
    """The money that a call did not cost must not stay unused until tomorrow, whichever route corrects it."""
    await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 2})
    job, ledger = await waiting_job(served, 1), served.service.world.ledger
    await eventually(lambda: has_captured(ledger))
    assert (await served.client.post(route, json=CORRECTIONS[route])).status_code == 200
    assert await is_ready(served, job)


async def has_captured(ledger: Ledger) -> bool:
    return bool((await ledger.expire(10)).captured)


async def test_forgetting_a_budget_brings_forward_the_jobs_that_wait_for_it(served: Served) -> None:
    """There is no window any more for which they could wait."""
    await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 2})
    job = await waiting_job(served)
    await served.service.world.ledger.settle("call-1", {})
    assert (await served.client.delete("/v1/budgets/spend")).status_code == 204
    stored = await served.service.world.store.reads.job(JobId(job))
    assert stored is not None
    assert stored.run_at <= await served.service.world.store.reads.now()


@pytest.mark.parametrize("route", ["/v1/jobs/{job}/cancel", "/v1/jobs/cancel", "/v1/work/jobs/cancel"])
async def test_a_cancelled_job_releases_what_is_booked_for_it(served: Served, route: str) -> None:
    """The amount is free for another job at once, whichever route cancels the job."""
    await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 2})
    job = await waiting_job(served)
    bodies: dict[str, Any] = {"/v1/jobs/cancel": {"ids": [job]}, "/v1/work/jobs/cancel": {"job": job}}
    assert (await served.client.post(route.format(job=job), json=bodies.get(route))).status_code == 200
    windows = (await served.client.get("/v1/budgets/spend")).json()["windows"]
    assert [window["held"] for window in windows] == ["2", "0"]


async def test_a_tenant_cancels_its_job_through_a_store_over_http() -> None:
    """Its key may not read budgets; the service has released what is booked. An error after the job was cancelled would
    look as if it were not."""
    async with run_service(App("memory://"), auth=True) as served:
        world, key = served.service.world, await key_for(served)
        await world.ledger.definitions.declare([Budget("spend", usd=2, every="day").definition])
        job = await waiting_job(served, tenant="acme")
        async with App(served.url, key=key.text) as client:
            store = await client.store()
            assert await cancel_job(store, client.world.ledger, JobId(job)) is CancelResult.CANCELLED
        assert await world.ledger.reads.booked("spend") == []


async def test_a_worker_over_http_leaves_bringing_forward_to_the_service() -> None:
    """Its key does not show it the holds of other jobs. An error would end its maintenance, which deletes old jobs."""
    async with run_service(App("memory://"), auth=True) as served:
        await served.service.world.ledger.definitions.declare([Budget("spend", usd=2, every="day").definition])
        worker = await key_for(served, "acme", Role.WORKER)
        async with App(served.url, key=worker.text) as client:
            await client.store()
            await bring_forward(client.world)


async def test_why_says_that_a_worker_has_closed_the_lane(served: Served) -> None:
    """The limiter and the ledger may have room again; the worker tries the lane later."""

    @served.app.job(budget=Budget("spend", usd=2), cost_usd=2)
    async def call(ctx: Context) -> None: ...

    await served.client.put("/v1/budgets/spend", json=SPEND)
    job = (await call.submit()).id
    assert await close_lanes(served.service.world.store) == 1
    told = (await served.client.get(f"/v1/jobs/{job}/why")).json()
    assert (told["code"], "a worker found it closed (used up)" in told["text"]) == ("lane", True)


async def test_why_shows_sessions_of_the_database_to_operators_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that was left open keeps a job from being claimed. Whose it is, is not for tenants."""

    async def locked_by(job: JobId) -> str:
        return "psql, process 7"

    async with run_service(App("memory://"), auth=True) as served:

        @served.app.job
        async def call() -> None: ...

        job = (await call.options(tenant="acme").submit()).id
        monkeypatch.setattr(served.service.world.store.reads, "locked_by", locked_by)
        told = {}
        for who, key in (("operator", await operator_of(served)), ("tenant", await key_for(served))):
            told[who] = (await served.client.get(f"/v1/jobs/{job}/why", headers=bearer(key))).json()
        assert (told["operator"]["code"], "psql, process 7" in told["operator"]["text"]) == ("session", True)
        assert told["tenant"]["code"] == "ready"


async def test_a_raised_budget_opens_the_lanes_that_a_worker_over_http_had_closed() -> None:
    """The worker had closed the lane for a minute. It does not know of the change, but the service does."""
    async with run_service(App("memory://")) as served, App(served.url) as app:

        @app.job(budget=Budget("spend", usd=1, every="day"), cost_usd=1)
        async def spend(ctx: Context) -> None:
            async with ctx.call():
                pass

        async with working(app, poll_seconds=60.0):
            await app.wait(await spend.submit(), 60)
            waiting = await spend.submit()
            await eventually(lambda: count_closed(app.world.store))
            async with asyncio.timeout(OPENS_SECONDS):
                raised = {"unit": "usd", "limit": 2, "every": "day"}
                assert (await served.client.put("/v1/budgets/spend", json=raised)).status_code == 200
                assert (await app.wait(waiting)).state is State.DONE


OPENS_SECONDS = 40.0
"""Much longer than a lane takes to open on any machine, and shorter than its closure, which lasts a minute."""


async def test_the_service_brings_jobs_forward_for_workers_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such workers do not see the holds of other jobs. If all workers of a deployment are over HTTP, jobs would wait
    for tomorrow although calls had cost less than was held for them."""
    monkeypatch.setattr(service, "EXPIRE_EVERY_SECONDS", 0.01)
    async with run_service(App("memory://")) as served:
        await served.client.put("/v1/budgets/spend", json={**SPEND, "limit": 2})
        job = await waiting_job(served)
        await served.service.world.ledger.settle("call-1", {"usd": 0})
        await eventually(lambda: is_ready(served, job))
