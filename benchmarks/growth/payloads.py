"""Payloads of one size through leaseway, or through bare inserts and reads of the same bytes, in a process of its own.

    python -m benchmarks.growth.payloads leaseway URL BYTES COUNT     submit in bulk, then drain with one worker
    python -m benchmarks.growth.payloads raw URL BYTES COUNT          insert in batches, then read all by key

The text is random hexadecimal digits, so that no store can compress it to nothing. Each prints JSON: jobs per second of
both steps together, without the start of the process, and the CPU of this process per job.
"""

import asyncio
import json
import random
import sqlite3
import sys
import time
from urllib.parse import urlsplit

import asyncpg

from leaseway import App
from leaseway.telemetry.log import NoEvents

BATCH = 100
TABLE = "CREATE TABLE raw (id text PRIMARY KEY, payload text NOT NULL)"


class Watch:
    def __init__(self) -> None:
        self._begun, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, count: int) -> dict[str, float]:
        seconds, cpu_seconds = time.perf_counter() - self._begun, time.process_time() - self._cpu
        return {"count": count, "seconds": seconds, "cpu_us": cpu_seconds * 1e6 / count}


def text_of(size: int) -> str:
    return random.Random(size).randbytes(size // 2 + 1).hex()[: size - len('{"text":""}')]


async def through_leaseway(url: str, size: int, count: int) -> dict[str, float]:
    app, left, text = App(url, events=NoEvents()), count + 1, text_of(size)

    @app.job
    async def noop(text: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.drain()

    worker = app.worker()
    async with app:
        await noop.submit_many([{"text": ""}])  # the first one opens the lane and warms up
        watch = Watch()
        await noop.submit_many({"text": text} for _ in range(count))
        await app.run_worker(worker)
        return watch.figures(count)


async def through_postgres(url: str, size: int, count: int) -> dict[str, float]:
    connection, payload = await asyncpg.connect(url), json.dumps({"text": text_of(size)})
    await connection.execute(TABLE)
    batches = [
        [f"{number:026d}" for number in range(first, min(first + BATCH, count))] for first in range(0, count, BATCH)
    ]
    watch = Watch()
    for ids in batches:
        await connection.execute("INSERT INTO raw SELECT id, $2 FROM unnest($1::text[]) AS id", ids, payload)
    for ids in batches:
        await connection.fetch("SELECT payload FROM raw WHERE id = ANY ($1)", ids)
    figures = watch.figures(count)
    await connection.close()
    return figures


async def through_sqlite(url: str, size: int, count: int) -> dict[str, float]:
    connection, payload = (
        sqlite3.connect(urlsplit(url).path[1:], isolation_level=None),
        json.dumps({"text": text_of(size)}),
    )
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -16000"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute(TABLE)
    watch = Watch()
    for first in range(0, count, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        rows = [(f"{number:026d}", payload) for number in range(first, min(first + BATCH, count))]
        connection.executemany("INSERT INTO raw VALUES (?, ?)", rows)
        connection.execute("COMMIT")
    for number in range(count):
        connection.execute("SELECT payload FROM raw WHERE id = ?", [f"{number:026d}"]).fetchone()
    figures = watch.figures(count)
    connection.close()
    return figures


def main(who: str, url: str, size: str, count: str) -> None:
    raw = through_sqlite if url.startswith("sqlite") else through_postgres
    run = through_leaseway if who == "leaseway" else raw
    print(json.dumps(asyncio.run(run(url, int(size), int(count)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
