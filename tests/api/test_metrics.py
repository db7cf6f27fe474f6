"""Metrics as JSON for the dashboard and as text for Prometheus."""

import asyncio
import time
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.api.keys import key_for, operator_of
from tests.api.live_clients import by_socket
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.api.metrics import (
    NO_ROUTE,
    OTHERS,
    SETTLEMENTS,
    SUBMISSIONS,
    OutcomeCounters,
    Sample,
    count_outcomes,
    gauge,
    render_text,
)
from leaseway.api.routes.metrics import job_families
from leaseway.api.system_snapshot import QUEUES_MAX, LaneReadings, SystemSnapshot, summarize
from leaseway.domain.errors import StoreBusy
from leaseway.domain.ids import SECOND_US
from leaseway.domain.inspection import LaneWait
from leaseway.domain.lane import LaneCount
from leaseway.stores.memory.reads import MemoryInspection
from leaseway.stores.memory.store import MemoryStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, new_job


async def submit(served: Served, **more: object) -> None:
    answer = await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}, **more})
    assert answer.status_code == 202


async def test_metrics_tell_how_everything_is_doing(served: Served) -> None:
    """Operators need jobs by state, the oldest pending job, the throughput of the last minute, limits and budgets."""
    await submit(served)
    await served.client.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": "x"}})
    await served.settle()
    await submit(served)
    await submit(served, delay_seconds=600)
    await served.client.put("/v1/limits/maps", json={"rates": ["100/minute"]})
    await served.client.put("/v1/budgets/spend", json={"unit": "usd", "limit": 25, "every": "day"})
    shown = (await served.client.get("/v1/metrics")).json()
    counted = {
        name: shown[name] for name in ("pending", "ready", "scheduled", "running", "done", "failed", "cancelled")
    }
    assert counted == {
        "pending": 2, "ready": 1, "scheduled": 1, "running": 0, "done": 1, "failed": 1, "cancelled": 0,
    }  # fmt: skip
    assert shown["oldest_ready_seconds"] >= 0
    throughput = shown["throughput"]
    assert (throughput["done"], throughput["failed"]) == (1, 1)
    assert throughput["per_second"] == round(2 / throughput["window_seconds"], 3)
    assert [limit["name"] for limit in shown["limits"]] == ["maps"]
    assert [(budget["name"], budget["unit"], budget["left"]) for budget in shown["budgets"]] == [("spend", "usd", "25")]
    assert shown["workers"] == {"count": 0, "lost": 0, "leased": 0, "expired": 0}


async def test_tenants_see_their_own_numbers(served_with_keys: Served) -> None:
    """Numbers of other tenants and of shared limits are confidential."""
    served = served_with_keys
    for tenant in ("acme", "other"):
        async with served.with_key((await key_for(served, tenant)).text) as client:
            await client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}})
    async with served.with_key((await key_for(served, "acme")).text) as client:
        shown = (await client.get("/v1/metrics")).json()
        assert (shown["tenant"], shown["ready"]) == ("acme", 1)
        assert not {"limits", "budgets", "workers"} & set(shown)
        assert (await client.get("/v1/metrics", params={"tenant": "other"})).status_code == 403
        assert (await client.get("/metrics")).status_code == 403
    async with served.with_key((await operator_of(served)).text) as client:
        assert (await client.get("/v1/metrics")).json()["ready"] == 2
        assert (await client.get("/v1/metrics", params={"tenant": "other"})).json()["ready"] == 1
        assert (await client.get("/metrics")).status_code == 200


async def scraped(served: Served, accept: str = "text/plain") -> dict[str, Metric]:
    """The metrics as parsed by the Prometheus client library."""
    answer = await served.client.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {name for name in families if not name.startswith("leaseway_")} == set()
    assert {family.type for family in families.values()} <= {"counter", "gauge", "histogram"}
    return families


def value_of(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The value of the one sample with exactly these labels."""
    family = next(family for family in families.values() if any(sample.name == name for sample in family.samples))
    (value,) = [sample.value for sample in family.samples if (sample.name, sample.labels) == (name, labels)]
    return float(value)


async def test_prometheus_can_read_it(served: Served) -> None:
    """The Prometheus parser must accept the text: every family has a type and a help text, and counters start
    at zero.
    """
    await submit(served, queue='qu"e\\ue')
    families = await scraped(served)
    assert [name for name, family in families.items() if not family.documentation or family.type == "unknown"] == []
    assert value_of(families, "leaseway_jobs", queue='qu"e\\ue', state="ready") == 1
    answered = {"method": "POST", "route": "/v1/jobs", "status": "2xx"}
    assert value_of(families, "leaseway_http_requests_total", **answered) == 1
    assert value_of(families, "leaseway_http_requests_total", **{**answered, "status": "5xx"}) == 0
    deleted = {"method": "DELETE", "route": "/v1/jobs/{id}", "status": "5xx"}
    assert value_of(families, "leaseway_http_requests_total", **deleted) == 0
    times = {"method": "POST", "route": "/v1/jobs"}
    assert value_of(families, "leaseway_http_request_seconds_count", **times) == 1
    assert value_of(families, "leaseway_http_request_seconds_bucket", **times, le="+Inf") == 1
    assert value_of(families, "leaseway_http_request_seconds_sum", **times) > 0
    assert value_of(families, "leaseway_store_up") == 1
    assert min(sample.value for family in families.values() for sample in family.samples) >= 0


async def test_paths_that_somebody_makes_up_are_one_series(served: Served) -> None:
    """A scanner that tries ten thousand paths must not make ten thousand series."""
    before = await scraped(served)
    for n in range(5):
        assert (await served.client.get(f"/wp-login-{n}.php")).status_code == 404
        assert (await served.client.get(f"/v1/jobs/{n:026}")).status_code == 404
    after = await scraped(served)
    lost = {"method": "GET", "route": NO_ROUTE, "status": "4xx"}
    assert value_of(after, "leaseway_http_requests_total", **lost) == 5
    known = {"method": "GET", "route": "/v1/jobs/{id}", "status": "4xx"}
    assert value_of(after, "leaseway_http_requests_total", **known) == 5
    name = "leaseway_http_requests"
    assert len(after[name].samples) == len(before[name].samples), "all of them were there from the start"


async def test_requests_that_are_refused_early_are_counted_with_their_route(app: App) -> None:
    """Operators need to see which route a tenant overloads, although the request never reached it."""
    async with run_service(app, auth=True, requests_per_minute=1) as served:
        async with served.with_key((await key_for(served)).text) as client:
            while (await client.get("/v1/jobs")).status_code != 429:
                pass  # a new limit starts full
            for method, path in (("POST", "/v1/jobs"), ("GET", "/v1/lanes"), ("GET", "/v1/invented")):
                assert (await client.request(method, path)).status_code == 429
        counts = served.api.state.requests.counts
    assert [counts[name, "4xx"] for name in (("POST", "/v1/jobs"), ("GET", "/v1/lanes"), ("GET", NO_ROUTE))] == [
        1,
        1,
        1,
    ]


async def test_what_is_submitted_is_counted_by_its_answer(served: Served) -> None:
    """Operators need to tell accepted, repeated and refused jobs of a call apart."""
    job = {"kind": "add", "arguments": {"a": 1}, "key": "k"}
    for _ in range(2):
        await served.client.post("/v1/jobs", json=job)
    await served.client.post("/v1/jobs/bulk", json={"items": [{**job, "key": "l"}, {**job, "arguments": {"a": 2}}]})
    families = await scraped(served)
    counted = {answer: value_of(families, "leaseway_submissions_total", answer=answer) for answer in SUBMISSIONS}
    assert counted == {"accepted": 2, "replayed": 1, "refused": 1, "failed": 0}


async def test_what_workers_take_and_bring_back_over_http_is_counted(served: Served) -> None:
    """Operators need to see lost leases, because each one is work done twice."""
    await submit(served)
    await submit(served)
    wants = {"queues": ["default"], "count": 5, "token": "token-1"}
    reply = await served.client.post("/v1/work/exchange", json={"worker": "w", "wants": wants})
    done, late = (
        {"id": lease["id"], "token": token, "state": "done", "result": "1"}
        for lease, token in zip(reply.json()["leases"], ("token-1", "stale"), strict=True)
    )
    await served.client.post("/v1/work/exchange", json={"worker": "w", "settlements": [done, late]})
    families = await scraped(served)
    assert value_of(families, "leaseway_exchanges_total") == 2
    assert value_of(families, "leaseway_leases_granted_total") == 2
    counted = {state: value_of(families, "leaseway_settlements_total", state=state) for state in SETTLEMENTS}
    assert counted == {"done": 1, "failed": 0, "cancelled": 0, "pending": 0, "lost": 1}


async def test_what_ended_is_counted_for_good_even_if_it_is_discarded(served: Served) -> None:
    """A counter that falls when old jobs are pruned looks like a restart, and makes every rate wrong."""
    ended = "leaseway_jobs_ended_total"
    await submit(served)
    assert value_of(await scraped(served), ended, queue="default", outcome="done") == 0
    await served.settle()
    done = (await served.client.get("/v1/jobs?state=done")).json()["items"]
    await expired(served)
    assert value_of(await scraped(served), ended, queue="default", outcome="done") == 1
    assert (await served.client.delete(f"/v1/jobs/{done[0]['id']}")).status_code == 204
    await served.client.post("/v1/jobs", json={"kind": "broken", "arguments": {"text": "x"}})
    await served.settle()
    await expired(served)
    families = await scraped(served)
    assert value_of(families, ended, queue="default", outcome="done") == 1
    assert value_of(families, ended, queue="default", outcome="failed") == 1
    assert value_of(families, "leaseway_jobs", queue="default", state="done") == 0


async def expired(served: Served) -> None:
    """Expire the cache, so that the next scrape reads the store."""
    served.api.state.snapshots.invalidate("")


async def test_what_ended_while_others_were_pruned_is_counted() -> None:
    """If as many jobs are pruned as end, the number of jobs per lane does not change."""
    clock = FakeClock()
    store, ends = MemoryStore(clock.now_us), OutcomeCounters()
    worker = ContractWorker(store)
    await store.jobs.submit([new_job(1), new_job(2)])
    await worker.settle(done(await worker.claim_one()))
    await ends.update(
        MemoryInspection(store.state), count_outcomes(await store.reads.lanes()), ("default",), await store.reads.now()
    )
    clock.advance(60)
    await worker.settle(done(await worker.claim_one()))
    assert await store.operations.prune(30 * SECOND_US, 10) == 1
    totals = await ends.update(
        MemoryInspection(store.state), count_outcomes(await store.reads.lanes()), ("default",), await store.reads.now()
    )
    assert totals["default", "done"] == 1


async def test_while_the_store_is_away_the_process_tells_of_itself(served: Served) -> None:
    """The metrics are needed most during an outage."""

    async def away() -> object:
        raise StoreBusy("the line is cut")

    served.service.world.store.reads.lanes = away  # type: ignore[method-assign, assignment]
    families = await scraped(served)
    assert value_of(families, "leaseway_store_up") == 0
    assert value_of(families, "leaseway_http_requests_in_progress") == 1
    assert "leaseway_jobs" not in families


async def test_listeners_are_counted_and_why_they_went(served: Served) -> None:
    """Subscribers that are dropped as slow show an overloaded service or client."""
    async with by_socket(served.url) as watcher:
        await watcher.frame()
        assert value_of(await scraped(served), "leaseway_live_subscribers") == 1
    left = "leaseway_live_subscribers_ended_total"
    while value_of(families := await scraped(served), "leaseway_live_subscribers") != 0:
        pass  # it has been notified and needs a moment
    assert value_of(families, left, reason="disconnected") == 1
    assert value_of(families, left, reason="slow") == 0


async def test_no_label_names_a_tenant_or_a_job(served: Served) -> None:
    """Series that grow with the number of tenants overload Prometheus and reveal the tenants' names."""
    await served.client.put("/v1/tenants/zebra", json={"starts": ["10/minute"]})
    await served.client.put("/v1/limits/maps:%7Btenant%7D", json={"rates": ["100/minute"]})
    await served.client.put("/v1/budgets/spend:%7Btenant%7D", json={"unit": "usd", "limit": 25})
    await served.client.put("/v1/limits/plain", json={"rates": ["100/minute"]})
    text = (await served.client.get("/metrics")).text
    assert "zebra" not in text
    assert "{tenant}" not in text
    assert "tenant=" not in text
    assert 'limit="plain"' in text


async def test_refusals_are_counted(served_with_keys: Served) -> None:
    """An attacker who tries keys must be visible in the metrics."""
    for _ in range(3):
        assert (await served_with_keys.client.get("/v1/jobs")).status_code == 401
    async with served_with_keys.with_key((await operator_of(served_with_keys)).text) as client:
        text = (await client.get("/metrics")).text
    assert 'leaseway_http_requests_total{method="GET",route="/v1/jobs",status="4xx"} 3' in text


async def test_many_who_ask_share_one_look(served: Served) -> None:
    """A hundred open dashboards must not cause a hundred times the load."""
    looks = 0
    store = served.service.world.store
    lanes = store.reads.lanes

    async def counted() -> object:
        nonlocal looks
        looks += 1
        return await lanes()

    store.reads.lanes = counted  # type: ignore[method-assign, assignment]
    for _ in range(5):
        assert (await served.client.get("/v1/metrics")).status_code == 200
    assert looks < 5


def test_queues_beyond_the_largest_are_one_series() -> None:
    """Clients choose queue names freely, so the number of series must be bounded."""
    zero: dict[str, Any] = {"scheduled": 0, "leased": 0, "done": 0, "failed": 0, "cancelled": 0}
    lanes = [LaneCount(queue=f"q{n:04}", tenant="t", ready=1, **zero) for n in range(QUEUES_MAX + 50)]
    waiting = [LaneWait(queue="q9999", tenant="t", needs="", since=0)]  # its lane was added after the lanes were read
    readings = LaneReadings(lanes, {}, waiting=waiting)
    text = render_text(job_families(SystemSnapshot(0, summarize(readings), 0, [], {}, {}, [], [])))
    assert text.count('state="ready"') == QUEUES_MAX + 1
    assert f'leaseway_jobs{{queue="{OTHERS}",state="ready"}} 50' in text


async def test_counters_of_queues_are_bounded_and_never_fall() -> None:
    """A client that invents a queue name per job must not fill the memory of the service. A queue that is not among the
    largest any more is counted with the others, which must neither fall nor jump."""
    clock = FakeClock()
    store, ends = MemoryStore(clock.now_us), OutcomeCounters()
    worker = ContractWorker(store)
    largest: tuple[str, ...] = ()
    for round_ in range(10):
        queues = tuple(f"q{round_}-{n}" for n in range(5))
        await store.jobs.submit([new_job(10 * round_ + n, queue=queue) for n, queue in enumerate(queues)])
        finished = count_outcomes(await store.reads.lanes())
        await ends.update(MemoryInspection(store.state), finished, largest, await store.reads.now())
        clock.advance(60)
        await worker.settle(*[done(lease) for lease in await worker.claim(5, queues)])
        largest = queues[:2]
        finished = count_outcomes(await store.reads.lanes())
        totals = await ends.update(MemoryInspection(store.state), finished, largest, await store.reads.now())
        clock.advance(60)
        assert {queue for queue, _ in totals} == {*largest, OTHERS}
        assert [totals[queue, "done"] for queue in (*largest, OTHERS)] == [1, 1, 3 * (round_ + 1)]


async def test_tens_of_thousands_of_lanes_do_not_occupy_the_service(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of 50,000 lanes takes a second, and any tenant may ask for metrics at any time. It is taken for a
    tenth of the time at most, and a tenant's request does not go through the lanes of others."""
    zero: dict[str, Any] = {"scheduled": 0, "leased": 0, "done": 0, "failed": 0, "cancelled": 0}
    lanes = [LaneCount(queue=f"q{n}", tenant=f"t{n % 50}", ready=1, **zero) for n in range(50_000)]
    reads, loads = served.service.world.store.reads, 0

    async def many(tenant: str | None = None) -> list[LaneCount]:
        nonlocal loads
        loads += 1
        await asyncio.sleep(0.5)
        return lanes

    monkeypatch.setattr(reads, "lanes", many)
    begun = time.monotonic()
    assert (await served.client.get("/v1/metrics", params={"tenant": "t7"})).json()["ready"] == 1_000
    assert (await served.client.get("/v1/metrics")).json()["ready"] == 50_000
    text = (await served.client.get("/metrics")).text
    assert text.count('state="ready"') == QUEUES_MAX + 1
    while time.monotonic() < begun + 3:
        assert (await served.client.get("/v1/metrics", params={"tenant": "t7"})).status_code == 200
        await asyncio.sleep(0.1)
    assert loads == 1


def test_a_name_cannot_break_out_of_its_label() -> None:
    """A queue name chosen by a tenant could otherwise forge metrics."""
    text = render_text([gauge("x", "Some.", [Sample(1, {"queue": 'a"} 7\nleaseway_y 1\\'})])])
    assert text.splitlines()[2] == 'leaseway_x{queue="a\\"} 7\\nleaseway_y 1\\\\"} 1'
