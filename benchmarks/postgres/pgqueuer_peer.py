"""PgQueuer by its own queue manager, in its drain mode: no-op async jobs with a payload of 200 bytes.

    python -m benchmarks.postgres.pgqueuer_peer fill URL COUNT
    python -m benchmarks.postgres.pgqueuer_peer drain URL '{"batch_size": 500, …}'

Its best case: the time runs from its first claim to the end of its last completion. What it does before and after, such
as checking its tables, does not count.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.qm import QueueManager
from pgqueuer.domain.models import Job
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.ports.driver import Driver

from benchmarks.postgres.setups import PgqueuerSetup
from benchmarks.processes import done, ready
from leaseway.bench.processes import TEXT

PAYLOAD = json.dumps({"text": TEXT}, separators=(",", ":")).encode()
FILL_BATCH = 5_000
LOOK_AGAIN = timedelta(seconds=0.01)
"""How soon it checks whether the other process left jobs. Its default is 30 s."""


class TimedQueries(Queries):
    """Records when the first job was claimed and the last one completed."""

    count = begun_ns = ended_ns = 0

    async def dequeue(self, *arguments: Any, **options: Any) -> list[Job]:
        self.begun_ns = self.begun_ns or time.monotonic_ns()
        return await super().dequeue(*arguments, **options)

    async def log_jobs(self, job_status: Any) -> None:
        await super().log_jobs(job_status)
        self.count += len(job_status)
        self.ended_ns = time.monotonic_ns()


async def fill(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for start in range(0, count, FILL_BATCH):
        size = min(FILL_BATCH, count - start)
        await queries.enqueue(["noop"] * size, [PAYLOAD] * size, [0] * size)
    await connection.close()


@asynccontextmanager
async def driver_of(url: str, setup: PgqueuerSetup) -> AsyncIterator[Driver]:
    if setup.pool:
        async with asyncpg.create_pool(url, min_size=setup.pool, max_size=setup.pool) as pool:
            yield AsyncpgPoolDriver(pool)
    else:
        connection = await asyncpg.connect(url)
        yield AsyncpgDriver(connection)
        await connection.close()


async def drain(url: str, setup: PgqueuerSetup) -> None:
    async with driver_of(url, setup) as driver:
        queries = TimedQueries(driver)
        manager = QueueManager(queries)

        @manager.entrypoint("noop")
        async def noop(job: Job) -> None:
            pass

        ready()
        await manager.run(
            dequeue_timeout=LOOK_AGAIN,
            batch_size=setup.batch_size,
            mode=QueueExecutionMode.drain,
            log_aggregation_interval=timedelta(0),
        )
    done(queries.count, queries.begun_ns, queries.ended_ns)


def main(name: str, url: str, argument: str) -> None:
    logging.disable(logging.WARNING)
    if name == "fill":
        asyncio.run(fill(url, int(argument)))
        return
    setup = PgqueuerSetup(**json.loads(argument))
    (uvloop.run if setup.uvloop else asyncio.run)(drain(url, setup))


if __name__ == "__main__":
    main(*sys.argv[1:])
