"""Handlers that are plain functions run in threads, which cannot be interrupted."""

import pytest
from tests.faults.harness import Lab
from tests.faults.jobs_app import LEASE_SECONDS

pytestmark = pytest.mark.slow


def test_a_plain_function_that_runs_three_leases_keeps_its_lease(lab: Lab) -> None:
    """Long plain functions are common in imports and reports."""
    first = lab.worker()
    job = lab.submit("plain", n=1, seconds=3 * LEASE_SECONDS)
    lab.await_event("start", job=job, pid=first.pid)
    lab.worker()
    row = lab.await_finished(job, 4 * LEASE_SECONDS + 5)
    assert (row["state"], row["result"], row["attempts"], row["fence"]) == ("done", str(first.pid), 1, 1)
    assert len(lab.history("start", job=job)) == 1


def test_a_plain_function_sees_that_it_was_cancelled(lab: Lab) -> None:
    """A thread cannot be interrupted, so `ctx.cancelled` is its only way to learn of the cancellation."""
    lab.worker()
    job = lab.submit("plain", n=1, seconds=60)
    lab.await_event("start", job=job)
    lab.cancel(job)
    assert lab.await_event("stopped", job=job)["told"] is True
    assert lab.await_finished(job)["state"] == "cancelled"


def test_a_plain_function_that_takes_too_long_fails_with_timeout_and_is_told(lab: Lab) -> None:
    """The attempt must end on time although its thread continues, and the thread must learn that it timed out."""
    worker = lab.worker(concurrency=1)
    job = lab.submit("plain", n=1, seconds=60, options={"timeout": 0.3, "attempts": 1})
    row = lab.await_finished(job)
    assert (row["state"], row["last_error_code"], row["attempts"]) == ("failed", "timeout", 1)
    assert lab.await_event("stopped", job=job)["told"] is True
    next_job = lab.submit("plain", n=2, seconds=0)
    assert lab.await_finished(next_job)["result"] == str(worker.pid)
