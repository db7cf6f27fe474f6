"""The jobs of the fault tests and the history that their handlers record.

The harness starts this module as a program (`python -m tests.faults.jobs_app MODE SETTINGS`), `leaseway work` imports
it as `tests.faults.jobs_app:app`, and the tests import it to submit the same jobs. Store and history are set by
environment variables, so that all processes of a test share them.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from leaseway import App, Context, SyncContext, UsageError

URL = "FAULTS_URL"
HISTORY = "FAULTS_HISTORY"
PATCHES = "FAULTS_PATCHES"
LEASE_SECONDS = 2
ATTEMPTS_PLENTY = 100
"""More attempts than kills, so a job that fails has failed by mistake."""


class History:
    """One file per process, one line per event. A line is written in one call, so a kill cannot cut it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[int, int] = {}

    def write(self, event: str, **facts: object) -> None:
        pid = os.getpid()
        if pid not in self._files:
            path = self.folder / f"{pid}.jsonl"
            self._files[pid] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # The monotonic clock is shared by all processes of a machine and is never set.
        line = {"event": event, "pid": pid, "at": time.monotonic(), **facts}
        os.write(self._files[pid], json.dumps(line, default=str).encode() + b"\n")

    def release(self, name: str) -> None:
        """Let every process that waits for this name continue."""
        (self.folder / f"release-{name}").touch()

    def is_released(self, name: str) -> bool:
        return (self.folder / f"release-{name}").exists()


class HistoryEvents:
    """Writes leaseway's own events to the same history."""

    def __init__(self, history: History) -> None:
        self._history = history

    def emit(self, name: str, /, **facts: object) -> None:
        self._history.write(name, **facts)


def make_app(url: str, folder: Path) -> App:
    history = History(folder)
    app = App(url, events=HistoryEvents(history))

    def started(ctx: Context | SyncContext, n: int) -> None:
        history.write("start", job=ctx.id, n=n, attempt=ctx.attempt, fence=ctx.fence)

    def ended(ctx: Context | SyncContext, n: int) -> int:
        history.write("end", job=ctx.id, n=n, fence=ctx.fence)
        return os.getpid()

    def stopped(ctx: Context | SyncContext, n: int) -> None:
        history.write("stopped", job=ctx.id, n=n, fence=ctx.fence, told=ctx.cancelled)

    async def slept(ctx: Context, n: int, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            stopped(ctx, n)
            raise

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    async def quick(n: int) -> int:
        return os.getpid()

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    async def nap(ctx: Context, n: int, seconds: float) -> int:
        started(ctx, n)
        await slept(ctx, n, seconds)
        return ended(ctx, n)

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    async def receipt(n: int) -> None:
        """Exists once per accepted success of `parent`, so the store itself shows how many there were."""

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    async def parent(ctx: Context, n: int, seconds: float) -> int:
        started(ctx, n)
        await slept(ctx, n, seconds)
        ctx.submit(receipt.options(queue="receipts").bind(n=n))
        return ended(ctx, n)

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    async def held(ctx: Context, n: int) -> int:
        """Runs until the test releases this delivery."""
        started(ctx, n)
        while not history.is_released(f"{n}-{ctx.fence}"):
            await slept(ctx, n, 0.02)
        return ended(ctx, n)

    @app.job(lease=LEASE_SECONDS, attempts=3)
    async def poison(ctx: Context, n: int) -> None:
        started(ctx, n)
        os._exit(13)

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    async def blocking(ctx: Context, n: int, seconds: float) -> int:
        started(ctx, n)
        time.sleep(seconds)  # noqa: ASYNC251 - the mistake that this job stands for
        return ended(ctx, n)

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    def plain(ctx: SyncContext, n: int, seconds: float) -> int | None:
        started(ctx, n)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if ctx.cancelled:
                stopped(ctx, n)
                return None
            time.sleep(0.02)
        return ended(ctx, n)

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    async def stubborn(ctx: Context, n: int) -> None:
        """Ignores cancellation."""
        started(ctx, n)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                stopped(ctx, n)

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    def hanging(ctx: SyncContext, n: int) -> None:
        """Never checks whether it is cancelled."""
        started(ctx, n)
        time.sleep(3600)

    @app.job(lease=LEASE_SECONDS, attempts=ATTEMPTS_PLENTY)
    async def offloaded(ctx: Context, n: int) -> None:
        """Stops at once, but leaves a thread that asyncio and Python wait for when they exit."""
        started(ctx, n)
        await asyncio.to_thread(time.sleep, 3600)

    return app


app = make_app(os.environ.get(URL, "memory://"), Path(os.environ.get(HISTORY, ".")))


# -- modes of a process ------------------------------------------------------------------------------------------------


def work(poll_seconds: float | None = None, go: str | None = None, **settings: Any) -> None:
    """A worker. With `go`, it reports that it is ready and starts when the test releases that name."""
    history = History(Path(os.environ[HISTORY]))
    if go is not None:
        history.write("ready")
        while not history.is_released(go):
            time.sleep(0.001)
    if poll_seconds is not None:
        patch_poll(poll_seconds)
    app.work(**settings)


def work_and_wait(job: str, poll_seconds: float) -> None:
    """A worker, and in the same process four tasks that wait for a job that never ends."""
    patch_poll(poll_seconds)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(app.wait(job))
            group.create_task(app.run_worker())

    asyncio.run(main())


def tick(**settings: Any) -> None:
    """A worker whose schedule fires every second; cronsim accepts seconds as an additional first field."""

    @app.cron("* * * * * *", missed="all")
    @app.job(lease=LEASE_SECONDS)
    async def ticked(fire_time: str) -> int:
        return os.getpid()

    app.work(**settings)


def submit(batch: int = 1) -> None:
    """Submit forever and record the acknowledged jobs."""
    history = History(Path(os.environ[HISTORY]))
    jobs = [app.bind("quick", {"n": n}) for n in range(batch)]
    while True:
        answers = app.submit_many_sync(jobs)
        history.write("acknowledged", jobs=[answer.id for answer in answers])


CHILD_SECONDS_MAX = 30
"""The harness does not know a forked child, so an alarm ends it if it hangs."""


def fork(used_before: bool) -> None:
    """Fork and submit in both processes; with `used_before`, the parent has used the app before it forks."""
    history = History(Path(os.environ[HISTORY]))

    def submit(count: int) -> None:
        for n in range(count):
            history.write("acknowledged", jobs=[app.submit_sync(app.bind("quick", {"n": n})).id])

    if used_before:
        submit(5)
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS_MAX)
        try:
            submit(20)
        except UsageError as error:
            history.write("refused", message=str(error))
        os._exit(0)
    submit(20)
    _, status = os.waitpid(child, 0)
    submit(5)
    sys.exit(os.waitstatus_to_exitcode(status))


MODES: dict[str, Callable[..., None]] = {
    "work": work,
    "work_and_wait": work_and_wait,
    "tick": tick,
    "submit": submit,
    "fork": fork,
}


# -- patches that remove a safeguard or force a rare moment ------------------------------------------------------------


def patch_poll(seconds: float) -> None:
    make_worker = app.worker

    def worker(**settings: Any) -> Any:
        made = make_worker(**settings)
        made._settings = msgspec.structs.replace(made._settings, poll_seconds=seconds)
        return made

    app.worker = worker  # type: ignore[method-assign]


def patch_busy(seconds: float) -> None:
    import leaseway.stores.sqlite.errors as errors

    errors.BUSY_SECONDS_MAX = seconds


def patch_waiting(_: object) -> None:
    """Wait for locks with SQLite's own busy handler."""
    from leaseway.stores.sqlite.connection import Connection

    connect = Connection.connect

    def connect_and_wait(self: Connection) -> sqlite3.Connection:
        connection = connect(self)
        connection.execute("PRAGMA busy_timeout = 10000")
        return connection

    Connection.connect = connect_and_wait  # type: ignore[method-assign]


def patch_reply(seconds: float) -> None:
    """Block the worker's event loop after it has claimed `nap` jobs and before it has read the reply."""
    import leaseway.stores.sqlite.connection as threads
    from leaseway.domain.exchange import ExchangeReply
    from leaseway.domain.ids import JobId

    deliver = threads.deliver
    history = History(Path(os.environ[HISTORY]))

    def block(jobs: list[JobId]) -> None:
        history.write("blocked", jobs=jobs)
        time.sleep(seconds)

    def block_and_deliver(future: asyncio.Future[Any], answer: threads.Answer) -> None:
        naps = (
            [lease.id for lease in answer[0].leases if lease.kind == "nap"] if type(answer[0]) is ExchangeReply else []
        )
        if naps:
            threads.deliver = deliver  # only once: the lease-renewal thread must continue
            future.get_loop().call_soon_threadsafe(block, naps)
        deliver(future, answer)

    threads.deliver = block_and_deliver


APPLY = {"busy_seconds": patch_busy, "own_waiting": patch_waiting, "blocked_reply": patch_reply}


def main() -> None:
    for name, value in json.loads(os.environ.get(PATCHES, "{}")).items():
        APPLY[name](value)
    MODES[sys.argv[1]](**json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
