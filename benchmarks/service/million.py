"""A store with a million jobs, written with SQL, because submitting them would take minutes.

Four in five have finished, over three days. Most belong to a few large tenants, queues and kinds; a few belong to
`tiny`, `quiet` and `rare`, for searches that match little. Counters and lanes are as the store would write them.
"""

import asyncio
import sqlite3
from contextlib import closing
from typing import NamedTuple

import psycopg

from leaseway import App

FILL_WIDTH = 26
"""The prefix of their ids. The ids of new jobs are larger."""

LANE = """CASE WHEN n % 50000 = 7 THEN 'tiny' ELSE 'tenant-' || (n % 20) END AS tenant,
  CASE WHEN n % 50000 = 11 THEN 'quiet' ELSE 'queue-' || ((n / 20) % 5) END AS queue"""
STATE = """CASE WHEN n > {alive}
  THEN CASE WHEN n > {all} - 1000 THEN 'leased' WHEN n % 10 = 1 THEN 'scheduled' ELSE 'ready' END
  WHEN n % 10 = 4 THEN 'failed' WHEN n % 50 = 5 THEN 'cancelled' ELSE 'done' END"""
REST = """CASE WHEN n % 100000 = 13 THEN 'rare' ELSE 'kind-' || (n % 12) END AS kind,
  CASE WHEN n % 10 <> 4 THEN NULL WHEN n % 100000 = 4 THEN 'Odd' ELSE 'Error-' || (n % 3) END AS error"""
PAYLOAD = """'{"text": "' || substr('{filler}', 1, 100) || '"}'"""


class Filled(NamedTuple):
    jobs: int
    ids: list[str]
    """A few of them, in every state."""


def fill(url: str, jobs: int) -> Filled:
    """Fills an empty store with this number of jobs."""
    asyncio.run(prepare(url))
    scheme, _, rest = url.partition(":///")
    if scheme == "sqlite":
        fill_sqlite(rest, jobs)
    else:
        fill_postgres(url, jobs)
    step = max(jobs // 23, 1)
    return Filled(jobs, [id_of(number) for number in range(1, jobs, step)])


async def prepare(url: str) -> None:
    """Creates the tables."""
    app = App(url)
    await app.store()
    await app.close()


def id_of(number: int) -> str:
    return f"{number:0{FILL_WIDTH}}"


def facts_of(jobs: int) -> str:
    """The values of job `n`, in SQL that both databases understand."""
    state = STATE.replace("{alive}", str(jobs * 4 // 5)).replace("{all}", str(jobs))
    return f"{LANE}, {state} AS state_name, {REST}, {PAYLOAD.replace('{filler}', 'x' * 100)} AS payload"


# -- SQLite ---------------------------------------------------------------------------------------------------------

SQLITE_FACTS = """
CREATE TEMP TABLE facts AS
WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < {jobs})
SELECT n, printf('%026d', n) AS id, {facts}, {now} - ({jobs} - n) * 250000 AS at FROM numbers;
ALTER TABLE facts RENAME COLUMN state_name TO state;
INSERT INTO lanes (queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled)
SELECT queue, tenant, '', sum(state = 'ready'), sum(state = 'scheduled'), sum(state = 'leased'), sum(state = 'done'),
       sum(state = 'failed'), sum(state = 'cancelled')
  FROM facts GROUP BY queue, tenant;
INSERT INTO jobs (id, lane, state, kind, priority, run_at, attempts, attempts_max, lease_us, created_at, finished_at,
                  token, owner, until, last_error_code, last_error_at, payload, result)
SELECT facts.id, lanes.id, state, kind, 0, CASE state WHEN 'scheduled' THEN {now} + 86400000000 ELSE at END,
       state NOT IN ('ready', 'scheduled'), 5, 15000000, at,
       CASE WHEN state IN ('done', 'failed', 'cancelled') THEN at + 1000 END,
       CASE state WHEN 'leased' THEN 'token' END, CASE state WHEN 'leased' THEN 'worker-' || (n % 20) END,
       CASE state WHEN 'leased' THEN {now} + 3600000000 END, error, CASE WHEN error IS NOT NULL THEN at END, payload,
       CASE state WHEN 'done' THEN '1' END
  FROM facts JOIN lanes USING (queue, tenant) ORDER BY n;
INSERT INTO errors (job, attempt, at, code, message, traceback)
SELECT id, 1, at, error, 'it is broken', 'Traceback' FROM facts WHERE state = 'failed';
DROP TABLE facts;
"""


def fill_sqlite(path: str, jobs: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (now,) = connection.execute("SELECT unixepoch() * 1000000").fetchone()
        connection.executescript("PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; PRAGMA temp_store = MEMORY;")
        connection.executescript(f"BEGIN; {filled_in(SQLITE_FACTS, jobs, now)} COMMIT;")


# -- PostgreSQL -----------------------------------------------------------------------------------------------------

POSTGRES_FACTS = """
CREATE TEMP TABLE facts AS
SELECT *, state_name::job_state AS state FROM (
  SELECT n, lpad(n::text, 26, '0') AS id, {facts}, {now} - ({jobs} - n) * 250000 AS at
    FROM generate_series(1, {jobs}::bigint) AS n) AS numbered;
SELECT create_history_partitions({now} - days * 86400000000) FROM generate_series(1, 4) AS days;
INSERT INTO flows (queue, tenant) SELECT DISTINCT queue, tenant FROM facts;
INSERT INTO lanes (flow, queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled)
SELECT flows.id, queue, tenant, '', count(*) FILTER (WHERE state = 'ready'),
       count(*) FILTER (WHERE state = 'scheduled'), count(*) FILTER (WHERE state = 'leased'),
       count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'failed'),
       count(*) FILTER (WHERE state = 'cancelled')
  FROM facts JOIN flows USING (queue, tenant) GROUP BY flows.id, queue, tenant;
INSERT INTO jobs (run_at, until, lane, attempts, state, priority, id, token, owner, last_error_code, last_error_at)
SELECT CASE state WHEN 'scheduled' THEN {now} + 86400000000 ELSE at END,
       CASE state WHEN 'leased' THEN {now} + 3600000000 END, lanes.id,
       CASE state WHEN 'leased' THEN 1 ELSE 0 END, state, 0, facts.id,
       CASE state WHEN 'leased' THEN 'token' END,
       CASE state WHEN 'leased' THEN 'worker-' || (n % 20) END, error, CASE WHEN error IS NOT NULL THEN at END
  FROM facts JOIN lanes USING (queue, tenant) WHERE state < 'done' ORDER BY n;
INSERT INTO payloads (id, created_at, lease_us, attempts_max, kind, payload)
SELECT id, at, 15000000, 5, kind, payload FROM facts WHERE state < 'done' ORDER BY n;
INSERT INTO history (seq, run_at, created_at, finished_at, lease_us, lane, attempts, attempts_max, fence, state,
                     priority, cancel_requested, id, kind, last_error_code, last_error_at, payload, result, bytes)
SELECT n, at, at, at + 1000, 15000000, lanes.id, 1, 5, 1, state, 0, false,
       facts.id, kind, error, CASE WHEN error IS NOT NULL THEN at END, payload, CASE state WHEN 'done' THEN '1' END,
       octet_length(payload) + (state = 'done')::integer
  FROM facts JOIN lanes USING (queue, tenant) WHERE state >= 'done' ORDER BY n;
SELECT setval('job_seq', {jobs});
DROP TABLE facts;
"""


def fill_postgres(url: str, jobs: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = leaseway; SET synchronous_commit = off; SET work_mem = '256MB'")
        found = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
        assert found is not None
        connection.execute(filled_in(POSTGRES_FACTS, jobs, found[0]).encode())
        connection.execute("VACUUM (ANALYZE)")


def filled_in(script: str, jobs: int, now: int) -> str:
    return script.replace("{facts}", facts_of(jobs)).replace("{jobs}", str(jobs)).replace("{now}", str(now))
