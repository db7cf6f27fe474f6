"""`run` and `resume` with real worker processes: exit codes, output, and the next command that they suggest."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.imports.cli_fixtures import Desk, at_desk, things

from leaseway.testing.fake_open_charge_map import API_KEY, Listing, fake_api

pytestmark = pytest.mark.slow

PAGED = """
version = 1
[source]
name = "things"
base_url = "URL"
[resource]
path = "/offset/things"
records = "$.items"
key = "id"
page = { cursor = "offset", limit_param = "limit", limit = 10 }
[sink]
url = "sqlite:///data.db"
table = "things"
"""
KEYED = """
version = 1
[source]
name = "poi"
base_url = "URL/v3"
auth = { header = "X-API-Key", env = "OCM_API_KEY" }
[resource]
path = "/poi"
key = "ID"
[resource.page]
cursor = "keyset"
param = "greaterthanid"
start = 0
limit_param = "maxresults"
limit = 100
fixed = { sortby = "id_asc" }
[sink]
url = "sqlite:///data.db"
table = "poi"
"""

PLANNING = 1
"""The one request before planning, which no budget counts."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return at_desk(tmp_path, monkeypatch, capsys)


async def leaseway(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "leaseway.cli", "import", *words]
    return await asyncio.to_thread(
        subprocess.run, command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=180
    )


def test_a_complete_run_exits_with_0_and_asks_for_nothing(desk: Desk) -> None:
    """A cron job relies on the exit code, and a reused name would mix the figures of two runs."""
    desk.write(things(5))
    told = desk.run("run", "things.toml", "--run", "one", "--workers", "1")
    assert told.code == 0
    assert told.out.startswith("things: complete after ")
    assert "leaseway import" not in told.out
    again = desk.run("run", "things.toml", "--run", "one")
    assert again.code == 2
    assert "run: one exists already" in again.err


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 121, "größe"])
def test_a_name_that_no_job_could_have_leaves_no_run_behind(desk: Desk, name: str) -> None:
    """A run that is recorded before its jobs are refused could never finish."""
    told = desk.run("run", "things.toml", "--run", name)
    assert told.code == 2
    assert "run: must be 1 to 120 letters" in told.err
    assert not (desk.folder / "data.db").exists()


def test_jobs_that_live_in_one_process_are_refused(desk: Desk) -> None:
    """Each worker would have a store of its own, and find no jobs in it."""
    for words in (["run"], ["resume"], ["work"]):
        told = desk.run(*words, "things.toml", "--store", "memory://")
        assert told.code == 2
        assert "memory://" in told.err
    assert not (desk.folder / "data.db").exists()


IMPORTER = """
from leaseway import App

app = App("sqlite:///own.db")


@app.importer("numbers", key="id", sink="sqlite:///data.db", table="numbers", page_limit=10)
async def numbers(shard, cursor, limit, http):
    return [{"id": number} for number in range(5)], None
"""


async def test_an_importer_is_named_by_its_module_and_uses_the_store_of_its_app(desk: Desk) -> None:
    """Jobs in another store than that of the app would never be run by its workers."""
    (desk.folder / "shop.py").write_text(IMPORTER, "utf-8")
    environ = {"LEASEWAY_STORE": ""}
    ran = await leaseway("run", "shop:numbers", "--workers", "1", "--json", **environ)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["inserted"] == 5
    told = await leaseway("status", "shop:numbers", **environ)
    assert "numbers: complete" in told.stdout
    assert {path.name for path in desk.folder.glob("*.db")} == {"data.db", "own.db"}
    wrong = await leaseway("status", "shop:app")
    assert wrong.returncode == 2
    assert "it has: shop:numbers" in wrong.stderr


def test_a_partial_run_exits_with_1_and_names_the_next_command(desk: Desk) -> None:
    """A script must not treat a partial import as success."""
    desk.write([{"name": "no key"}] * 20)
    told = desk.run("run", "things.toml", "--workers", "1", "--json")
    assert told.code == told.json["exit_code"] == 1
    assert told.json["next"] == "continue with: leaseway import resume things.toml"
    assert told.json["shards"] == {"parked": 1}
    resumed = desk.run("resume", "things.toml", "--workers", "1")
    assert resumed.code == 1
    assert "continue with: leaseway import resume things.toml\n" in resumed.out


async def test_a_refused_key_exits_with_2_and_says_that_it_must_be_mended(desk: Desk) -> None:
    """A key can be revoked during a run; with a valid key the run must continue where it stopped."""
    one_worker = ("things.toml", "--workers", "1")
    async with fake_api(400, keys=[API_KEY]) as it:
        desk.spec.write_text(KEYED.replace("URL", it.url), "utf-8")
        refused = await leaseway("run", *one_worker, OCM_API_KEY="wrong")
        assert (refused.returncode, refused.stdout) == (2, ""), "no run is begun with it"
        stopped = await leaseway("run", *one_worker, "--requests-max", "2", OCM_API_KEY=API_KEY)
        assert stopped.returncode == 1
        wrong = await leaseway("resume", *one_worker, "--requests-max", "50", OCM_API_KEY="wrong")
        assert wrong.returncode == 2
        assert wrong.stdout.startswith("poi: failed after ")
        assert "correct what stopped it, then continue with: leaseway import resume things.toml" in wrong.stdout
        right = await leaseway("resume", *one_worker, "--json", OCM_API_KEY=API_KEY)
        assert right.returncode == 0
        assert json.loads(right.stdout)["inserted"] == 400


def test_a_suspect_run_exits_with_3_and_sends_to_the_report(desk: Desk) -> None:
    """Two thirds of the rows are missing although all requests succeeded, so the data must not be used unchecked."""
    desk.imported("one", things(300))
    desk.write(things(100))
    told = desk.run("run", "things.toml", "--workers", "1")
    assert told.code == 3
    assert "things: suspect after " in told.out
    assert "inspect it with: leaseway import report things.toml\n" in told.out
    report = desk.ok("report", "things.toml")
    assert "suspicion" in report.out


async def test_a_budget_stops_the_run_and_a_larger_one_goes_on(desk: Desk) -> None:
    """Each request above the budget costs money that the user did not approve, and a resumed run must not pay twice for
    pages it has."""
    async with fake_api(0, listings={"things": Listing(things(300))}) as it:
        desk.spec.write_text(PAGED.replace("URL", it.url), "utf-8")
        stopped = await leaseway("run", "things.toml", "--workers", "1", "--requests-max", "12")
        assert stopped.returncode == 1, stopped.stderr
        assert "budget: 12 of 12 requests" in stopped.stdout
        assert "continue with: leaseway import resume things.toml --requests-max 24" in stopped.stdout
        assert len(it.arrivals) == 12 + PLANNING
        refused = await leaseway("resume", "things.toml")
        assert refused.returncode == 2
        assert "has used 12 of 12 requests; resume it with a larger budget" in refused.stderr
        assert "--requests-max 24" in refused.stderr
        smaller = await leaseway("resume", "things.toml", "--requests-max", "5")
        assert (smaller.returncode, len(it.arrivals)) == (2, 12 + PLANNING)
        done = await leaseway("resume", "things.toml", "--workers", "1", "--requests-max", "100", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
    assert (told["rows"], told["inserted"], told["budget"]["requests_max"]) == (300, 300, 100)
    assert told["budget"]["requests"] == len(it.arrivals) - PLANNING


async def test_the_budget_of_the_spec_counts_unless_another_is_typed(desk: Desk) -> None:
    """If you raise the budget in the spec, you expect the resumed run to use it."""
    async with fake_api(0, listings={"things": Listing(things(30))}) as it:
        spec = PAGED.replace("URL", it.url)
        desk.spec.write_text(spec + "[budget]\nrequests = 2\n", "utf-8")
        assert (await leaseway("run", "things.toml", "--workers", "1")).returncode == 1
        desk.spec.write_text(spec + "[budget]\nrequests = 50\n", "utf-8")
        raised = await leaseway("resume", "things.toml", "--workers", "1", "--json")
    assert raised.returncode == 0, raised.stderr
    assert json.loads(raised.stdout)["budget"]["requests_max"] == 50


async def test_a_run_knows_how_many_shards_can_be_worked_on_at_once(desk: Desk) -> None:
    """Shards are split for idle workers, so a wrong figure would split too much or never."""
    async with fake_api(0, listings={"things": Listing(things(5))}) as it:
        spec = PAGED.replace("URL", it.url).replace("[resource]", "concurrency = 3\n[resource]", 1)
        desk.spec.write_text(spec, "utf-8")
        told = await leaseway("run", "things.toml", "--workers", "2", "--json")
    assert (told.returncode, json.loads(told.stdout)["concurrency"]) == (0, 6)


async def test_status_watches_until_the_run_has_ended(desk: Desk) -> None:
    """A watch that never returns would block the script that waits for it."""
    async with fake_api(0, listings={"things": Listing(things(300))}) as it:
        desk.spec.write_text(PAGED.replace("URL", it.url), "utf-8")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(leaseway("run", "things.toml", "--run", "one", "--workers", "1"))
            async with asyncio.timeout(30):
                await it.has_seen(PLANNING + 1)
            watched = await leaseway("status", "things.toml", "--watch")
    assert (running.result().returncode, watched.returncode) == (0, 0)
    assert "things: complete" in watched.stdout
