"""Budgets over HTTP: how operators read and change them."""

import asyncio
from typing import Any

from tests.api.keys import key_for
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.domain.budgets.budget import MICRO, Charge, HoldDenied, HoldGranted
from leaseway.domain.ids import SECOND_US

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


async def test_a_budget_with_open_holds_is_not_forgotten(served: Served) -> None:
    """A call is about to be charged, so its budget must still exist."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    await served.service.world.ledger.hold("call-1", [(Charge("spend", "spend"), MICRO)], 60 * SECOND_US)
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


async def test_a_budget_is_paused_and_resumed(served: Served) -> None:
    """A paused budget must not spend, and a change of its amounts must not resume it."""
    await served.client.put("/v1/budgets/spend", json=SPEND)
    paused = await served.client.post("/v1/budgets/spend/pause")
    assert (paused.status_code, paused.json()["paused"], paused.headers["etag"]) == (200, True, '"2"')
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
