"""Many processes use one file: they share the work fairly, and a schedule fires once."""

from collections import Counter
from datetime import datetime, timedelta

import pytest
from tests.faults.harness import Lab, eventually

pytestmark = pytest.mark.slow

WORKERS = 4
JOBS = 40_000


def shares(lab: Lab, **patches: object) -> list[int]:
    """How many jobs each of four processes settled while all of them were working."""
    lab.submit_each("quick", JOBS)
    fleet = [lab.start("work", patches, go="go", concurrency=20) for _ in range(WORKERS)]
    for process in fleet:
        lab.await_event("ready", pid=process.pid)
    lab.release("go")
    lab.await_all_finished(60)
    order = [int(result) for (result,) in lab.rows("SELECT result FROM jobs ORDER BY finished_at, seq")]
    # Count from the first job of the last process, and leave out the end, where a worker may find no job.
    begun = max(order.index(process.pid) if process.pid in order else 0 for process in fleet)
    assert begun < JOBS / 2, "three processes had done half of the work before the fourth started"
    counts = Counter(order[max(begun, JOBS // 10) : JOBS * 9 // 10])
    print(f"shares of {sum(counts.values())} jobs: {[counts[process.pid] for process in fleet]}")
    return [counts[process.pid] for process in fleet]


def test_four_processes_share_one_file_fairly(lab: Lab) -> None:
    """SQLite grants its lock to the first that asks, which is usually the process that has just released it, and its
    busy handler waits longer after every attempt."""
    counts = shares(lab)
    fair = sum(counts) / WORKERS
    assert min(counts) >= fair / 2, f"one process got {min(counts)} of {sum(counts)} jobs: {counts}"


def test_a_schedule_fires_once_however_many_processes_run_it(lab: Lab) -> None:
    """All processes try to fire in the same millisecond. Each fire time must produce exactly one job."""
    fleet = [lab.start("tick") for _ in range(3)]
    for process in fleet:
        lab.await_event("worker_started", pid=process.pid)
    eventually(lambda: lab.finished() >= 3, 30, "three fires")
    fleet[0].kill()
    eventually(lambda: lab.finished() >= 6, 30, "six fires although one process was killed")
    for process in fleet[1:]:
        assert process.stop() == 0
    fires = sorted(time for (time,) in lab.rows("SELECT payload ->> 'fire_time' FROM jobs WHERE kind = 'ticked'"))
    assert len(set(fires)) == len(fires), "two jobs have the same fire time"
    first = datetime.fromisoformat(fires[0])
    assert [datetime.fromisoformat(fire) for fire in fires] == [
        first + timedelta(seconds=second) for second in range(len(fires))
    ], "a fire time was missed"
