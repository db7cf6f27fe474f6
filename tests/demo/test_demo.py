"""The demo itself, with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interrupts import hear_interrupts

DEMO = [sys.executable, "-c", "from leaseway.demo.main import command; command()"]


@pytest.mark.slow
def test_a_killed_worker_costs_no_job_and_charges_nobody_twice(tmp_path: Path) -> None:
    """The demo's one claim."""
    arguments = ["--jobs", "600", "--json", "--keep", str(tmp_path / "kept")]
    ran = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["ok"] is True
    assert (report["submitted"], report["done"], report["lost"], report["doubled"]) == (600, 600, 0, 0)
    assert report["killed"]["in_hands"] > 0
    assert report["leases_taken_back"] >= report["killed"]["in_hands"]
    assert report["attempts_repeated"] >= report["killed"]["in_hands"]
    assert report["requests"] == 600 + report["requests_repeated"]
    assert f"(pid {report['killed']['pid']}) with {report['killed']['in_hands']} jobs in its hands" in ran.stderr
    assert len((tmp_path / "kept" / "journal.txt").read_text().splitlines()) == report["requests"]


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nobody_behind() -> None:
    """Workers that go on in the background would eat somebody's laptop."""
    demo = subprocess.Popen([*DEMO, "--jobs", "100000"], stdout=subprocess.PIPE, text=True, preexec_fn=hear_interrupts)
    assert demo.stdout is not None
    with demo:
        started = next(line for line in demo.stdout if "started 3 workers" in line)
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
    assert demo.returncode == 1
    for pid in re.findall(r"\d+", started.partition("pid")[2]):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_folder_with_files_in_it_is_refused(tmp_path: Path) -> None:
    """Jobs of an earlier demo would be counted as lost."""
    (tmp_path / "demo.db").touch()
    ran = subprocess.run([*DEMO, "--keep", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "not empty" in ran.stderr
