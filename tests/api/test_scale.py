"""/v1/scale: what an orchestrator asks before it starts or ends workers."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.api.every_store import store_url as store_url
from tests.api.keys import key_for, operator_of
from tests.api.running_service import Served, run_service
from tests.api.test_health import take_away

from leaseway import App, Limit
from leaseway.api import system_snapshot
from leaseway.domain.errors import BadValue
from leaseway.scaling.pools import parse_pool, parse_pools


async def test_a_backlog_wants_workers_and_the_answer_says_why(served: Served) -> None:
    """The number is for the orchestrator, the reason for the person who wonders about it."""
    for _ in range(3):
        await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})
    answer = await served.client.get("/v1/scale/default")
    shown = answer.json()
    assert (answer.status_code, shown["desired_workers"], shown["cause"]) == (200, 1, "demand")
    assert (shown["ready"], shown["running"], shown["queues"]) == (3, 0, ["default"])
    assert shown["reason"].endswith("1 worker suffices")
    assert shown["observed_at"].endswith("Z")


async def test_a_limit_bounds_the_answer(store_url: str) -> None:
    """An orchestrator that scales on the backlog would start fifty workers, which wait for the same permit."""
    app = App(store_url)

    @app.job(limits=[Limit("maps", "60/minute", burst=0)])
    async def fetch(n: int) -> None: ...

    pool = parse_pool("maps:queues=default,slots=2,max=50")
    async with run_service(app, pools=(pool,)) as served:
        await served.client.put("/v1/limits/maps", json={"rates": ["60/minute"]})
        await fetch.submit_many([{"n": n} for n in range(1_000)])
        shown = (await served.client.get("/v1/scale/maps")).json()
    assert (shown["desired_workers"], shown["cause"]) == (1, "limit")
    assert [(bound["what"], bound["name"], bound["at_once"]) for bound in shown["bounds"]] == [("limit", "maps", None)]
    assert shown["reason"].startswith("limit maps binds: ")


async def test_an_unknown_pool_is_refused_with_the_known_ones(served: Served) -> None:
    """A typing error in a manifest must not read as a pool that needs no workers."""
    answer = await served.client.get("/v1/scale/defualt")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["detail"] == "there is no pool 'defualt'; pools: default"


async def test_only_operators_see_a_pool(served_with_keys: Served) -> None:
    """The load of a pool is that of all tenants."""
    served = served_with_keys
    async with served.with_key((await key_for(served, "acme")).text) as client:
        assert (await client.get("/v1/scale/default")).status_code == 403
    async with served.with_key((await operator_of(served)).text) as client:
        assert (await client.get("/v1/scale/default")).status_code == 200
    assert (await served.client.get("/v1/scale/default")).status_code == 401


async def test_a_store_that_is_away_is_not_an_empty_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last answer is repeated for a minute; then the answer is 503, and the orchestrator keeps its workers."""
    monkeypatch.setattr(system_snapshot, "TTL_SECONDS", 0.0)
    db = tmp_path / "work.db"
    app = App(f"sqlite:///{db}", limits=f"sqlite:///{tmp_path / 'limits.db'}")

    @app.job
    async def work(n: int) -> None: ...

    async with run_service(app, pools=(parse_pool("default:min=1,max=5"), parse_pool("other:max=5"))) as served:
        await work.submit(n=1)
        before = (await served.client.get("/v1/scale/default")).json()
        await take_away(served.service.world.store, db)
        after = await served.client.get("/v1/scale/default")
        assert (after.status_code, after.json()) == (200, before), "the last answer is a moment old"
        never = await served.client.get("/v1/scale/other")
        assert (never.status_code, never.json()["code"]) == (503, "unavailable")
        db.rmdir()


async def test_prometheus_gets_the_same_number(served: Served) -> None:
    """An adapter for metrics needs no other route."""
    await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})
    text = (await served.client.get("/metrics")).text
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    (desired,) = families["leaseway_pool_desired_workers"]
    assert (desired.labels, desired.value) == ({"pool": "default"}, 1)
    (cause,) = families["leaseway_pool_cause"]
    assert cause.labels == {"pool": "default", "cause": "demand"}


async def test_a_restarted_service_does_not_end_busy_workers(app: App) -> None:
    """It does not know how many workers run. A first answer that grows from zero would end most of them."""
    async with app:
        jobs = [app.bind("add", {"a": n}) for n in range(400)]
        await app.submit_many(jobs)
    async with run_service(app, pools=(parse_pool("default:slots=1,max=50"),)) as served:
        shown = (await served.client.get("/v1/scale/default")).json()
    assert shown["desired_workers"] == 50


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mail:queues=a+b,min=3,max=2", "pool mail: min: must not exceed max (is 3, max is 2)"),
        ("mail:slots=0", "pool mail: slots: must be between 1 and 10,000 (is 0)"),
        ("mail:queues=", "pool mail: queues: must be 1 to 200 printable characters"),
        ("mail", "pool mail: cannot read ''"),
        (":max=2", "pool: must be 1 to 200 printable characters"),
        ("mail:many=2", "pool mail: cannot read 'many=2'"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_by_name(text: str, problem: str) -> None:
    """The service says so when it starts, not when the first orchestrator asks."""
    with pytest.raises(BadValue) as refused:
        parse_pool(text)
    assert str(refused.value).startswith(problem)


def test_two_pools_need_two_names() -> None:
    """The second one would hide the first."""
    with pytest.raises(BadValue, match="must have different names"):
        parse_pools(["a:max=1", "a:max=2"], ())


async def test_the_pools_are_listed_with_what_was_decided(served_with_keys: Served) -> None:
    """The last decisions explain the size of a fleet, and only operators may see the load of all tenants."""
    served = served_with_keys
    async with served.with_key((await operator_of(served)).text) as client:
        assert (await client.get("/v1/scale")).json()["items"] == []
        await client.get("/v1/scale/default")
        (pool,) = (await client.get("/v1/scale")).json()["items"]
    assert (pool["pool"], pool["queues"], pool["desired_workers"]) == ("service:default", ["default"], 0)
    assert [fleet["name"] for fleet in pool["fleets"]] == ["orchestrator"]
    assert pool["decisions"][0]["reason"] == pool["reason"] == "no work; 0 workers suffice"
    async with served.with_key((await key_for(served, "acme")).text) as client:
        assert (await client.get("/v1/scale")).status_code == 403
