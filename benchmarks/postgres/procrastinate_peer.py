"""Procrastinate by its own async worker: no-op async jobs with an argument of 200 bytes.

    python -m benchmarks.postgres.procrastinate_peer fill URL COUNT
    python -m benchmarks.postgres.procrastinate_peer drain URL '{"concurrency": 10, …}'

Its best case: the worker neither listens nor waits for more jobs, and logs nothing.
"""

import asyncio
import json
import logging
import sys
import time
from typing import Any

import uvloop
from procrastinate import App, PsycopgConnector
from procrastinate.manager import JobManager

from benchmarks.postgres.setups import ProcrastinateSetup
from benchmarks.processes import done, ready
from leaseway.bench.processes import TEXT

FILL_BATCH = 1_000


class TimedManager(JobManager):
    """Records when the first job was fetched and the last one finished."""

    count = begun_ns = ended_ns = 0

    async def fetch_job(self, *arguments: Any, **options: Any) -> Any:
        self.begun_ns = self.begun_ns or time.monotonic_ns()
        return await super().fetch_job(*arguments, **options)

    async def finish_job(self, *arguments: Any, **options: Any) -> None:
        await super().finish_job(*arguments, **options)
        self.count += 1
        self.ended_ns = time.monotonic_ns()


def app_at(url: str, connections: int) -> tuple[App, Any]:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=connections, max_size=connections))

    @app.task(name="noop")
    async def noop(text: str) -> None:
        pass

    return app, noop


async def fill(url: str, count: int) -> None:
    app, noop = app_at(url, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for start in range(0, count, FILL_BATCH):
            size = min(FILL_BATCH, count - start)
            await noop.batch_defer_async(*({"text": TEXT} for _ in range(size)))


async def drain(url: str, setup: ProcrastinateSetup) -> None:
    app, _ = app_at(url, setup.concurrency + 1)
    async with app.open_async():
        manager = app.job_manager = TimedManager(app.connector)
        ready()
        await app.run_worker_async(
            concurrency=setup.concurrency,
            wait=False,
            listen_notify=False,
            delete_jobs=setup.delete_jobs,
            install_signal_handlers=False,
        )
    done(manager.count, manager.begun_ns, manager.ended_ns)


def main(name: str, url: str, argument: str) -> None:
    logging.disable(logging.ERROR)
    if name == "fill":
        asyncio.run(fill(url, int(argument)))
        return
    setup = ProcrastinateSetup(**json.loads(argument))
    (uvloop.run if setup.uvloop else asyncio.run)(drain(url, setup))


if __name__ == "__main__":
    main(*sys.argv[1:])
