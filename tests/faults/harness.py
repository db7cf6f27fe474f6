"""A laboratory for one test: a store, processes that use it, and the means to observe both.

Each process records what its handlers did. The test waits for conditions on that history and on the store, and checks
both at the end. No test concludes anything from elapsed time, except that a promised upper bound was kept.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.faults.jobs_app import HISTORY, PATCHES, URL, make_app

from leaseway import App, Submitted
from leaseway.domain.ids import JobId

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
Record = dict[str, Any]


def eventually(condition: Callable[[], T], seconds: float = 20, what: str = "") -> T:
    """Wait until the condition is true and return its value; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"did not happen within {seconds} s: {what or condition}"
        time.sleep(0.01)


class Process:
    """One process that a test has started."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._popen = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        self.pid = self._popen.pid

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait for the process to end."""
        self._popen.kill()
        self._popen.wait()

    def stop(self, seconds: float = 20) -> int:
        """Send SIGTERM and return the exit code."""
        self.send(signal.SIGTERM)
        return self.wait_for_exit(seconds)

    def wait_for_exit(self, seconds: float = 20) -> int:
        """Wait for the process to end on its own and return the exit code."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"process {self.pid} is still running after {seconds} s") from error

    def output(self) -> str:
        return self.log.read_text(errors="replace")


class Lab:
    def __init__(self, folder: Path, db: Path | None = None) -> None:
        self.folder = folder / "history"
        self.folder.mkdir()
        self.db = folder / "work.db" if db is None else db
        self.url = f"sqlite:///{self.db}"
        self.app: App = make_app(self.url, self.folder)
        self.processes: list[Process] = []

    # -- processes --------------------------------------------------------------------------------------------------

    def start(self, mode: str = "work", patches: dict[str, object] | None = None, **settings: object) -> Process:
        program = [sys.executable, "-m", "tests.faults.jobs_app", mode, json.dumps(settings)]
        return self.run(program, patches)

    def command(self, *options: str) -> Process:
        """Start `leaseway work` as a process supervisor does."""
        program = "import sys; from leaseway.cli.main import main; sys.exit(main())"
        return self.run([sys.executable, "-c", program, "work", "tests.faults.jobs_app:app", *options])

    def run(self, command: list[str], patches: dict[str, object] | None = None) -> Process:
        settings = {URL: self.url, HISTORY: str(self.folder), PATCHES: json.dumps(patches or {})}
        log = self.folder / f"process-{len(self.processes)}.log"
        process = Process(command, {**os.environ, **settings}, log)
        self.processes.append(process)
        return process

    def worker(self, patches: dict[str, object] | None = None, **settings: object) -> Process:
        """Start a worker and wait until it has recorded its start."""
        process = self.start("work", patches, **settings)
        self.await_event("worker_started", pid=process.pid)
        return process

    def workers(self, count: int, **settings: object) -> list[Process]:
        processes = [self.start(**settings) for _ in range(count)]  # type: ignore[arg-type]
        for process in processes:
            self.await_event("worker_started", pid=process.pid)
        return processes

    def release(self, name: str) -> None:
        (self.folder / f"release-{name}").touch()

    def another_app(self) -> App:
        """A second app on the same file, as in another program."""
        return make_app(self.url, self.folder)

    # -- submitting -------------------------------------------------------------------------------------------------

    def submit(self, kind: str, /, options: dict[str, Any] | None = None, **arguments: object) -> str:
        answer: Submitted = self.app.submit_sync(self.app.bind(kind, arguments, **(options or {})))
        return answer.id

    def submit_each(
        self, kind: str, count: int, /, options: dict[str, Any] | None = None, **arguments: object
    ) -> list[str]:
        """Submit `count` jobs with n = 0, 1, 2, …"""
        jobs = [self.app.bind(kind, {"n": n, **arguments}, **(options or {})) for n in range(count)]
        return [answer.id for answer in self.app.submit_many_sync(jobs)]

    def cancel(self, id_: str) -> str:
        async def cancel() -> str:
            return await (await self.app.store()).operations.cancel(JobId(id_))

        return self.app.sync(cancel())

    # -- observing --------------------------------------------------------------------------------------------------

    def history(self, event: str | None = None, **facts: object) -> list[Record]:
        """Records of all processes that have the given values, oldest first."""
        records = (record for path in self.folder.glob("*.jsonl") for record in lines(path))
        wanted = facts if event is None else {"event": event, **facts}
        found = [record for record in records if all(record.get(name) == fact for name, fact in wanted.items())]
        return sorted(found, key=lambda record: float(record["at"]))

    def await_event(self, event: str, seconds: float = 20, **facts: object) -> Record:
        found = eventually(lambda: self.history(event, **facts), seconds, f"{event} {facts}")
        return found[0]

    def rows(self, sql: str, *values: object) -> list[Any]:
        connection = sqlite3.connect(self.db, timeout=20)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    def number(self, sql: str, *values: object) -> int:
        return int(self.rows(sql, *values)[0][0])

    def job(self, id_: str) -> Record:
        """The stored row of a job, by column."""
        connection = sqlite3.connect(self.db, timeout=20)
        connection.row_factory = sqlite3.Row
        try:
            return dict(connection.execute("SELECT * FROM jobs WHERE id = ?", (id_,)).fetchone())
        finally:
            connection.close()

    def finished(self, state: str = "done") -> int:
        return self.number("SELECT count(*) FROM jobs WHERE state = ?", state)

    def unfinished(self) -> int:
        return self.number("SELECT count(*) FROM jobs WHERE finished_at IS NULL")

    def await_all_finished(self, seconds: float = 40) -> None:
        eventually(lambda: self.unfinished() == 0, seconds, "every job finished")

    def await_count(self, sql: str, count: float, seconds: float = 20) -> None:
        eventually(lambda: self.number(sql) >= count, seconds, f"{count:.0f} of {sql}")

    def await_finished(self, id_: str, seconds: float = 20) -> Record:
        eventually(lambda: self.job(id_)["finished_at"] is not None, seconds, f"job {id_} finished")
        return self.job(id_)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the write lock of the file, as a process with a long transaction does."""
        connection = sqlite3.connect(self.db, timeout=20, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        finally:
            connection.close()

    # -- checking ---------------------------------------------------------------------------------------------------

    def check_store(self) -> None:
        """Check the rules that hold whatever happened to the processes."""
        assert self.rows("PRAGMA integrity_check") == [("ok",)]
        assert self.rows(COUNTED) == self.rows(RECOUNTED), "the counters of the lanes differ from their jobs"
        stray = self.rows(
            "SELECT id FROM jobs WHERE (state = 'leased') <> (token IS NOT NULL)"
            " OR (state IN ('done', 'failed', 'cancelled')) <> (finished_at IS NOT NULL)"
        )
        assert stray == [], "a leased job has no token, or a finished job has no time of completion"

    def close(self) -> None:
        for process in self.processes:
            if process.is_alive:
                process.kill()
        self.app.close_sync()


@contextmanager
def checked(lab: Lab) -> Iterator[Lab]:
    """Close the laboratory after the test and check its store, whatever the test was about."""
    try:
        yield lab
    finally:
        lab.close()
        for process in lab.processes:
            if output := process.output():
                print(f"--- output of process {process.pid} (exit {process.exit_code}):\n{output[-4000:]}")
    lab.check_store()


COUNTED = "SELECT id, ready, scheduled, leased, done, failed, cancelled FROM lanes ORDER BY id"
RECOUNTED = """
SELECT lanes.id,
       count(*) FILTER (WHERE state = 'ready'), count(*) FILTER (WHERE state = 'scheduled'),
       count(*) FILTER (WHERE state = 'leased'), count(*) FILTER (WHERE state = 'done'),
       count(*) FILTER (WHERE state = 'failed'), count(*) FILTER (WHERE state = 'cancelled')
  FROM lanes LEFT JOIN jobs ON jobs.lane = lanes.id GROUP BY lanes.id ORDER BY lanes.id
"""


def lines(path: Path) -> Iterator[Record]:
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):  # the last line may be incomplete
            yield json.loads(line)
