"""A fleet of real processes: it grows, shrinks, restarts and survives kills without losing or doubling a job."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.harness import Lab, Process, eventually
from tests.faults.jobs_app import make_app
from tests.postgres_tables import empty_schema
from tests.processes import is_alive

from leaseway.testing.mongodb import MongoServer
from leaseway.testing.postgres import PostgresServer

pytestmark = pytest.mark.slow

QUICK = "step=0.6,window=1.5,idle=1.5"
DIES_ON_DEMAND = """
import os
from pathlib import Path
from tests.faults.jobs_app import app

if "LEASEWAY_FLEET_SOCKET" in os.environ and Path({flag!r}).exists():
    os._exit(7)
"""


def fleet(lab: Lab, bounds: str, *options: str) -> Process:
    return lab.command("--fleet", f"{bounds},{QUICK}", "--json", *options)


def told(process: Process, event: str) -> list[dict[str, Any]]:
    """The events that the fleet has logged. Its workers write to the same file."""
    lines = [line for line in process.output().splitlines() if line.startswith("{") and line.endswith("}")]
    return [each for each in map(json.loads, lines) if each.get("event") == event]


def await_told(process: Process, event: str, count: int = 1, seconds: float = 60) -> list[dict[str, Any]]:
    return eventually(
        lambda: found if len(found := told(process, event)) >= count else [], seconds, f"{count} × {event}"
    )


def check_once(lab: Lab, count: int) -> None:
    """Every job was done exactly once, in its first counted attempt."""
    assert lab.number("SELECT count(*) FROM jobs WHERE kind = 'receipt'") == count
    attempts = lab.rows("SELECT attempts, state, count(*) FROM jobs WHERE kind = 'parent' GROUP BY 1, 2")
    assert attempts == [(1, "done", count)]


def test_a_burst_starts_workers_and_an_idle_pool_ends_them(lab: Lab) -> None:
    """From nothing to the maximum and back to nothing, and again: no job is lost, doubled, or charged an attempt."""
    process = fleet(lab, "min=0,max=3", "--concurrency", "4", "--queue", "default", "--queue", "receipts")
    for round_ in (1, 2):
        lab.submit_each("parent", 60, seconds=0.3)
        lab.await_all_finished(60)
        eventually(lambda: told(process, "fleet_decision")[-1]["workers"] == 0, 60, "scaled to zero")
        check_once(lab, 60 * round_)
    eventually(lambda: len(told(process, "fleet_worker_ended")) == len(told(process, "fleet_worker_ready")), 60)
    assert max(each["workers"] for each in told(process, "fleet_decision")) == 3
    assert process.stop() == 0, process.output()


def test_jobs_that_scaling_interrupts_are_given_back_uncounted(lab: Lab) -> None:
    """Restart after restart under load with almost no grace: each interrupted job runs again, as its first attempt."""
    process = fleet(
        lab, "min=2,max=2", "--concurrency", "2", "--grace", "0.1", "--queue", "default", "--queue", "receipts"
    )
    await_told(process, "fleet_worker_ready", 2)
    lab.submit_each("parent", 30, seconds=1)
    lab.await_count("SELECT count(*) FROM jobs WHERE state = 'leased'", 2)
    for number in range(1, 4):
        process.send(signal.SIGHUP)
        await_told(process, "fleet_worker_ended", 2 * number)
    lab.await_all_finished(60)
    assert lab.history("stopped"), "no job was interrupted, so this run proves nothing"
    check_once(lab, 30)
    assert process.stop() == 0, process.output()


def test_a_killed_worker_is_replaced_and_its_jobs_run_again(lab: Lab) -> None:
    """kill -9 takes a worker with its leases: they expire, and the fleet has another worker by then."""
    process = fleet(lab, "min=1,max=1", "--concurrency", "4")
    worker = int(await_told(process, "fleet_worker_ready")[0]["pid"])
    jobs = lab.submit_each("nap", 3, seconds=0.5)
    lab.await_event("start", job=jobs[0])
    os.kill(worker, signal.SIGKILL)
    assert await_told(process, "fleet_worker_lost")[0]["why"] == "ended with signal 9"
    lab.await_all_finished()
    assert len(told(process, "fleet_worker_ready")) == 2
    assert process.stop() == 0, process.output()


def test_a_killed_fleet_leaves_no_workers_behind(lab: Lab) -> None:
    """Workers that nobody supervises would be there twice after the restart of the fleet."""
    process = fleet(lab, "min=2,max=2")
    workers = [int(each["pid"]) for each in await_told(process, "fleet_worker_ready", 2)]
    process.kill()
    eventually(lambda: not any(is_alive(worker) for worker in workers), 20, "the workers have drained")


def test_signals_drain_the_workers_and_then_end_their_grace(lab: Lab) -> None:
    """The first signal lets running jobs finish, the second does not; both give jobs back uncounted."""
    process = fleet(lab, "min=2,max=2", "--grace", "60")
    job = lab.submit("held", n=1)
    lab.await_event("start", job=job)
    process.send(signal.SIGTERM)
    await_told(process, "fleet_worker_ended")  # the idle one
    assert process.is_alive
    process.send(signal.SIGTERM)
    assert process.wait_for_exit() == 0, process.output()
    assert (lab.job(job)["state"], lab.job(job)["attempts"]) == ("ready", 0)


def test_the_first_signal_does_not_end_the_grace_of_a_worker_that_drains_already(lab: Lab) -> None:
    """A worker takes its second signal for an order to stop its jobs. The fleet's first one is not that order."""
    process = fleet(lab, "min=1,max=1", "--grace", "60")
    job = lab.submit("held", n=1)
    old = int(lab.await_event("start", job=job)["pid"])
    process.send(signal.SIGHUP)
    await_told(process, "fleet_worker_ready", 2)
    lab.await_event("draining", pid=old)
    process.send(signal.SIGTERM)
    await_told(process, "fleet_worker_ended")  # the new one
    lab.release("1-1")
    assert process.wait_for_exit() == 0, process.output()
    assert (lab.job(job)["state"], lab.job(job)["attempts"]) == ("done", 1)
    assert lab.history("stopped") == []


def test_an_interrupt_of_the_terminal_is_one_signal_for_each_worker(lab: Lab) -> None:
    """Ctrl-C signals every process of the group. Workers that got it directly as well as from the fleet would
    stop their jobs at once."""
    arguments = ["work", "tests.faults.jobs_app:app", "--fleet", f"min=1,max=1,{QUICK}", "--json", "--grace", "60"]
    process = lab.run(["setsid", sys.executable, "-m", "leaseway.cli", *arguments])
    job = lab.submit("held", n=1)
    worker = int(lab.await_event("start", job=job)["pid"])
    os.killpg(process.pid, signal.SIGINT)
    lab.await_event("draining", pid=worker)
    lab.release("1-1")
    assert process.wait_for_exit() == 0, process.output()
    assert (lab.job(job)["state"], lab.history("stopped")) == ("done", [])


def test_a_third_signal_exits_at_once(lab: Lab) -> None:
    """A handler that ignores its cancellation cannot keep the fleet alive."""
    process = fleet(lab, "min=1,max=1", "--grace", "60")
    lab.await_event("start", job=lab.submit("stubborn", n=1))
    for number in (1, 2, 3):
        process.send(signal.SIGTERM)
        await_told(process, "fleet_draining", number)
    assert process.wait_for_exit() == 4


def test_workers_that_die_at_their_start_end_the_fleet_with_the_reason(lab: Lab, tmp_path: Path) -> None:
    """A fleet that restarts broken workers for ever looks alive and does nothing."""
    process = run_module(lab, tmp_path, is_broken=True)
    assert process.wait_for_exit(60) == 1
    assert "5 workers in a row failed to start or died within 10 s: the last one ended with exit code 7" in (
        process.output()
    )
    assert len(told(process, "fleet_worker_lost")) == 5


def test_a_restart_with_broken_code_leaves_the_old_workers_running(lab: Lab, tmp_path: Path) -> None:
    """A deployment of code that cannot start must not take down what runs."""
    process = run_module(lab, tmp_path, is_broken=False)
    old = int(await_told(process, "fleet_worker_ready")[0]["pid"])
    (tmp_path / "broken").touch()
    process.send(signal.SIGHUP)
    await_told(process, "fleet_restart_failed")
    assert is_alive(old)
    assert lab.await_finished(lab.submit("quick", n=1))["state"] == "done"
    assert process.stop() == 0, process.output()


def run_module(lab: Lab, folder: Path, *, is_broken: bool) -> Process:
    flag = folder / "broken"
    if is_broken:
        flag.touch()
    (folder / "fragile.py").write_text(DIES_ON_DEMAND.format(flag=str(flag)))
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); from leaseway.cli.main import main; sys.exit(main())"
    os.environ["PYTHONPATH"] = str(folder)
    try:
        arguments = ["work", "fragile:app", "--fleet", f"min=1,max=1,{QUICK}", "--json"]
        return lab.run([sys.executable, "-c", program, *arguments])
    finally:
        del os.environ["PYTHONPATH"]


def test_a_fleet_waits_for_a_store_that_cannot_be_reached(lab: Lab) -> None:
    """Workers could not reach it either: starting them would look like a crash loop."""
    lab.submit("quick", n=1)  # in a store that this fleet does not serve
    process = fleet(lab, "min=1,max=2", "--store", "postgresql://nobody@127.0.0.1:1/none")
    await_told(process, "store_unavailable", 2)
    assert told(process, "fleet_worker_ready") == told(process, "fleet_worker_lost") == []
    assert process.stop() == 0, process.output()


@pytest.mark.parametrize("backend", ["postgresql", "mongodb"])
def test_a_fleet_serves_database_servers_as_well(lab: Lab, backend: str, request: pytest.FixtureRequest) -> None:
    """The counters, the leases and the agreement come from another store; the promises are the same."""
    url = empty_store(backend, request)
    lab.submit("quick", n=1)  # in a store that this fleet does not serve
    process = fleet(lab, "min=0,max=2", "--concurrency", "4", "--store", url)
    app = make_app(url, lab.folder)
    try:
        answers = app.submit_many_sync([app.bind("nap", {"n": n, "seconds": 0.3}) for n in range(30)])
        records = [app.wait_sync(answer, 60) for answer in answers]
    finally:
        app.close_sync()
    assert {(record.state, record.attempts) for record in records} == {("done", 1)}
    eventually(lambda: told(process, "fleet_decision")[-1]["workers"] == 0, 60, "scaled to zero")
    assert process.stop() == 0, process.output()


def empty_store(backend: str, request: pytest.FixtureRequest) -> str:
    if backend == "postgresql":
        server: PostgresServer = request.getfixturevalue("server")
        asyncio.run(empty_schema(server.url, "fleet_tests"))
        return f"{server.url}?schema=fleet_tests"
    mongod: MongoServer = request.getfixturevalue("mongodb")
    return mongod.url.replace("/leaseway", "/fleet_tests", 1)


def has_met(process: Process) -> bool:
    """Whether its last decision was for several fleets."""
    return "fleets" in (told(process, "fleet_decision") or [{}])[-1]


def test_two_fleets_on_one_pool_run_together_what_it_needs(lab: Lab) -> None:
    """Without an agreement, each of them would provide for the whole load. When one is killed, the other takes over."""
    options = ("--concurrency", "4", "--queue", "default", "--queue", "receipts")
    one, two = (fleet(lab, "min=1,max=3", *options) for _ in range(2))
    eventually(lambda: all(has_met(each) for each in (one, two)), 60, "they have met")
    lab.submit_each("parent", 40, seconds=0.3)
    lab.await_all_finished(40)
    check_once(lab, 40)
    together = [each for process in (one, two) for each in told(process, "fleet_decision") if "pool_workers" in each]
    assert max(each["pool_workers"] for each in together) <= 6
    two.kill()
    eventually(lambda: not has_met(one), 90, "the silent fleet is left out")
    lab.submit_each("parent", 10, seconds=0.1)
    lab.await_all_finished(50)
    check_once(lab, 50)
    assert one.stop() == 0, one.output()
