"""That the benchmarks run, not what they measure: a busy machine must not fail them."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = [sys.executable, "-c", "from leaseway.bench.main import command; command()"]


def ran(command: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_bench_measures_beside_the_users_file_and_leaves_nothing(tmp_path: Path) -> None:
    """It must measure the user's disk, and never touch the user's jobs."""
    (tmp_path / "work.db").write_bytes(b"mine")
    answer = ran([*BENCH, "--store", f"sqlite:///{tmp_path}/work.db", "--jobs", "1000", "--json"])
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout)
    assert all(value > 0 for name, value in figures.items() if name != "machine")
    assert {"submit_single", "submit_bulk", "drain", "pickup_other_p99", "worker_rss"} <= figures.keys()
    assert [file.name for file in tmp_path.iterdir()] == ["work.db"]
    assert (tmp_path / "work.db").read_bytes() == b"mine"


@pytest.mark.parametrize("store", ["memory://", "sqlite:///no-such-folder/work.db"])
def test_bench_refuses_what_it_cannot_measure(store: str) -> None:
    """A folder made by mistake on the wrong disk would give the wrong figures."""
    answer = ran([*BENCH, "--store", store])
    assert answer.returncode == 2
    assert "--store" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", ["drain", "backlog", "submit", "pickup", "fairness"])
def test_a_quick_run_of_the_benchmarks_ends_with_its_figures(case: str) -> None:
    """A benchmark that broke unnoticed is found when the release waits for it."""
    if case == "drain" and not find_spec("huey"):
        pytest.skip("huey is in the group bench: ./dev bench installs it")
    answer = ran([sys.executable, "-m", "benchmarks", "--quick", case])
    assert answer.returncode == 0, answer.stderr
    assert f"./dev bench --quick {case}" in answer.stdout
