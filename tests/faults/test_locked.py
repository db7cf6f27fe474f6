"""Another process holds the write lock: writers wait and succeed, or fail without having written anything."""

import threading
import time

import pytest
from tests.faults.harness import Lab, Process, eventually

from leaseway import StoreBusy

pytestmark = pytest.mark.slow


def test_writers_wait_for_a_lock_that_is_held_for_seconds_and_succeed(lab: Lab) -> None:
    """A backup or a vacuum holds the lock for seconds; that must delay submissions, not fail them."""
    lab.submit("quick", n=0)
    submitters = [lab.start("submit", batch=1) for _ in range(2)]
    for submitter in submitters:
        lab.await_event("acknowledged", pid=submitter.pid)
    with lab.locked():
        before = len(lab.history("acknowledged"))
        time.sleep(3)  # this is the fault
        meanwhile = len(lab.history("acknowledged"))
        assert meanwhile - before <= 2, "jobs were stored in spite of the lock"
    for submitter in submitters:
        await_answers(lab, submitter, len(lab.history("acknowledged", pid=submitter.pid)) + 5)
        assert submitter.is_alive, submitter.output()


def await_answers(lab: Lab, submitter: Process, count: int) -> None:
    eventually(lambda: len(lab.history("acknowledged", pid=submitter.pid)) >= count, what=f"{count} answers")


def test_a_submission_that_waited_too_long_is_refused_and_leaves_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that nothing was stored, and that must be true."""
    monkeypatch.setattr("leaseway.stores.sqlite.errors.BUSY_SECONDS_MAX", 0.3)
    lab.submit("quick", n=0)
    with lab.locked(), pytest.raises(StoreBusy, match=r"work\.db"):
        lab.submit("quick", n=1)
    assert lab.number("SELECT count(*) FROM jobs") == 1
    lab.submit("quick", n=2)
    assert lab.number("SELECT count(*) FROM jobs") == 2


def test_a_worker_survives_a_store_that_is_locked_beyond_its_patience(lab: Lab) -> None:
    """It reports that the store is unavailable, retries, and continues when the lock is free. Leases that expired
    meanwhile are lost."""
    worker = lab.worker(patches={"busy_seconds": 0.2})
    running = lab.submit("held", n=1)
    lab.await_event("start", job=running)
    with lab.locked():
        lab.await_event("store_unavailable", pid=worker.pid)
        eventually(lambda: len(lab.history("store_unavailable", pid=worker.pid)) >= 4)
        lab.release("1-1")
        lab.release("1-2")
    assert lab.await_finished(running)["state"] == "done"
    job = lab.submit("quick", n=2)
    assert lab.await_finished(job)["result"] == str(worker.pid)
    assert worker.stop() == 0


def test_many_processes_open_a_new_file_at_once(lab: Lab) -> None:
    """A fleet may start before its store exists. One process creates the store, the others wait, none fails."""
    fleet = [lab.start("work", go="go") for _ in range(6)]
    for process in fleet:
        lab.await_event("ready", pid=process.pid)
    lab.release("go")
    for process in fleet:
        lab.await_event("worker_started", pid=process.pid)
    job = lab.submit("quick", n=1)
    lab.await_finished(job)
    assert all(process.is_alive for process in fleet), [process.output() for process in fleet]


def test_readers_do_not_fail_while_others_open_and_close_the_file(lab: Lab) -> None:
    """The last process that closes the file removes the log, and the next one that opens it recovers. During either,
    reads are locked out for a moment, and readers must wait instead of failing."""
    job = lab.submit("quick", n=0)
    lab.app.close_sync()
    problems: list[BaseException] = []
    over = threading.Event()

    def come_and_go() -> None:
        visitor = lab.another_app()
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
    time.sleep(3)  # this is the fault
    over.set()
    for thread in threads:
        thread.join()
    assert problems == []
