"""SIGKILL: a process ends at any point and cannot clean up."""

import random
import time
from collections import Counter

import pytest
from tests.faults.harness import Lab, Process, eventually
from tests.faults.jobs_app import LEASE_SECONDS

pytestmark = pytest.mark.slow


def test_killing_workers_at_any_moment_loses_no_job_and_accepts_no_result_twice(lab: Lab) -> None:
    """This is the first promise. Each accepted success leaves one receipt, written in the same transaction."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    short, long = 2_400, 12
    jobs = lab.submit_each("parent", short, seconds=0.004) + lab.submit_each("parent", long, seconds=1.0)
    fleet = [lab.start(concurrency=4) for _ in range(3)]
    for round_ in range(8):
        lab.await_count(DONE_PARENTS, (round_ + chance.random()) * short / 9)
        fleet.pop(chance.randrange(len(fleet))).kill()
        fleet.append(lab.start(concurrency=4))
    lab.await_count(DONE_PARENTS, len(jobs), 40)
    starts = Counter(record["job"] for record in lab.history("start"))
    assert set(starts) == set(jobs), "a job is done although no handler ran it"
    assert starts.total() > len(jobs), "no kill hit a running job, so this run proves nothing"
    assert lab.number("SELECT count(*) FROM jobs WHERE kind = 'receipt'") == len(jobs)
    assert lab.number("SELECT count(DISTINCT payload) FROM jobs WHERE kind = 'receipt'") == short
    assert lab.number("SELECT count(*) FROM jobs WHERE kind = 'parent'") == len(jobs)
    fences = dict(lab.rows("SELECT id, fence FROM jobs WHERE kind = 'parent'"))
    assert all(starts[job] <= fences[job] for job in jobs), "a handler ran without a lease"


DONE_PARENTS = "SELECT count(*) FROM jobs WHERE kind = 'parent' AND state = 'done'"


def test_a_killed_workers_job_runs_again_within_a_lease_and_five_seconds(lab: Lab) -> None:
    """The store learns of a dead process only through the expired lease, so another worker must notice it in time."""
    first = lab.worker()
    job = lab.submit("held", n=1)
    lab.await_event("start", job=job, pid=first.pid)
    second = lab.worker()
    killed = time.monotonic()
    first.kill()
    again = lab.await_event("start", LEASE_SECONDS + 5, job=job, fence=2)
    assert again["pid"] == second.pid
    assert again["at"] - killed <= LEASE_SECONDS + 5
    lab.release("1-2")
    row = lab.await_finished(job)
    assert (row["state"], row["attempts"], row["fence"]) == ("done", 2, 2)
    assert lab.rows("SELECT attempt, code FROM errors WHERE job = ?", job) == [(1, "lease_expired")]


def test_a_job_that_kills_its_worker_uses_up_its_attempts(lab: Lab) -> None:
    """Such a job would kill workers forever if attempts were counted only at settlement; the claim counts them."""
    poison = lab.submit("poison", n=666)
    others = lab.submit_each("nap", 20, seconds=0.05)
    worker = lab.start(concurrency=2)

    def supervised() -> bool:
        nonlocal worker
        if not worker.is_alive:
            assert worker.exit_code == 13
            worker = lab.start(concurrency=2)
        return lab.unfinished() == 0

    eventually(supervised, 40, "every job finished")
    row = lab.job(poison)
    assert (row["state"], row["last_error_code"], row["attempts"]) == ("failed", "lease_expired", 3)
    assert [record["attempt"] for record in lab.history("start", job=poison)] == [1, 2, 3]
    assert all(lab.job(other)["state"] == "done" for other in others)
    assert worker.is_alive


def test_acknowledged_jobs_survive_the_death_of_their_submitter(lab: Lab) -> None:
    """An acknowledged submission is durable, even if the process dies during the next one."""
    chance = random.Random(15)
    expected: set[str] = set()
    for batch in (1, 1, 1, 50, 50, 50):
        submitter: Process = lab.start("submit", batch=batch)
        await_acknowledged(lab, submitter, chance.randrange(2, 20))
        submitter.kill()
        stored = {id_ for (id_,) in lab.rows("SELECT id FROM jobs")}
        expected |= {job for record in lab.history("acknowledged", pid=submitter.pid) for job in record["jobs"]}
        assert expected <= stored, "an acknowledged job is missing"
        assert len(stored - expected) in (0, batch), "a part of a batch was stored"
        expected = stored
        lab.check_store()
    lab.worker()
    lab.await_all_finished()
    assert lab.finished() == len(expected)


def await_acknowledged(lab: Lab, submitter: Process, count: int) -> None:
    eventually(lambda: len(lab.history("acknowledged", pid=submitter.pid)) >= count, what=f"{count} answers")
