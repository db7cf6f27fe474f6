"""Plain asyncpg on one plain table: the ceiling. No handlers, no checks, no history, one connection.

    python -m benchmarks.postgres.raw insert URL COUNT          one INSERT, one transaction, each
    python -m benchmarks.postgres.raw insert_at_once URL COUNT  the same from sixteen tasks, each on its own connection
    python -m benchmarks.postgres.raw fill URL COUNT
    python -m benchmarks.postgres.raw drain URL '{"batch": 100}'
    python -m benchmarks.postgres.raw pickup URL COUNT

Drain claims a batch, completes it, and so on until no row is left. A claim returns the payloads, as every queue must.
The completion is fenced by the token of the claim.
"""

import asyncio
import json
import random
import sys
import time
import uuid

import asyncpg

from benchmarks.postgres.setups import RawSetup
from benchmarks.processes import done, ready
from leaseway.bench.probe import IDLE_SECONDS, SINGLE_SECONDS_MAX, TASKS
from leaseway.bench.processes import TEXT

PAYLOAD = json.dumps({"text": TEXT}, separators=(",", ":"))

TABLE = """
CREATE TABLE job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL DEFAULT 'default',
    priority smallint NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    state smallint NOT NULL DEFAULT 0, attempts int NOT NULL DEFAULT 0, token uuid, until timestamptz,
    finished_at timestamptz, payload text NOT NULL);
CREATE INDEX job_pending ON job (queue, priority, run_at, id) WHERE state = 0;
CREATE INDEX job_leased ON job (until) WHERE state = 1;
"""

INSERT = "INSERT INTO job (payload) VALUES ($1)"

# An array, not IN (SELECT …): with a generic plan the latter would scan the whole table.
CLAIM = """
UPDATE job
   SET state = 1, attempts = attempts + 1, token = $1, until = clock_timestamp() + interval '15 s'
 WHERE id = ANY (ARRAY(
       SELECT id FROM job WHERE state = 0 AND queue = 'default' AND run_at <= clock_timestamp()
        ORDER BY priority, run_at, id LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id, attempts, payload
"""

# The token is the whole fence. An additional `state = 1` would lead the planner through the dead rows of that index.
COMPLETE = """
UPDATE job SET state = 2, token = NULL, until = NULL, finished_at = clock_timestamp()
 WHERE id = ANY ($1) AND token = $2
"""


async def insert(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLE)
    await connection.execute(INSERT, PAYLOAD)
    statement = await connection.prepare(INSERT)
    done_count, started_at, seconds = 0, time.perf_counter(), 0.0
    while done_count < count and seconds < SINGLE_SECONDS_MAX:
        await statement.fetch(PAYLOAD)
        done_count += 1
        seconds = time.perf_counter() - started_at
    await connection.close()
    print(json.dumps({"count": done_count, "seconds": seconds}))


async def insert_at_once(url: str, count: int) -> None:
    connections = [await asyncpg.connect(url) for _ in range(TASKS)]
    await connections[0].execute(TABLE)
    statements = [await connection.prepare(INSERT) for connection in connections]

    async def insert_some(statement: asyncpg.prepared_stmt.PreparedStatement) -> None:
        for _ in range(count // TASKS):
            await statement.fetch(PAYLOAD)

    started_at = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for statement in statements:
            group.create_task(insert_some(statement))
    seconds = time.perf_counter() - started_at
    for connection in connections:
        await connection.close()
    print(json.dumps({"count": count // TASKS * TASKS, "seconds": seconds}))


async def fill(url: str, count: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLE)
    await connection.execute("INSERT INTO job (payload) SELECT $1 FROM generate_series(1, $2)", PAYLOAD, count)
    await connection.close()


async def drain(url: str, setup: RawSetup) -> None:
    connection = await asyncpg.connect(url)
    claim, complete = await connection.prepare(CLAIM), await connection.prepare(COMPLETE)
    count = 0
    ready()
    begun_ns = time.monotonic_ns()
    while True:  # ends when no row is left to claim
        token = uuid.uuid4()
        rows = await claim.fetch(token, setup.batch)
        if not rows:
            break
        await complete.fetch([row[0] for row in rows], token)
        count += len(rows)
    done(count, begun_ns, time.monotonic_ns())
    await connection.close()


async def pickup(url: str, count: int) -> None:
    """Insert one row, and claim it on another connection as soon as it exists: no notification and no failed poll. Each
    from an idle system, as when leaseway is measured.
    """
    submitter, worker = await asyncpg.connect(url), await asyncpg.connect(url)
    await submitter.execute(TABLE)
    insert, claim = await submitter.prepare(INSERT), await worker.prepare(CLAIM)
    chance, waits_ms = random.Random(count), []
    for _ in range(count):
        await asyncio.sleep(chance.uniform(*IDLE_SECONDS))
        sent_ns = time.monotonic_ns()
        await insert.fetch(PAYLOAD)
        await claim.fetch(uuid.uuid4(), 1)
        waits_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
    await submitter.close()
    await worker.close()
    print(json.dumps({"waits_ms": waits_ms}))


def main(name: str, url: str, argument: str) -> None:
    if name == "drain":
        asyncio.run(drain(url, RawSetup(**json.loads(argument))))
    else:
        verbs = {"insert": insert, "insert_at_once": insert_at_once, "fill": fill, "pickup": pickup}
        asyncio.run(verbs[name](url, int(argument)))


if __name__ == "__main__":
    main(*sys.argv[1:])
