"""Actions in one process reach workers in another process quickly."""

import time

import pytest
from tests.faults.harness import Lab

pytestmark = pytest.mark.slow


def test_cancelling_reaches_a_handler_in_another_process(lab: Lab) -> None:
    """Users cancel jobs that cost money. The documentation promises about two seconds."""
    lab.worker()
    job = lab.submit("held", n=1)
    lab.await_event("start", job=job)
    asked = time.monotonic()
    assert lab.cancel(job) == "requested"
    told = lab.await_event("stopped", job=job)
    assert told["told"] is True
    assert told["at"] - asked < 3
    row = lab.await_finished(job)
    assert (row["state"], row["attempts"]) == ("cancelled", 1)


def test_an_idle_worker_in_another_process_is_woken_by_a_submission(lab: Lab) -> None:
    """The worker polls only every thirty seconds here, so the job must start through a notification."""
    lab.worker(poll_seconds=30)
    warm = lab.submit("nap", n=0, seconds=0)
    lab.await_finished(warm)
    for n in range(1, 6):
        time.sleep(0.05)  # the worker must become idle, because a busy one claims without a notification
        asked = time.monotonic()
        job = lab.submit("nap", n=n, seconds=0)
        start = lab.await_event("start", job=job)
        assert start["at"] - asked < 1
        lab.await_finished(job)


def test_an_idle_worker_is_woken_when_a_delayed_job_becomes_due(lab: Lab) -> None:
    """Nothing is written at that moment, so the worker must know in advance when the job is due."""
    lab.worker(poll_seconds=30)
    lab.await_finished(lab.submit("nap", n=0, seconds=0))
    asked = time.monotonic()
    job = lab.submit("nap", n=1, seconds=0, options={"delay": 0.7})
    start = lab.await_event("start", job=job)
    assert 0.6 < start["at"] - asked < 2


def test_tasks_that_wait_for_a_result_do_not_take_the_notification_from_the_worker(lab: Lab) -> None:
    """Several waiting tasks share one notification in a process, and each of them must receive it."""
    never = lab.submit("quick", n=0, options={"delay": 3600})
    worker = lab.start("work_and_wait", job=never, poll_seconds=30)
    lab.await_event("worker_started", pid=worker.pid)
    for n in range(1, 6):
        time.sleep(0.05)  # the worker must become idle, because a busy one claims without a notification
        asked = time.monotonic()
        job = lab.submit("nap", n=n, seconds=0)
        start = lab.await_event("start", job=job, seconds=40)
        assert start["at"] - asked < 1
        lab.await_finished(job)
