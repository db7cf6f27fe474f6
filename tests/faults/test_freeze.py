"""A process or its event loop stops for a while, and its leases expire meanwhile."""

import signal

import pytest
from tests.faults.harness import Lab, Process, eventually
from tests.faults.jobs_app import LEASE_SECONDS

pytestmark = pytest.mark.slow


def freeze_until_another_has_finished(lab: Lab) -> tuple[Process, str, int]:
    """Stop the first worker during a job; a second worker takes the job over and finishes it."""
    first = lab.worker()
    job = lab.submit("held", n=1)
    lab.await_event("start", job=job, pid=first.pid)
    second = lab.worker()
    first.send(signal.SIGSTOP)
    again = lab.await_event("start", LEASE_SECONDS + 5, job=job, fence=2)
    assert again["pid"] == second.pid
    lab.release("1-2")
    lab.await_finished(job)
    assert second.stop() == 0
    return first, job, second.pid


def test_a_frozen_worker_learns_that_it_lost_its_lease_and_continues(lab: Lab) -> None:
    """It must not rely on a lease that expired while it was stopped, and must be able to run other jobs."""
    first, job, second_pid = freeze_until_another_has_finished(lab)
    first.send(signal.SIGCONT)
    told = lab.await_event("stopped", job=job, pid=first.pid)
    assert told["told"] is True, "the handler was cancelled, but ctx.cancelled was false"
    next_job = lab.submit("quick", n=2)
    assert lab.await_finished(next_job)["result"] == str(first.pid)
    row = lab.job(job)
    assert (row["state"], row["result"], row["attempts"], row["fence"]) == ("done", str(second_pid), 2, 2)
    assert first.stop() == 0


def test_a_late_result_of_a_frozen_worker_is_refused(lab: Lab) -> None:
    """The handler finishes right after the worker continues, when another worker has already settled the job."""
    first, job, second_pid = freeze_until_another_has_finished(lab)
    lab.release("1-1")
    first.send(signal.SIGCONT)
    # Settlement and renewal race here. Whichever comes first is refused, and the worker reports it.
    eventually(lambda: lab.history("settlement_refused", job=job) + lab.history("lease_lost", job=job))
    next_job = lab.submit("quick", n=2)
    assert lab.await_finished(next_job)["result"] == str(first.pid)
    row = lab.job(job)
    assert (row["state"], row["result"], row["attempts"], row["fence"]) == ("done", str(second_pid), 2, 2)
    assert lab.number("SELECT done FROM lanes") == 2


def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(lab: Lab) -> None:
    """Users will call time.sleep and requests.get in async handlers, so another thread renews the leases."""
    first = lab.worker()
    job = lab.submit("blocking", n=1, seconds=3 * LEASE_SECONDS)
    lab.await_event("start", job=job, pid=first.pid)
    second = lab.worker()
    row = lab.await_finished(job, 4 * LEASE_SECONDS + 5)
    assert (row["state"], row["result"], row["attempts"], row["fence"]) == ("done", str(first.pid), 1, 1)
    assert [record["pid"] for record in lab.history("start", job=job)] == [first.pid]
    assert second.is_alive


def test_jobs_behind_a_blocked_loop_do_not_run_on_an_expired_lease(lab: Lab) -> None:
    """Leases of prefetched jobs expire while the event loop is blocked, and other workers may claim the jobs. Starting
    them anyway would run them twice; counting the delivery would fail jobs that never ran."""
    first = lab.worker(concurrency=1)
    lab.submit_each("quick", 2_000)  # the worker measures that jobs are short, and prefetches
    blocker = lab.submit("blocking", n=1, seconds=2 * LEASE_SECONDS, options={"priority": -1})
    behind = lab.submit_each("nap", 30, options={"priority": -2}, seconds=0.0)
    lab.await_event("start", job=blocker)
    leased = {id_ for (id_,) in lab.rows("SELECT id FROM jobs WHERE kind = 'nap' AND state = 'leased'")}
    lab.worker()
    lab.await_all_finished()
    print(f"{len(leased)} jobs were prefetched")
    starts = [record["job"] for record in lab.history("start") if record["job"] in behind]
    assert sorted(starts) == sorted(behind)
    assert first.is_alive


def test_a_job_behind_a_blocked_loop_keeps_its_attempt(lab: Lab) -> None:
    """It was prefetched and never started. With a single attempt it would fail without having run."""
    lab.worker(concurrency=1)
    lab.submit_each("quick", 2_000)
    blocker = lab.submit("blocking", n=1, seconds=2 * LEASE_SECONDS, options={"priority": -1})
    behind = lab.submit_each("nap", 30, options={"priority": -2, "attempts": 1}, seconds=0.0)
    lab.await_event("start", job=blocker)
    lab.worker()
    lab.await_all_finished()
    assert {(lab.job(job)["state"], lab.job(job)["attempts"]) for job in behind} == {("done", 1)}


def test_a_claim_whose_reply_waits_behind_a_blocked_loop_is_released(lab: Lab) -> None:
    """The worker does not know these jobs yet, so its lease-renewal thread must ask the store for them."""
    first = lab.worker(patches={"blocked_reply": 2 * LEASE_SECONDS})
    jobs = lab.submit_each("nap", 30, options={"attempts": 1}, seconds=0.0)
    behind = lab.await_event("blocked", pid=first.pid)["jobs"]
    second = lab.worker()
    lab.await_all_finished()
    assert {(lab.job(job)["state"], lab.job(job)["attempts"]) for job in jobs} == {("done", 1)}
    assert second.stop() == 0
    last = lab.submit("nap", n=0, seconds=0.0)
    lab.await_event("end", job=last, pid=first.pid)  # the first worker has read its reply and continues
    starts = [(record["job"], record["pid"]) for record in lab.history("start") if record["job"] in behind]
    assert sorted(starts) == sorted((job, second.pid) for job in behind)
    assert first.stop() == 0
