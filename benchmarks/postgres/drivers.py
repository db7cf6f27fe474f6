"""asyncpg or psycopg? The same exchange through both: settle a batch, claim the next.

    ./dev run python -m benchmarks.postgres.drivers

Prints jobs per second, and the client's own CPU time per job, which a worker does not have for its handlers.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg

from benchmarks.harness import median, say
from leaseway.bench.processes import TEXT
from leaseway.domain.job import NewJob
from leaseway.stores.postgres.store import PostgresStore
from leaseway.stores.postgres.submit import psycopg_sql
from leaseway.system import SystemIds
from leaseway.testing.postgres import postgres_server

JOBS = 30_000
ROUNDS = 5
BATCHES = (20, 100, 500)

Fetch = Callable[..., Awaitable[list[Any]]]


async def fill(store: PostgresStore) -> None:
    ids = SystemIds()
    for _ in range(0, JOBS, 5_000):
        await store.jobs.submit(
            [NewJob(id=ids.job(), kind="noop", payload=f'{{"text":"{TEXT}"}}') for _ in range(5_000)]
        )
    async with store.connections.borrow() as connection:
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")


async def drained(fetch: Fetch, sql: str, batch: int) -> tuple[float, float]:
    """Jobs per second, and microseconds of the client's CPU per job."""
    ids: list[str] = []
    token, cpu, began = "", time.process_time(), time.perf_counter()
    while True:  # ends when no job is left to claim
        done = (ids, [token] * len(ids), ["null"] * len(ids)) if ids else (None, None, None)
        token = secrets.token_hex(16)
        rows = await fetch(sql, "bench", ["default"], batch, token, False, *done, *[None] * 10)
        ids = [row[1] for row in rows]
        if not ids:
            return JOBS / (time.perf_counter() - began), (time.process_time() - cpu) / JOBS * 1e6


async def by_asyncpg(store: PostgresStore, sql: str, batch: int) -> tuple[float, float]:
    connection = await asyncpg.connect(store.address.dsn)
    try:
        return await drained(connection.fetch, sql, batch)
    finally:
        await connection.close()


async def by_psycopg(store: PostgresStore, sql: str, batch: int) -> tuple[float, float]:
    async with await psycopg.AsyncConnection.connect(store.address.dsn, autocommit=True) as connection:

        async def fetch(sql: str, *values: object) -> list[Any]:
            cursor = await connection.execute(psycopg_sql(sql), values, prepare=True, binary=True)
            return await cursor.fetchall()

        return await drained(fetch, sql, batch)


async def compare(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    sql = f"SELECT * FROM {store.address.schema}.exchange({', '.join(f'${n}' for n in range(1, 19))})"
    for batch in BATCHES:
        found: dict[str, list[tuple[float, float]]] = {"asyncpg": [], "psycopg": []}
        for number in range(ROUNDS):
            for name, drain in sorted({"asyncpg": by_asyncpg, "psycopg": by_psycopg}.items(), reverse=number % 2 == 1):
                await fill(store)
                found[name].append(await drain(store, sql, batch))
        for name, rounds in found.items():
            rate, cpu = median([rate for rate, _ in rounds]), median([cpu for _, cpu in rounds])
            say(f"batch {batch:3}  {name}  {rate:7,.0f} jobs/s  {cpu:5.1f} µs of client CPU per job")
    await store.close()


if __name__ == "__main__":
    with postgres_server(durable=True) as server:
        asyncio.run(compare(server.url))
