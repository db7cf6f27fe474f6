"""Plain sqlite3 on leaseway's schema: the ceiling. No Python handlers, no checks, no threads, no event loop.

python -m benchmarks.raw insert FILE COUNT    one INSERT, one transaction, each
python -m benchmarks.raw drain FILE COUNT     settle the last 500 and claim the next 500 in one transaction
"""

import json
import secrets
import sqlite3
import sys
import time
from pathlib import Path

from leaseway.bench.processes import TEXT
from leaseway.stores.sqlite.schema import migrate
from leaseway.system import SystemIds

BATCH = 500
PAYLOAD = f'{{"text":"{TEXT}"}}'

INSERT = """
INSERT INTO jobs (id, lane, state, kind, priority, run_at, attempts_max, lease_us, created_at, payload)
VALUES (?, 1, 'ready', 'noop', 0, ?, 5, 15000000, ?, ?) ON CONFLICT (id) DO NOTHING
"""

SETTLE = """
UPDATE jobs
   SET state = 'done', finished_at = ?, last_token = token, token = NULL, owner = NULL, until = NULL, result = 'null'
 WHERE seq = ? AND token = ?
"""

CLAIM = """
UPDATE jobs
   SET state = 'leased', attempts = attempts + 1, fence = fence + 1, token = ?, owner = 'raw', until = ? + lease_us
 WHERE seq IN (SELECT seq FROM jobs WHERE lane = 1 AND state = 'ready' ORDER BY priority DESC, run_at, seq LIMIT ?)
RETURNING seq, id, kind, payload, attempts, attempts_max
"""


def connect(file: Path) -> sqlite3.Connection:
    """Full durability and the same cache as leaseway."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -16000")
    connection.execute("BEGIN IMMEDIATE")
    migrate(connection, str(file))
    connection.execute("INSERT INTO lanes (id, queue, tenant) VALUES (1, 'default', 'default') ON CONFLICT DO NOTHING")
    connection.execute("COMMIT")
    return connection


def new_rows(count: int) -> list[tuple[object, ...]]:
    ids, now = SystemIds(), now_us()
    return [(ids.job(), now, now, PAYLOAD) for _ in range(count)]


def insert(connection: sqlite3.Connection, count: int) -> float:
    rows = new_rows(count)
    started_at = time.perf_counter()
    for row in rows:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(INSERT, row)
        connection.execute("COMMIT")
    return time.perf_counter() - started_at


def drain(connection: sqlite3.Connection, count: int) -> float:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, new_rows(count))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    held: list[tuple[int, str]] = []
    started_at = time.perf_counter()
    while True:  # ends when no job is left to claim
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(SETTLE, [(now_us(), seq, token) for seq, token in held])
        token = secrets.token_hex(16)
        held = [(row[0], token) for row in connection.execute(CLAIM, (token, now_us(), BATCH)).fetchall()]
        connection.execute("COMMIT")
        if not held:
            return time.perf_counter() - started_at


def now_us() -> int:
    return time.time_ns() // 1_000


def main(name: str, file: str, count: str) -> None:
    connection = connect(Path(file))
    seconds = {"insert": insert, "drain": drain}[name](connection, int(count))
    print(json.dumps({"count": int(count), "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
