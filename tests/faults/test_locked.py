"""Another process holds the write lock: with patience everything succeeds, without it nothing is half done."""

import threading
import time

import pytest
from tests.faults.harness import Lab, Process, eventually

from leaseway import StoreBusy

pytestmark = pytest.mark.slow


def test_writers_wait_for_a_lock_that_is_held_for_seconds_and_succeed(lab: Lab) -> None:
    """A backup or a vacuum takes its time. Nobody should notice but by waiting."""
    lab.submit("quick", n=0)
    submitters = [lab.start("submit", batch=1) for _ in range(2)]
    for submitter in submitters:
        lab.await_event("acknowledged", pid=submitter.pid)
    with lab.locked():
        before = len(lab.history("acknowledged"))
        time.sleep(3)  # the fault itself, not a proof
        meanwhile = len(lab.history("acknowledged"))
        assert meanwhile - before <= 2, "the lock was not a lock"
    for submitter in submitters:
        await_answers(lab, submitter, len(lab.history("acknowledged", pid=submitter.pid)) + 5)
        assert submitter.is_alive, submitter.said()


def await_answers(lab: Lab, submitter: Process, count: int) -> None:
    eventually(lambda: len(lab.history("acknowledged", pid=submitter.pid)) >= count, what=f"{count} answers")


def test_a_submission_that_waited_too_long_is_refused_and_leaves_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is told that nothing happened, so nothing may have happened."""
    monkeypatch.setattr("leaseway.stores.sqlite.connection.BUSY_SECONDS_MAX", 0.3)
    lab.submit("quick", n=0)
    with lab.locked(), pytest.raises(StoreBusy, match=r"work\.db"):
        lab.submit("quick", n=1)
    assert lab.number("SELECT count(*) FROM jobs") == 1
    lab.submit("quick", n=2)
    assert lab.number("SELECT count(*) FROM jobs") == 2


def test_a_worker_survives_a_store_that_is_locked_beyond_its_patience(lab: Lab) -> None:
    """It says that the store is unavailable, asks again, and goes on when the lock is free; leases that ran out
    meanwhile are honoured for nobody."""
    worker = lab.worker(patches={"busy_seconds": 0.2})
    running = lab.submit("held", n=1)
    lab.await_event("start", job=running)
    with lab.locked():
        lab.await_event("store_unavailable", pid=worker.pid)
        eventually(lambda: len(lab.history("store_unavailable", pid=worker.pid)) >= 4)
        lab.release("1-1")
        lab.release("1-2")
    assert lab.await_finished(running)["stage"] == 3
    job = lab.submit("quick", n=2)
    assert lab.await_finished(job)["result"] == str(worker.pid)
    assert worker.stop() == 0


def test_many_processes_open_a_new_file_at_once(lab: Lab) -> None:
    """A fleet starts before its store exists. One of them creates it, the others wait, none of them fails."""
    fleet = [lab.start("work", go="go") for _ in range(6)]
    for process in fleet:
        lab.await_event("ready", pid=process.pid)
    lab.release("go")
    for process in fleet:
        lab.await_event("worker_started", pid=process.pid)
    job = lab.submit("quick", n=1)
    lab.await_finished(job)
    assert all(process.is_alive for process in fleet), [process.said() for process in fleet]


def test_readers_do_not_fail_while_others_come_and_go(lab: Lab) -> None:
    """The last process that closes the file cleans up behind it, and the next one that opens it repairs: for a
    moment nobody else may read. That moment must be waited for, not reported as an error."""
    job = lab.submit("quick", n=0)
    lab.app.close_sync()
    problems: list[BaseException] = []
    over = threading.Event()

    def come_and_go() -> None:
        visitor = lab.visitor()
        while not over.is_set():
            try:
                visitor.sync(visitor.find(job))
                visitor.close_sync()
            except BaseException as error:  # noqa: BLE001 - shown below
                problems.append(error)
                return

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(3)  # the fault itself, not a proof
    over.set()
    for thread in threads:
        thread.join()
    assert problems == []
