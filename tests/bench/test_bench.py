"""The benchmarks of jobs run to their end. Measured values are not checked, because this machine may be busy."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from benchmarks.postgres.contestants import peer
from benchmarks.postgres.database import new_database, pinned_snapshot
from benchmarks.postgres.setups import CELERY, CELERY_ON_REDIS, PGQUEUER, PROCRASTINATE, RAW, Peer
from benchmarks.processes import let_go, ready_workers

from leaseway.bench.processes import command, probed
from leaseway.testing.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
BENCH = [sys.executable, "-c", "from leaseway.bench.main import command; command()"]
BRIEFLY = "from leaseway.bench import main, measure; measure.SINGLE, measure.PICKUPS = 100, 10; main.command()"
"""The same with fewer jobs, because the figures are not used."""


def ran(command: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_bench_measures_next_to_the_users_file_and_removes_its_files(tmp_path: Path) -> None:
    """It must measure the user's disk and must never touch the user's jobs."""
    (tmp_path / "work.db").write_bytes(b"mine")
    command = [sys.executable, "-c", BRIEFLY, "--store", f"sqlite:///{tmp_path}/work.db", "--jobs", "1000", "--json"]
    answer = ran(command)
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout)
    assert all(value > 0 for name, value in figures.items() if name != "machine")
    assert {"submit_single", "submit_bulk", "drain", "pickup_other_p99", "worker_rss"} <= figures.keys()
    assert [file.name for file in tmp_path.iterdir()] == ["work.db"]
    assert (tmp_path / "work.db").read_bytes() == b"mine"


@pytest.mark.parametrize("store", ["memory://", "sqlite:///no-such-folder/work.db"])
def test_bench_refuses_a_store_that_it_cannot_measure(store: str) -> None:
    """Creating the missing folder might measure another disk than the user meant."""
    answer = ran([*BENCH, "--store", store])
    assert answer.returncode == 2
    assert "--store" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param("drain", marks=pytest.mark.campaign), "submit"])
def test_a_quick_run_of_the_benchmarks_ends_with_its_figures(case: str) -> None:
    """Otherwise a broken benchmark would be noticed only when a release needs its figures."""
    if case == "drain" and not find_spec("huey"):
        pytest.skip("huey is in the group bench: ./dev bench installs it")
    answer = ran([sys.executable, "-m", "benchmarks", "--quick", case])
    assert answer.returncode == 0, answer.stderr
    assert f"./dev bench --quick {case}" in answer.stdout


@pytest.mark.campaign
@pytest.mark.parametrize("case", ["idle", "crowd"])  # the other cases consist of the same parts
def test_a_quick_run_on_postgresql_ends_with_its_figures(case: str) -> None:
    """The published comparison is about PostgreSQL, so its benchmark must work as well."""
    if case == "idle" and not Path("/proc/self/schedstat").exists():
        pytest.skip("the processor time of the server is read from /proc")
    answer = ran([sys.executable, "-m", "benchmarks", "--quick", f"postgres_{case}"])
    assert answer.returncode == 0, answer.stderr
    assert f"./dev bench --quick postgres_{case}" in answer.stdout
    assert "PostgreSQL 1" in answer.stdout


@pytest.mark.campaign
@pytest.mark.parametrize("case", ["submit"])  # the other cases consist of the same parts
def test_a_quick_run_on_mongodb_ends_with_its_figures(case: str) -> None:
    """A contestant that is set up wrongly stops it, and no figure is written by hand."""
    answer = ran([sys.executable, "-m", "benchmarks", "--quick", f"mongodb_{case}"])
    assert answer.returncode == 0, answer.stderr
    assert f"./dev bench --quick mongodb_{case}" in answer.stdout
    assert "MongoDB " in answer.stdout


@pytest.mark.campaign
def test_a_quick_run_with_calls_ends_with_its_figures() -> None:
    """Each contestant must make every call, or its rate would be that of something else."""
    answer = ran([sys.executable, "-m", "benchmarks", "--quick", "clients", "metered"])
    assert answer.returncode == 0, answer.stderr
    assert "share of bare aiohttp" in answer.stdout
    assert "with limit and budget" in answer.stdout


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("case", "figure"),
    [
        ("lanes_sqlite", "drain from one lane with 250 lanes used up, share of none"),
        ("growth_memory", "memory of a worker after"),
        ("profile_sqlite", "SQLite, run, with one call: HTTP library"),
    ],
)
def test_a_quick_run_on_sqlite_ends_with_its_figures(case: str, figure: str) -> None:
    """Each of them has a worker program of its own, which only the benchmark starts."""
    if case == "profile_sqlite" and not Path("/proc/self/schedstat").exists():
        pytest.skip("the processor time of threads is read from /proc")
    answer = ran([sys.executable, "-m", "benchmarks", "--quick", case])
    assert answer.returncode == 0, answer.stderr
    assert figure in answer.stdout


def test_a_case_of_another_store_is_refused() -> None:
    """Running nothing without an error would look like success."""
    answer = ran([sys.executable, "-m", "benchmarks", "--store", "sqlite", "postgres_drain"])
    assert answer.returncode == 2
    assert "postgres_drain" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("who", [RAW, PGQUEUER, PROCRASTINATE, CELERY, CELERY_ON_REDIS], ids=lambda who: who.name)
def test_a_peer_completes_every_job(who: Peer, server: PostgresServer, tmp_path: Path) -> None:
    """A peer that is set up wrongly is slow, and the comparison would be unfair."""
    if who is not RAW and not find_spec(who.name.split()[0].lower()):
        pytest.skip(f"{who.name} is in the group bench: ./dev bench installs it")
    for workers in (1, 2) if who in (RAW, PGQUEUER) else (1,):
        assert peer(server.url, who, who.setups[0], 50, workers)(tmp_path) > 0


@pytest.mark.slow
def test_a_pinned_snapshot_has_read_every_table(server: PostgresServer) -> None:
    """A table that the snapshot has not locked could be truncated, which would make the benchmark easier."""
    with new_database(server.url) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA work CREATE TABLE jobs (id int) CREATE TABLE history (id int)")
        with pinned_snapshot(url):
            connection.execute("SET lock_timeout = '50ms'")
            for table in ("jobs", "history"):
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    connection.execute(f"TRUNCATE work.{table}".encode())
        connection.execute("TRUNCATE work.jobs, work.history")


@pytest.mark.slow
def test_a_drain_with_a_duration_ends_in_time_and_leaves_the_remaining_jobs(tmp_path: Path) -> None:
    """The rate under a pinned snapshot must cover the whole duration, not only the jobs left at its end."""
    url = f"sqlite:///{tmp_path}/work.db"
    probed("submit_bulk", url, 100_000)
    figures = probed("drain_for", url, 1)
    assert 0 < figures["count"] < 100_000
    assert figures["ended_ns"] - figures["begun_ns"] > 0.2e9, "it ended right after it started"
    assert len(figures["rates"]) == 6


@pytest.mark.slow
def test_idle_workers_wait_until_they_are_told_to_leave(tmp_path: Path) -> None:
    """Workers that exit early use no processor time, and idling would look cheaper than it is."""
    commands = [command("idle", f"sqlite:///{tmp_path}/work.db", 3)]
    with ready_workers(commands) as workers:
        with pytest.raises(subprocess.TimeoutExpired):
            workers[0].wait(0.5)
        assert let_go(workers) == [{"count": 3}]
