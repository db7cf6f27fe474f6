"""Imports over HTTP: plan, start, follow and report on runs of the specs that the service was started with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.api.keys import bearer, key_for, operator_of
from tests.api.live_clients import LiveClient, by_polling, by_socket
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.api.imports.registry import read_specs
from leaseway.api.schemas import imports
from leaseway.api.schemas.scaling import ImportSimulationDocument
from leaseway.domain.errors import UsageError
from leaseway.domain.identity import Scope
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.shard_jobs import register_jobs
from leaseway.testing.fake_open_charge_map import FakeApi, Listing, fake_api

SPEC = """
version = 1
[source]
name = "things"
base_url = "{url}"
limits = ["1000/second"]
[resource]
path = "/offset/things"
records = "$.items"
key = "id"
page = {{ cursor = "offset", limit_param = "limit", limit = 10, short_page_is_end = true }}
[resource.on_bad_row]
max_ratio = 0.5
[resource.columns]
size = {{ path = "size", type = "integer" }}
lat = {{ path = "lat", type = "real" }}
lon = {{ path = "lon", type = "real" }}
[sink]
url = "{sink}"
table = "things"
"""
BASE = "/v1/imports/things"
RUN = f"{BASE}/runs/first"


def thing(number: int) -> dict[str, Any]:
    return {"id": number, "size": number if number != 7 else "seven", "lat": 40.1, "lon": float(number)}


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api(0, listings={"things": Listing([thing(number) for number in range(1, 26)])}) as api:
        yield api


@pytest.fixture
def folder(tmp_path: Path, api: FakeApi) -> Path:
    """A folder with one spec for a real API on the loopback interface."""
    folder = tmp_path / "imports"
    folder.mkdir()
    write(folder, api.url, tmp_path)
    return folder


def write(folder: Path, url: str, place: Path) -> None:
    (folder / "things.toml").write_text(SPEC.format(url=url, sink=f"sqlite:///{place / 'data.db'}"))


@asynccontextmanager
async def watching(app: App, folder: Path, **settings: Any) -> AsyncIterator[Served]:
    """A short poll interval, so that tests do not wait."""
    async with run_service(app, imports=str(folder), **settings) as served:
        assert served.service.import_monitor is not None
        served.service.import_monitor.poll_seconds = 0.02
        yield served


@pytest.fixture
async def importing(tmp_path: Path, folder: Path) -> AsyncIterator[Served]:
    async with watching(App(f"sqlite:///{tmp_path / 'work.db'}"), folder) as served:
        yield served


@pytest.fixture
async def importing_anywhere(app: App, folder: Path) -> AsyncIterator[Served]:
    """Jobs in each store that the service supports; rows in a SQLite file."""
    async with watching(app, folder) as served:
        yield served


async def work(served: Served, folder: Path) -> None:
    """Run the shards as `leaseway import work --until-empty` does, which does not know the last shard of a run."""
    parts = load_import(folder / "things.toml")
    await parts.sink.open()
    app = App(served.app.url)
    register_jobs(app, parts)
    await app.run_worker(queues=[parts.queue], until_empty=True)
    await app.close()
    await parts.sink.close()


async def shown_when(served: Served, is_so: Callable[[dict[str, Any]], bool], path: str = RUN) -> dict[str, Any]:
    """Poll until a condition holds: progress is cached for one second, and the end of a run is detected shortly after
    it.
    """
    while True:
        answer = await served.client.get(path)
        assert answer.status_code == 200, answer.text
        if is_so(shown := answer.json()):
            return dict(shown)
        await asyncio.sleep(0.05)


async def run_to_its_end(served: Served, folder: Path, run: str = "first") -> dict[str, Any]:
    started = await served.client.post(f"{BASE}/runs", json={"run": run})
    assert started.status_code == 202, started.text
    await work(served, folder)
    return await shown_when(served, lambda shown: shown["state"] == "complete", f"{BASE}/runs/{run}")


async def test_an_import_is_planned_started_and_followed_to_its_end(importing_anywhere: Served, folder: Path) -> None:
    """The HTTP routes and a worker must be enough for a whole run; no command line may be needed to finish it."""
    importing = importing_anywhere
    client = importing.client
    (known,) = (await client.get("/v1/imports")).json()["items"]
    assert (known["source"], known["table"], known["last_run"]) == ("things", "things", None)
    planned = (await client.post(f"{BASE}/plan", json={})).json()
    assert (planned["mode"], planned["shards_total"]) == ("full", 1)
    assert (await client.get(f"{BASE}/runs")).json()["items"] == []
    started = await client.post(f"{BASE}/runs", json={"run": "first"})
    assert (started.status_code, started.headers["location"]) == (202, RUN)
    begun = (await client.get(RUN)).json()
    assert (begun["state"], begun["shards"], begun["share"]) == ("running", {"waiting": 1}, 0.0)
    assert begun["limit"] == {"count": 1_000, "window_seconds": 1.0}
    await work(importing, folder)
    shown = await shown_when(importing, lambda shown: shown["state"] == "complete")
    assert (shown["rows"], shown["quarantined"], shown["share"], shown["shards_ended"]) == (24, 1, 1.0, 1)
    (shard,) = (await client.get(f"{RUN}/shards")).json()["items"]
    assert shard["state"] == "done"
    assert (await client.get(f"{RUN}/shards", params={"state": "parked"})).json()["items"] == []
    report = (await client.get(f"{RUN}/report")).json()
    assert report["changes"]["added"] == 24
    assert [row["run"] for row in (await client.get(f"{BASE}/runs")).json()["items"]] == ["first"]
    assert (await client.get(BASE)).json()["last_run"]["state"] == "complete"


async def test_a_run_that_ended_while_nobody_served_is_ended_by_the_next_service(tmp_path: Path, folder: Path) -> None:
    """A restart in the middle of a run must not leave it running forever."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    async with watching(App(url), folder) as served:
        await served.client.post(f"{BASE}/runs", json={"run": "first"})
    await work(served, folder)
    async with watching(App(url), folder) as again:
        await shown_when(again, lambda shown: shown["state"] == "complete")


async def test_a_run_is_started_once(importing: Served) -> None:
    """The name of the run is taken. To continue the same run, the client resumes it."""
    await importing.client.post(f"{BASE}/runs", json={"run": "first"})
    again = await importing.client.post(f"{BASE}/runs", json={"run": "first"})
    assert (again.status_code, "resume" in again.json()["detail"]) == (422, True)
    resumed = await importing.client.post(f"{RUN}/resume", json={})
    assert (resumed.status_code, resumed.json()) == (202, {"run": "first", "shards_open": 1})


async def test_a_source_that_is_away_is_no_fault_of_the_store(importing: Served, folder: Path, api: FakeApi) -> None:
    """An error about the store would send the operator to the wrong place. The source's URL must not be revealed."""
    api.cut(after_reading=False, times=1_000)
    answer = await importing.client.post(f"{BASE}/plan", json={})
    assert (answer.status_code, answer.json()["code"]) == (503, "source_unavailable")
    assert api.url not in answer.text
    assert "things.toml" in answer.text
    assert (await importing.client.post(f"{BASE}/runs", json={"run": "first"})).status_code == 503
    assert (await importing.client.get(f"{BASE}/runs")).json()["items"] == []


async def test_a_budget_that_is_used_up_is_said_when_a_run_is_resumed(importing: Served, folder: Path) -> None:
    """A run that cannot send a request would otherwise stop without a reason."""
    await importing.client.post(f"{BASE}/runs", json={"run": "first", "requests_max": 1})
    await work(importing, folder)
    shown = await shown_when(importing, lambda shown: shown["state"] != "running")
    assert (shown["state"], shown["budget"]["left"]) == ("partial", 0)
    refused = await importing.client.post(f"{RUN}/resume", json={})
    assert (refused.status_code, "requests_max" in refused.json()["detail"]) == (422, True)
    assert (await importing.client.post(f"{RUN}/resume", json={"requests_max": 100})).status_code == 202
    await work(importing, folder)
    await shown_when(importing, lambda shown: shown["state"] == "complete")


async def test_an_import_is_simulated_with_the_real_page_loop(importing: Served) -> None:
    """The page "Plan" and programs ask here what a run would take, before the provider counts one request."""
    body = {"workers": [1, 2], "rows": 200, "seconds": 0.5}
    answer = await importing.client.post(f"{BASE}/simulate", json=body)
    assert answer.status_code == 200, answer.text
    shown = msgspec.convert(answer.json(), type=ImportSimulationDocument)
    assert [run.workers for run in shown.runs] == [1, 2]
    assert all(run.is_complete and run.requests >= 2 and run.seconds >= 1.0 for run in shown.runs)
    assert shown.knee_workers == 1
    assert (await importing.client.get(f"{BASE}/runs")).json()["items"] == []


@pytest.mark.parametrize(
    "body", [{"seconds": -1}, {"p95_seconds": "x"}, {"workers": [0]}, {"workers": [1] * 7}, {"rows": 2_000_001}]
)
async def test_a_model_that_no_provider_can_have_is_refused(importing: Served, body: dict[str, object]) -> None:
    """A negative latency would be a plan that promises too much."""
    assert (await importing.client.post(f"{BASE}/simulate", json=body)).status_code == 422


async def test_a_contradiction_in_the_model_is_named(importing: Served) -> None:
    """What only the simulation can know comes from its process with the same words as on the command line."""
    answer = await importing.client.post(f"{BASE}/simulate", json={"seconds": 0.5, "p95_seconds": 0.1})
    assert (answer.status_code, "must not be smaller than seconds" in answer.json()["detail"]) == (422, True)


async def test_clients_bring_no_specs(importing: Served) -> None:
    """A client that could choose a URL could make the service fetch it (server-side request forgery)."""
    for body in ({"spec": "x"}, {"base_url": "http://169.254.169.254"}, {"path": "/etc/passwd"}):
        assert (await importing.client.post(f"{BASE}/runs", json=body)).status_code == 422
        assert (await importing.client.post(f"{BASE}/plan", json=body)).status_code == 422
        assert (await importing.client.post(f"{BASE}/simulate", json=body)).status_code == 422
    for field, value in (("run", "a/b"), ("run", "é"), ("run", ""), ("concurrency", -1), ("requests_max", 0)):
        assert (await importing.client.post(f"{BASE}/runs", json={field: value})).status_code == 422
    for name in ("other", "..%2fthings", "things.toml", "%00"):
        assert (await importing.client.post(f"/v1/imports/{name}/plan", json={})).status_code == 404
    for run in ("nothing", "%00"):
        for path in ("", "/shards", "/points", "/report"):
            assert (await importing.client.get(f"{BASE}/runs/{run}{path}")).status_code == 404


async def test_without_a_folder_there_are_no_imports(tmp_path: Path) -> None:
    """A service without specs is normal and must not answer with an error."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        assert (await served.client.get("/v1/imports")).json() == {"items": [], "next": None}
        assert (await served.client.get(f"{BASE}/runs")).status_code == 404


async def test_a_table_that_cannot_be_reached_does_not_hide_the_others(importing: Served, tmp_path: Path) -> None:
    """Operators open this list first when a database is unavailable."""
    away = SPEC.format(url="http://127.0.0.1:1", sink="postgresql://127.0.0.1:1/nothing").replace("things", "away")
    (tmp_path / "imports" / "away.toml").write_text(away)
    async with run_service(App(importing.app.url), imports=str(tmp_path / "imports")) as served:
        items = (await served.client.get("/v1/imports")).json()["items"]
        assert [(each["source"], each["is_reachable"]) for each in items] == [("away", False), ("things", True)]
        assert (await served.client.get("/v1/imports/away/runs")).status_code == 503


async def test_two_specs_of_one_source_are_refused(tmp_path: Path) -> None:
    """A request could not tell the two apart, so the service must report this at startup."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(SPEC.format(url="http://127.0.0.1:1", sink="sqlite:///x.db"))
    with pytest.raises(UsageError, match="both name the source"):
        read_specs(tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        read_specs(tmp_path / "nothing")


# -- on the map -----------------------------------------------------------------------------------------------------


async def test_points_appear_as_rows_arrive(importing: Served, folder: Path) -> None:
    """Each row must appear exactly once across pages of any size, and cursors of other lists must be refused."""
    client = importing.client
    await client.post(f"{BASE}/runs", json={"run": "first"})
    before = (await client.get(f"{RUN}/points")).json()
    assert (before["items"], before["more"], before["has_positions"]) == ([], False, True)
    await work(importing, folder)
    await shown_when(importing, lambda shown: shown["state"] == "complete")
    points: list[list[float]] = []
    after = before["next"]
    while after is not None:
        part = (await client.get(f"{RUN}/points", params={"after": after, "limit": 5})).json()
        points += part["items"]
        after = part["next"]
    assert sorted(points) == [[number + 0.25, 40.25, 1] for number in range(1, 26) if number != 7]
    assert (await client.get(f"{RUN}/points", params={"after": "made-up"})).status_code == 400
    assert (await client.get(f"{RUN}/points", params={"limit": 20_001})).status_code == 422


async def test_rows_that_were_there_are_others_on_the_map(importing: Served, folder: Path) -> None:
    """Otherwise a second run that finds no changes would show an empty map."""
    await run_to_its_end(importing, folder)
    await run_to_its_end(importing, folder, "second")
    found = (await importing.client.get(f"{BASE}/runs/second/points")).json()
    assert (found["items"], len(found["others"]), found["next"]) == ([], 24, None)


# -- quarantine -----------------------------------------------------------------------------------------------------


async def test_what_was_kept_aside_is_listed_tried_again_and_discarded(tmp_path: Path, folder: Path) -> None:
    """After the spec is corrected and the service is restarted with it, the record must become a row."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    async with watching(App(url), folder) as served:
        await run_to_its_end(served, folder)
        (kept,) = (await served.client.get(f"{BASE}/quarantine", params={"run": "first"})).json()["items"]
        assert (kept["external_id"], "size" in kept["problem"]) == ("7", True)
        stayed = (await served.client.post(f"{BASE}/quarantine/replay", json={"run": "first"})).json()
        assert (stayed["written"], stayed["quarantined"]) == (0, 1)
        wrong = {"run": "first", "numbers": [kept["number"], 4_711]}
        assert (await served.client.post(f"{BASE}/quarantine/discard", json=wrong)).status_code == 404
        assert len((await served.client.get(f"{BASE}/quarantine")).json()["items"]) == 1
    spec = folder / "things.toml"
    spec.write_text(spec.read_text().replace('size = { path = "size", type = "integer" }\n', ""))
    async with watching(App(url), folder) as served:
        done = (await served.client.post(f"{BASE}/quarantine/replay", json={"run": "first"})).json()
        assert (done["written"], done["quarantined"]) == (1, 0)
        assert (await served.client.get(f"{BASE}/quarantine")).json()["items"] == []


async def test_a_record_is_discarded_by_its_number(importing: Served, folder: Path) -> None:
    """Records that can never become rows would otherwise hide the ones that need attention."""
    await run_to_its_end(importing, folder)
    (kept,) = (await importing.client.get(f"{BASE}/quarantine")).json()["items"]
    body = {"run": "first", "numbers": [kept["number"]]}
    assert (await importing.client.post(f"{BASE}/quarantine/discard", json=body)).json()["discarded"] == 1
    assert (await importing.client.get(f"{BASE}/quarantine")).json()["items"] == []


# -- authorization --------------------------------------------------------------------------------------------------


async def test_other_tenants_see_no_imports(tmp_path: Path, folder: Path) -> None:
    """Imports belong to the `default` tenant, including the documents in quarantine."""
    async with watching(App(f"sqlite:///{tmp_path / 'work.db'}"), folder, auth=True) as served:
        async with served.with_key((await key_for(served, "acme")).text) as tenant:
            assert (await tenant.get("/v1/imports")).json()["items"] == []
            for path in ("", "/runs", "/runs/first", "/runs/first/points", "/quarantine"):
                assert (await tenant.get(f"{BASE}{path}")).status_code == 404
            for path in (
                "/plan",
                "/simulate",
                "/runs",
                "/runs/first/resume",
                "/quarantine/replay",
                "/quarantine/discard",
            ):
                assert (await tenant.post(f"{BASE}{path}", json={})).status_code == 404
        async with served.with_key((await operator_of(served)).text) as operator:
            assert len((await operator.get("/v1/imports")).json()["items"]) == 1


async def test_news_of_imports_are_for_those_who_may_read_them(tmp_path: Path, folder: Path) -> None:
    """A key for jobs only must not receive through the stream what the routes would refuse."""
    async with watching(App(f"sqlite:///{tmp_path / 'work.db'}"), folder, auth=True) as served:
        operator = await operator_of(served)
        async with served.with_key(operator.text) as client:
            await client.post(f"{BASE}/runs", json={"run": "first"})
        async with by_socket(served.url, bearer(operator)) as watcher:
            await watcher.until(lambda seen: "import" in kinds_in(seen))
        jobs_only = await key_for(served, "default", scopes=(Scope.JOBS_READ,))
        for key in (jobs_only, await key_for(served, "acme")):
            async with by_socket(served.url, bearer(key)) as watcher:
                await watcher.frame()  # the snapshot for this subscriber
            assert "import" not in kinds_in(watcher)


def kinds_in(watcher: LiveClient) -> set[str]:
    return {event["kind"] for event in watcher.events}


async def test_a_run_is_seen_live_to_its_end(importing: Served, folder: Path) -> None:
    """The dashboard draws the run from events and does not send requests for it."""
    async with by_polling(importing.url) as watcher:
        await watcher.frame()
        await importing.client.post(f"{BASE}/runs", json={"run": "first"})
        await work(importing, folder)

        def last() -> dict[str, Any]:
            return next((event["import"] for event in reversed(watcher.events) if event["kind"] == "import"), {})

        await watcher.until(lambda _: last().get("state") == "complete")
        assert (last()["source"], last()["run"], last()["rows"]) == ("things", "first", 24)


async def test_answers_have_the_shapes_that_are_described(importing: Served, folder: Path) -> None:
    """A schema that does not match the response misleads the author of a client."""
    client = importing.client
    msgspec.convert((await client.post(f"{BASE}/plan", json={})).json(), type=imports.ImportPlanDocument)
    started = await client.post(f"{BASE}/runs", json={"run": "first"})
    msgspec.convert(started.json(), type=imports.ImportRunDocument)
    await work(importing, folder)
    msgspec.convert(await shown_when(importing, lambda shown: shown["rows"] > 0), type=imports.ImportProgressDocument)
    for path, shape in (
        ("", imports.ImportDocument),
        ("/runs/first/report", imports.ImportReportDocument),
        ("/runs/first/points", imports.ImportPointsDocument),
    ):
        msgspec.convert((await client.get(f"{BASE}{path}")).json(), type=shape)
    items = (await client.get(f"{RUN}/shards")).json()["items"]
    msgspec.convert(items, type=list[imports.ImportShardDocument])
    items = (await client.get(f"{BASE}/quarantine")).json()["items"]
    assert msgspec.convert(items, type=list[imports.QuarantinedDocument])
    replayed = await client.post(f"{BASE}/quarantine/replay", json={"run": "first"})
    msgspec.convert(replayed.json(), type=imports.ReplayedDocument)
    msgspec.convert((await client.get("/v1/imports")).json()["items"], type=list[imports.ImportDocument])
