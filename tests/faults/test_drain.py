"""SIGTERM: claim nothing more, let what runs finish, give the rest back uncounted, and be gone in time."""

import random
import signal
import time

import pytest
from tests.faults.harness import Lab, Process

pytestmark = pytest.mark.slow

MARGIN_SECONDS = 5.0
"""What a drained process may take beyond its grace period: handlers that resist get no more."""


def test_a_drained_worker_claims_nothing_more_and_finishes_what_runs(lab: Lab) -> None:
    """A deployment must not cost anybody an attempt, and must not start what it cannot finish."""
    worker = lab.worker(concurrency=2, grace=20)
    running = [lab.submit("held", n=n) for n in (1, 2)]
    for job in running:
        lab.await_event("start", job=job)
    waiting = lab.submit_each("nap", 5, seconds=0)
    worker.send(signal.SIGTERM)
    lab.await_event("draining", pid=worker.pid)
    lab.release("1-1")
    assert lab.await_finished(running[0])["stage"] == 3, "its slot is free now, and must stay so"
    lab.release("2-1")
    assert worker.ended() == 0
    assert [lab.job(job)["stage"] for job in running] == [3, 3]
    assert [(lab.job(job)["stage"], lab.job(job)["attempts"]) for job in waiting] == [(0, 0)] * 5
    assert lab.history("start", job=waiting[0]) == []


def test_what_a_claim_brings_after_the_signal_is_given_back_unstarted(lab: Lab) -> None:
    """The claim was on its way when the signal came. A handler that is started now would only be stopped again."""
    worker = lab.worker(grace=20)
    jobs = lab.submit_each("nap", 5, options={"delay": 0.5}, seconds=0)
    with lab.locked():
        time.sleep(1.5)  # the fault itself: the jobs become due, and the worker's claim waits for the lock
        worker.send(signal.SIGTERM)
        lab.await_event("draining", pid=worker.pid)
    assert worker.ended() == 0
    rows = [lab.job(job) for job in jobs]
    assert [row["fence"] for row in rows] == [1] * 5, "nothing was claimed: this test did not test"
    assert lab.history("start") == []
    assert [(row["stage"], row["attempts"]) for row in rows] == [(0, 0)] * 5


def test_what_does_not_finish_within_the_grace_period_is_given_back_uncounted(lab: Lab) -> None:
    """The job never had its chance: the attempt is not its own, and it is ready for the next worker at once."""
    worker = lab.worker(grace=0.5)
    jobs = [lab.submit("held", n=1), lab.submit("plain", n=2, seconds=60)]
    for job in jobs:
        lab.await_event("start", job=job)
    assert worker.stop(0.5 + MARGIN_SECONDS) == 0
    for job in jobs:
        row = lab.job(job)
        assert (row["stage"], row["attempts"], row["fence"], row["last_error_code"]) == (0, 0, 1, None)
    assert lab.history("stopped", job=jobs[0], told=True)


def test_the_command_line_drains_as_well(lab: Lab) -> None:
    """Most workers are started by `leaseway work`, and most of them are stopped by a supervisor."""
    worker = lab.command("--grace", "1")
    finishing, unfinished = lab.submit("nap", n=1, seconds=0.5), lab.submit("held", n=2)
    for job in (finishing, unfinished):
        lab.await_event("start", job=job)
    assert worker.stop(1 + MARGIN_SECONDS) == 0, worker.said()
    assert lab.job(finishing)["stage"] == 3
    assert (lab.job(unfinished)["stage"], lab.job(unfinished)["attempts"]) == (0, 0)


def test_a_second_signal_hurries(lab: Lab) -> None:
    """An operator who presses Ctrl-C twice does not want to wait for the grace period."""
    worker = lab.worker(grace=60)
    job = lab.submit("held", n=1)
    lab.await_event("start", job=job)
    worker.send(signal.SIGINT)
    lab.await_event("draining", pid=worker.pid)
    assert worker.is_alive
    worker.send(signal.SIGINT)
    assert worker.ended(MARGIN_SECONDS) == 0
    row = lab.job(job)
    assert (row["stage"], row["attempts"]) == (0, 0)


def test_draining_at_any_moment_loses_no_job_and_costs_no_attempt(lab: Lab) -> None:
    """Deployments come at the worst moment, and often."""
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
    assert lab.number("SELECT max(fence) FROM jobs WHERE kind = 'parent'") > 1, "nothing was ever given back"
    stops = lab.history("worker_stopped")
    assert len(stops) == rounds
    assert all(stop["is_clean"] for stop in stops)


DONE_PARENTS = "SELECT count(*) FROM jobs WHERE kind = 'parent' AND stage = 3"


STUBBORN = ["stubborn", "hanging", "offloaded", "blocking"]
"""Ignores its cancellation; never looks up from its thread; left a thread behind; blocks the event loop."""


def test_handlers_that_refuse_to_stop_do_not_keep_a_program_alive(lab: Lab) -> None:
    """The supervisor would kill it anyway, a minute later, and the job's lease would have to expire."""
    kinds = [kind for kind in STUBBORN if kind != "offloaded"]  # Python itself waits for that one when it exits
    workers = {kind: lab.start(queues=[kind], grace=0.5) for kind in kinds}
    still_there = told_to_stop(lab, workers)
    assert still_there == []


def test_handlers_that_refuse_to_stop_do_not_keep_the_command_alive(lab: Lab) -> None:
    """A blocked loop hears only the third signal; everything else must give way to the first."""
    workers = {kind: lab.command("--queue", kind, "--grace", "0.5") for kind in STUBBORN}
    still_there = told_to_stop(lab, workers, hurry=["blocking"])
    assert still_there == []


def told_to_stop(lab: Lab, workers: dict[str, Process], hurry: list[str] | None = None) -> list[str]:
    """The kinds whose worker did not obey. What they gave back must be uncounted."""
    jobs = {
        kind: lab.submit(kind, n=n, options={"queue": kind}, **SECONDS.get(kind, {})) for n, kind in enumerate(workers)
    }
    for job in jobs.values():
        lab.await_event("start", job=job)
    for kind, worker in workers.items():
        for _ in range(3 if kind in (hurry or []) else 1):
            worker.send(signal.SIGTERM)
            time.sleep(0.1)  # signals that come together count as one
    until = time.monotonic() + 0.5 + 2 * MARGIN_SECONDS + 8
    while time.monotonic() < until and any(worker.is_alive for worker in workers.values()):
        time.sleep(0.05)
    for kind in workers.keys() - {"blocking"}:
        assert (lab.job(jobs[kind])["stage"], lab.job(jobs[kind])["attempts"]) == (0, 0), kind
    return [kind for kind, worker in workers.items() if worker.is_alive]


SECONDS: dict[str, dict[str, object]] = {"blocking": {"seconds": 60}}


def test_a_worker_whose_store_is_locked_can_still_be_drained(lab: Lab) -> None:
    """Nothing can be handed back then. Waiting for ever for the store would end in kill -9, with the same result."""
    worker = lab.worker(patches={"busy_seconds": 0.2}, grace=0.5)
    job = lab.submit("held", n=1)
    lab.await_event("start", job=job)
    with lab.locked():
        lab.await_event("store_unavailable", pid=worker.pid)
        worker.send(signal.SIGTERM)
        worker.ended(0.5 + 2 * MARGIN_SECONDS + 3)
