"""Draining: after SIGTERM a worker claims nothing more, finishes running jobs, releases the rest and exits in time."""

import random
import signal
import time

import pytest
from tests.faults.harness import Lab, Process

pytestmark = pytest.mark.slow

MARGIN_SECONDS = 5.0
"""How long a process may live beyond its grace period, even if handlers ignore cancellation."""


def test_a_drained_worker_claims_nothing_more_and_finishes_what_runs(lab: Lab) -> None:
    """A deployment must not use up attempts, and must not start jobs that it cannot finish."""
    worker = lab.worker(concurrency=2, grace=20)
    running = [lab.submit("held", n=n) for n in (1, 2)]
    for job in running:
        lab.await_event("start", job=job)
    waiting = lab.submit_each("nap", 5, seconds=0)
    worker.send(signal.SIGTERM)
    lab.await_event("draining", pid=worker.pid)
    lab.release("1-1")
    assert lab.await_finished(running[0])["state"] == "done", "its slot is free now and must stay free"
    lab.release("2-1")
    assert worker.wait_for_exit() == 0
    assert [lab.job(job)["state"] for job in running] == ["done", "done"]
    assert [(lab.job(job)["state"], lab.job(job)["attempts"]) for job in waiting] == [("ready", 0)] * 5
    assert lab.history("start", job=waiting[0]) == []


def test_jobs_claimed_during_the_signal_are_released_without_being_started(lab: Lab) -> None:
    """The claim was under way when the signal arrived. A handler started now would only be stopped again."""
    worker = lab.worker(grace=20)
    jobs = lab.submit_each("nap", 5, options={"delay": 0.5}, seconds=0)
    with lab.locked():
        time.sleep(1.5)  # this is the fault: the jobs become due while the worker's claim waits for the lock
        worker.send(signal.SIGTERM)
        lab.await_event("draining", pid=worker.pid)
    assert worker.wait_for_exit() == 0
    rows = [lab.job(job) for job in jobs]
    assert [row["fence"] for row in rows] == [1] * 5, "nothing was claimed, so this run proves nothing"
    assert lab.history("start") == []
    assert [(row["state"], row["attempts"]) for row in rows] == [("ready", 0)] * 5


def test_jobs_that_outlast_the_grace_period_are_released_without_using_an_attempt(lab: Lab) -> None:
    """A deployment interrupted the job, so the attempt must not count, and another worker may start it at once."""
    worker = lab.worker(grace=0.5)
    jobs = [lab.submit("held", n=1), lab.submit("plain", n=2, seconds=60)]
    for job in jobs:
        lab.await_event("start", job=job)
    assert worker.stop(0.5 + MARGIN_SECONDS) == 0
    for job in jobs:
        row = lab.job(job)
        assert (row["state"], row["attempts"], row["fence"], row["last_error_code"]) == ("ready", 0, 1, None)
    assert lab.history("stopped", job=jobs[0], told=True)


def test_the_command_line_drains_as_well(lab: Lab) -> None:
    """Most workers are started with `leaseway work` and stopped by a process supervisor."""
    worker = lab.command("--grace", "1")
    finishing, unfinished = lab.submit("nap", n=1, seconds=0.5), lab.submit("held", n=2)
    for job in (finishing, unfinished):
        lab.await_event("start", job=job)
    assert worker.stop(1 + MARGIN_SECONDS) == 0, worker.output()
    assert lab.job(finishing)["state"] == "done"
    assert (lab.job(unfinished)["state"], lab.job(unfinished)["attempts"]) == ("ready", 0)


def test_a_second_signal_ends_the_grace_period(lab: Lab) -> None:
    """A user who presses Ctrl-C twice does not want to wait."""
    worker = lab.worker(grace=60)
    job = lab.submit("held", n=1)
    lab.await_event("start", job=job)
    worker.send(signal.SIGINT)
    lab.await_event("draining", pid=worker.pid)
    assert worker.is_alive
    worker.send(signal.SIGINT)
    assert worker.wait_for_exit(MARGIN_SECONDS) == 0
    row = lab.job(job)
    assert (row["state"], row["attempts"]) == ("ready", 0)


def test_draining_at_any_moment_loses_no_job_and_costs_no_attempt(lab: Lab) -> None:
    """Deployments are frequent and can hit a worker in any state."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    short = 2_400
    jobs = lab.submit_each("parent", short, seconds=0.003) + lab.submit_each("parent", 6, seconds=1.0)
    rounds, grace = 6, 0.3
    fleet = [lab.start(concurrency=4, grace=grace) for _ in range(2)]
    for round_ in range(rounds):
        lab.await_count(DONE_PARENTS, (round_ + chance.random()) * short / (rounds + 1))
        leaving = fleet.pop(0)
        lab.await_event("worker_started", pid=leaving.pid)
        assert leaving.stop(grace + MARGIN_SECONDS) == 0
        fleet.append(lab.start(concurrency=4, grace=grace))
    lab.await_count(DONE_PARENTS, len(jobs), 30)
    assert lab.number("SELECT max(attempts) FROM jobs WHERE kind = 'parent'") == 1
    assert lab.number("SELECT count(*) FROM errors") == 0
    assert lab.number("SELECT count(*) FROM jobs WHERE kind = 'receipt'") == len(jobs)
    assert lab.number("SELECT max(fence) FROM jobs WHERE kind = 'parent'") > 1, "no job was ever released"
    stops = lab.history("worker_stopped")
    assert len(stops) == rounds
    assert all(stop["is_clean"] for stop in stops)


DONE_PARENTS = "SELECT count(*) FROM jobs WHERE kind = 'parent' AND state = 'done'"


STUBBORN = ["stubborn", "hanging", "offloaded", "blocking"]
"""Ignores cancellation; never checks for it in its thread; leaves a thread behind; blocks the event loop."""


def test_handlers_that_refuse_to_stop_do_not_keep_a_program_alive(lab: Lab) -> None:
    """Otherwise the supervisor kills the process a minute later, and the job waits until its lease expires."""
    kinds = [kind for kind in STUBBORN if kind != "offloaded"]  # Python waits for that thread when it exits
    workers = {kind: lab.start(queues=[kind], grace=0.5) for kind in kinds}
    still_there = signal_workers(lab, workers)
    assert still_there == []


def test_handlers_that_refuse_to_stop_do_not_keep_the_command_alive(lab: Lab) -> None:
    """A blocked event loop reacts only to the third signal; all other workers must end after the first."""
    workers = {kind: lab.command("--queue", kind, "--grace", "0.5") for kind in STUBBORN}
    still_there = signal_workers(lab, workers, repeat_signal_for=["blocking"])
    assert still_there == []


def signal_workers(lab: Lab, workers: dict[str, Process], repeat_signal_for: list[str] | None = None) -> list[str]:
    """Signal all workers and return the kinds whose worker is still alive. Released jobs must keep their attempts."""
    jobs = {
        kind: lab.submit(kind, n=n, options={"queue": kind}, **SECONDS.get(kind, {})) for n, kind in enumerate(workers)
    }
    for job in jobs.values():
        lab.await_event("start", job=job)
    for kind, worker in workers.items():
        for _ in range(3 if kind in (repeat_signal_for or []) else 1):
            worker.send(signal.SIGTERM)
            time.sleep(0.1)  # signals that arrive together are delivered once
    until = time.monotonic() + 0.5 + 2 * MARGIN_SECONDS + 8
    while time.monotonic() < until and any(worker.is_alive for worker in workers.values()):
        time.sleep(0.05)
    for kind in workers.keys() - {"blocking"}:
        assert (lab.job(jobs[kind])["state"], lab.job(jobs[kind])["attempts"]) == ("ready", 0), kind
    return [kind for kind, worker in workers.items() if worker.is_alive]


SECONDS: dict[str, dict[str, object]] = {"blocking": {"seconds": 60}}


def test_a_worker_whose_store_is_locked_can_still_be_drained(lab: Lab) -> None:
    """It cannot release its jobs then. If it waited for the store forever, the supervisor would have to kill it."""
    worker = lab.worker(patches={"busy_seconds": 0.2}, grace=0.5)
    job = lab.submit("held", n=1)
    lab.await_event("start", job=job)
    with lab.locked():
        lab.await_event("store_unavailable", pid=worker.pid)
        worker.send(signal.SIGTERM)
        worker.wait_for_exit(0.5 + 2 * MARGIN_SECONDS + 3)
