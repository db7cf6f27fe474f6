"""The history over HTTP: what happened, for operators, and for tenants their own part."""

from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served

from leaseway.ports.store import require_history
from leaseway.testing.history_contract import history_row


async def test_a_range_is_shown_with_its_kinds(served: Served) -> None:
    """Since when a kind fails is the first question at night."""
    await require_history(served.service.world.store).record([history_row(1), history_row(2, kind="resize")])
    shown = (await served.client.get("/v1/history", params={"range": "15m", "kind": "send"})).json()
    assert shown["step_seconds"] == 60
    (kind,) = shown["kinds"]
    assert (kind["kind"], kind["started"], kind["done"], kind["failed_share"]) == ("send", 3, 2, 0.0)
    assert kind["run_seconds"]["p50"] is not None
    assert [point["done"] for point in shown["points"]] == [2]
    refused = await served.client.get("/v1/history", params={"range": "1y"})
    assert (refused.status_code, "between 15m and 30d" in refused.text) == (422, True)


async def test_a_tenant_sees_its_own_history_only(served_with_keys: Served) -> None:
    """Kinds, queues and volumes of a competitor are confidential."""
    history = require_history(served_with_keys.service.world.store)
    await history.record([history_row(1), history_row(2, tenant="globex", kind="secret")])
    async with served_with_keys.with_key((await key_for(served_with_keys)).text) as acme:
        shown = await acme.get("/v1/history")
        assert [kind["kind"] for kind in shown.json()["kinds"]] == ["send"]
        other = await acme.get("/v1/history", params={"tenant": "globex"})
        assert "secret" not in other.text
    async with served_with_keys.with_key((await operator_of(served_with_keys)).text) as operator:
        assert len((await operator.get("/v1/history")).json()["kinds"]) == 2
