"""A process that stands still, whole or in its event loop only, while its leases run on."""

import signal

import pytest
from tests.faults.harness import Lab, Process, eventually
from tests.faults.jobs_app import LEASE_SECONDS

pytestmark = pytest.mark.slow


def freeze_until_another_has_finished(lab: Lab) -> tuple[Process, str, int]:
    """The first worker is stopped in the middle of a job; a second one takes it over and finishes it."""
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


def test_a_frozen_worker_that_wakes_up_is_told_and_works_on(lab: Lab) -> None:
    """It must not believe in a lease that ran out while it could not look, nor stay confused afterwards."""
    first, job, second_pid = freeze_until_another_has_finished(lab)
    first.send(signal.SIGCONT)
    told = lab.await_event("stopped", job=job, pid=first.pid)
    assert told["told"] is True, "the handler was cancelled, and ctx.cancelled did not say so"
    next_job = lab.submit("quick", n=2)
    assert lab.await_finished(next_job)["result"] == str(first.pid)
    row = lab.job(job)
    assert (row["stage"], row["result"], row["attempts"], row["fence"]) == (3, str(second_pid), 2, 2)
    assert first.stop() == 0


def test_a_late_result_of_a_frozen_worker_is_refused(lab: Lab) -> None:
    """The handler finds its work complete in the very moment of waking: its result comes, and comes too late."""
    first, job, second_pid = freeze_until_another_has_finished(lab)
    lab.release("1-1")
    first.send(signal.SIGCONT)
    # Settlement and renewal race here. Either is refused, and the worker says so.
    eventually(lambda: lab.history("settlement_refused", job=job) + lab.history("lease_lost", job=job))
    next_job = lab.submit("quick", n=2)
    assert lab.await_finished(next_job)["result"] == str(first.pid)
    row = lab.job(job)
    assert (row["stage"], row["result"], row["attempts"], row["fence"]) == (3, str(second_pid), 2, 2)
    assert lab.number("SELECT done FROM lanes") == 2


def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(lab: Lab) -> None:
    """Users will call time.sleep and requests.get in async handlers. The lease is kept from another thread."""
    first = lab.worker()
    job = lab.submit("blocking", n=1, seconds=3 * LEASE_SECONDS)
    lab.await_event("start", job=job, pid=first.pid)
    second = lab.worker()
    row = lab.await_finished(job, 4 * LEASE_SECONDS + 5)
    assert (row["stage"], row["result"], row["attempts"], row["fence"]) == (3, str(first.pid), 1, 1)
    assert [record["pid"] for record in lab.history("start", job=job)] == [first.pid]
    assert second.is_alive


def test_jobs_that_wait_behind_a_blocked_loop_are_not_run_on_a_lapsed_lease(lab: Lab) -> None:
    """What a worker leased ahead lapses while its loop stands still. It belongs to others then: starting it anyway
    runs it twice, and counting it as a delivery fails jobs that never had their chance."""
    first = lab.worker(concurrency=1)
    lab.submit_each("quick", 2_000)  # the worker learns that jobs are quick, and leases ahead
    blocker = lab.submit("blocking", n=1, seconds=2 * LEASE_SECONDS, options={"priority": -1})
    behind = lab.submit_each("nap", 30, options={"priority": -2}, seconds=0.0)
    lab.await_event("start", job=blocker)
    leased = {id_ for (id_,) in lab.rows("SELECT id FROM jobs WHERE kind = 'nap' AND stage = 2")}
    lab.worker()
    lab.await_all_finished()
    print(f"{len(leased)} jobs were leased ahead")
    starts = [record["job"] for record in lab.history("start") if record["job"] in behind]
    assert sorted(starts) == sorted(behind)
    assert first.is_alive


def test_a_job_that_only_waited_behind_a_blocked_loop_loses_no_attempt(lab: Lab) -> None:
    """It was leased ahead and never started. With one attempt it would end failed, and nobody ever ran it."""
    lab.worker(concurrency=1)
    lab.submit_each("quick", 2_000)
    blocker = lab.submit("blocking", n=1, seconds=2 * LEASE_SECONDS, options={"priority": -1})
    behind = lab.submit_each("nap", 30, options={"priority": -2, "attempts": 1}, seconds=0.0)
    lab.await_event("start", job=blocker)
    lab.worker()
    lab.await_all_finished()
    assert {(lab.job(job)["stage"], lab.job(job)["attempts"]) for job in behind} == {(3, 1)}


def test_a_claim_whose_reply_waits_behind_a_blocked_loop_goes_back_uncounted(lab: Lab) -> None:
    """Its jobs are neither on the shelf nor running, and nobody in that process can know of them but by asking."""
    first = lab.worker(patches={"blocked_reply": 2 * LEASE_SECONDS})
    jobs = lab.submit_each("nap", 30, options={"attempts": 1}, seconds=0.0)
    behind = lab.await_event("blocked", pid=first.pid)["jobs"]
    second = lab.worker()
    lab.await_all_finished()
    assert {(lab.job(job)["stage"], lab.job(job)["attempts"]) for job in jobs} == {(3, 1)}
    assert second.stop() == 0
    last = lab.submit("nap", n=0, seconds=0.0)
    lab.await_event("end", job=last, pid=first.pid)  # the first one has read its reply, and gone on
    starts = [(record["job"], record["pid"]) for record in lab.history("start") if record["job"] in behind]
    assert sorted(starts) == sorted((job, second.pid) for job in behind)
    assert first.stop() == 0
