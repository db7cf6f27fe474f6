"""The health checks of `leaseway doctor` for a PostgreSQL schema.

    server ─► primary ─► schema ─► owners ─► connections ─► transactions ─► snapshots ─► dead rows ─► partitions ─►
    counters ─► clock ─► jobs

The checks stop at the first one that makes the following ones meaningless.
"""

from collections.abc import AsyncIterator, Sequence

import asyncpg

from leaseway.domain.budgets.balances import judge_ledger
from leaseway.domain.errors import LeasewayError, SchemaVersions
from leaseway.domain.health import (
    STUCK_US_MAX,
    Finding,
    find_causes,
    judge_clock,
    judge_counters,
    judge_failed,
    judge_leases,
    judge_waiting,
    ok,
    problem,
    render_bytes,
    render_duration,
    warning,
)
from leaseway.domain.ids import SECOND_US
from leaseway.domain.lane import LaneCount, Pause
from leaseway.stores.postgres import rows
from leaseway.stores.postgres.budget_rows import parse_audit
from leaseway.stores.postgres.connection import Connections
from leaseway.stores.postgres.definitions import parse_worker
from leaseway.stores.postgres.schema import read_versions
from leaseway.stores.postgres.statements import statements_for

BOUND_SECONDS = 5.0
"""The timeout of a check that reads all rows, unless it is a deep one."""
DEEP_SECONDS = 3_600.0
SNAPSHOT_SECONDS_MAX = 300
DEFAULT_ROWS_MAX = 100_000

ROOM = """
SELECT sum(numbackends)::integer,
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
  FROM pg_stat_database
"""
MAY_SEE = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"
OLDEST_SNAPSHOT = """
SELECT pid, coalesce(nullif(application_name, ''), usename, 'unknown'),
       extract(epoch FROM clock_timestamp() - xact_start)::bigint
  FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
 ORDER BY xact_start LIMIT 1
"""
IDLE_HOLDERS = """
SELECT pid, coalesce(nullif(application_name, ''), usename, 'unknown'),
       extract(epoch FROM clock_timestamp() - state_change)::bigint
  FROM pg_stat_activity
 WHERE state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '1 second'
   AND pid IN (SELECT pid FROM pg_locks JOIN pg_class ON pg_class.oid = relation
                WHERE relnamespace = to_regnamespace($1) AND granted AND mode <> 'AccessShareLock')
 ORDER BY state_change
"""
SIZES = """
SELECT pg_total_relation_size('{0}.jobs') + pg_total_relation_size('{0}.payloads'),
       (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits
         WHERE inhparent = '{0}.history'::regclass),
       (SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables
         WHERE schemaname = '{1}' AND relname IN ('jobs', 'payloads')),
       (SELECT coalesce(sum(n_live_tup), 0) FROM pg_stat_user_tables
         WHERE schemaname = '{1}' AND relname IN ('jobs', 'payloads'))
"""
DEFAULT_ROWS = "SELECT count(*) FROM (SELECT 1 FROM {0}.history_default LIMIT {1}) AS bounded"
WRITES = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean"
OWNERS = """
SELECT pg_get_userbyid(owner), count(*) FROM (
  SELECT relowner FROM pg_class WHERE relnamespace = to_regnamespace($1)
  UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = to_regnamespace($1)) AS every (owner)
 GROUP BY 1 ORDER BY 2 DESC
"""
RECOUNT = """
SELECT queue, tenant, needs, coalesce(counted.ready, 0), coalesce(counted.scheduled, 0), coalesce(counted.leased, 0),
       coalesce(counted.done, 0), coalesce(counted.failed, 0), coalesce(counted.cancelled, 0),
       coalesce(counted.bytes, 0), closed_until, closed_why
  FROM {0}.lanes LEFT JOIN (
    SELECT lane, count(*) FILTER (WHERE state = 'ready') AS ready,
           count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
           count(*) FILTER (WHERE state = 'leased') AS leased, count(*) FILTER (WHERE state = 'done') AS done,
           count(*) FILTER (WHERE state = 'failed') AS failed, count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
           sum(bytes) AS bytes
      FROM (SELECT lane, state, octet_length(payload) + coalesce(octet_length(cursor), 0)
                   + coalesce(octet_length(progress), 0) + (
                     SELECT coalesce(sum(octet_length(message) + octet_length(traceback)), 0)
                       FROM {0}.errors WHERE job = jobs.id) AS bytes
              FROM {0}.jobs JOIN {0}.payloads USING (id)
            UNION ALL SELECT lane, state, bytes FROM {0}.history) AS every GROUP BY lane)
    AS counted ON counted.lane = lanes.id
 ORDER BY queue, tenant, needs
"""
LANES = """
SELECT queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled, bytes, closed_until, closed_why
  FROM {0}.lane_counts
 ORDER BY queue, tenant, needs
"""
STUCK = "SELECT count(*), min(until) FROM {0}.jobs WHERE state = 'leased' AND until <= $1"
# A scheduled job whose time has come counts as ready: without a worker, nothing promotes it.
OLDEST = """
SELECT queue, min(run_at) FROM {0}.jobs JOIN {0}.lanes ON lanes.id = lane
 WHERE state = 'ready' OR (state = 'scheduled' AND run_at <= $1) GROUP BY queue ORDER BY queue
"""
CLOCK = "SELECT max(served_at), {0}.wall_us() FROM {0}.flows"
PAUSES = "SELECT queue, tenant FROM {}.pauses"
WORKERS = "SELECT since, seen_at, drain_requested, beat FROM {}.workers"
SERVED = "SELECT queue, max(served_at) FROM {0}.flows GROUP BY queue"


async def check_health(connections: Connections, deep: bool) -> list[Finding]:
    findings: list[Finding] = []
    try:
        async with connections.borrow(DEEP_SECONDS) as connection:
            async for finding in run_checks(connection, connections, DEEP_SECONDS if deep else BOUND_SECONDS):
                findings.append(finding)
    except LeasewayError as error:
        findings.append(sick("database" if findings else "server", error))
    return findings


def sick(check: str, error: LeasewayError) -> Finding:
    """Split an error message into what happened and what to do."""
    text, _, advice = str(error).partition("; ")
    return problem(check, text, (advice[:1].upper() + advice[1:]) or "Look at the server's log")


async def run_checks(
    connection: asyncpg.Connection, connections: Connections, seconds: float
) -> AsyncIterator[Finding]:
    address = connections.address
    version = await connection.fetchval("SHOW server_version")
    yield ok("server", f"{address.shown}, PostgreSQL {version}")
    yield primary(*await connection.fetchrow(WRITES))
    found = await read_versions(connection, address)
    yield schema_finding(found, address.schema)
    if found.present < found.newest:
        return
    yield owners(await connection.fetch(OWNERS, address.schema))
    yield room(*await connection.fetchrow(ROOM))
    yield transactions(await connection.fetch(IDLE_HOLDERS, address.quoted))
    if await connection.fetchval(MAY_SEE):
        yield snapshot(await connection.fetchrow(OLDEST_SNAPSHOT))
    else:
        yield ok("snapshots", "this role cannot see other sessions", "To see them: GRANT pg_monitor TO the role")
    yield sizes(*await connection.fetchrow(SIZES.format(address.quoted, address.schema)))
    yield partitions(await connection.fetchval(DEFAULT_ROWS.format(address.quoted, DEFAULT_ROWS_MAX)))
    yield await counters(connection, address.quoted, seconds)
    yield await budgets(connection, address.quoted, seconds)
    yield judge_clock(*await connection.fetchrow(CLOCK.format(address.quoted)))
    async for finding in in_lanes(connection, address.quoted):
        yield finding


def primary(is_replica: bool, is_read_only: bool) -> Finding:
    if is_replica:
        return problem("primary", "this server is a read-only replica", "Use the primary in the store's URL")
    if is_read_only:
        advice = "Check default_transaction_read_only of the server, the database and the role"
        return problem("primary", "this session is read-only", advice)
    return ok("primary", "accepts writes")


def schema_finding(found: SchemaVersions, name: str) -> Finding:
    if found.present < found.newest:
        what = f"{name!r} has version {found.present}" if found.present else f"there is no schema {name!r}"
        return problem("schema", f"{what}; the newest is {found.newest}", "Migrate it: leaseway migrate")
    return ok("schema", f"{name!r} has version {found.present}, the newest")


def owners(found: Sequence[tuple[str, int]]) -> Finding:
    """Functions run with the rights of their owner; a function of another owner could not use the tables."""
    if len(found) > 1:
        text = ", ".join(f"{count} of {owner!r}" for owner, count in found)
        advice = f"Make {found[0][0]!r} the owner of everything: ALTER FUNCTION, PROCEDURE, TABLE … OWNER TO"
        return problem("owners", f"tables and functions belong to several roles: {text}", advice)
    return ok("owners", f"everything belongs to {found[0][0]!r}")


def room(used: int, most: int) -> Finding:
    text = f"{used} of {most} connections are in use"
    if used >= 0.9 * most:
        return warning("connections", text, "Raise max_connections, or use a pooler: ?pooler=transaction")
    return ok("connections", text)


def transactions(idle: Sequence[tuple[int, str, int]]) -> Finding:
    """Sessions whose client stopped inside a transaction. Jobs that they locked have no lease, and claims skip them."""
    if not idle:
        return ok("transactions", "no idle session holds locks on jobs")
    pid, name, seconds = idle[0]
    others = f", and {len(idle) - 1} more" if len(idle) > 1 else ""
    text = f"session {pid} ({name}) has been idle inside a transaction for {seconds} s and holds locks{others}"
    advice = (
        f"Jobs that it locked cannot be claimed. End it: SELECT pg_terminate_backend({pid}). leaseway's own "
        "transactions end by themselves; set idle_in_transaction_session_timeout for the others"
    )
    return problem("transactions", text, advice)


def snapshot(oldest: tuple[int, str, int] | None) -> Finding:
    """While an old snapshot is open, vacuum cannot remove dead rows, and every query becomes slower."""
    if oldest is None or oldest[2] < SNAPSHOT_SECONDS_MAX:
        return ok("snapshots", "no transaction prevents vacuum")
    pid, name, seconds = oldest
    age = render_duration(seconds * SECOND_US)
    text = f"a transaction of {name!r} (pid {pid}) has been open for {age}: vacuum cannot remove dead rows"
    return warning("snapshots", text, f"End it if you can: SELECT pg_terminate_backend({pid})")


def sizes(hot: int, history: int, dead: int, living: int) -> Finding:
    taken = f"unfinished jobs take {render_bytes(hot)}, the history {render_bytes(history)}"
    text = f"{taken}; {dead:,} dead rows beside {living:,}"
    if dead > 100_000 and dead > 5 * living:
        return warning("dead rows", text, "Check that autovacuum is on and that no old transaction is open")
    return ok("dead rows", text)


def partitions(in_default: int) -> Finding:
    if in_default >= DEFAULT_ROWS_MAX:
        text = f"{in_default:,} finished jobs or more are in history_default: their partition was not created in time"
        return warning(
            "partitions",
            text,
            "Keep a worker running: it creates tomorrow's partition. These jobs are pruned row by row",
        )
    return ok("partitions", "the history is partitioned by day")


async def counters(connection: asyncpg.Connection, name: str, seconds: float) -> Finding:
    try:
        async with connection.transaction(
            isolation="repeatable_read", readonly=True
        ):  # both queries need the same snapshot
            await connection.execute(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
            counted = await lanes(connection, LANES.format(name))
            return judge_counters(counted, await lanes(connection, RECOUNT.format(name)))
    except asyncpg.QueryCanceledError:
        return ok("counters", f"not counted within {seconds:g} s", "Count everything: --deep")


async def budgets(connection: asyncpg.Connection, name: str, seconds: float) -> Finding:
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
            return judge_ledger(parse_audit(await connection.fetch(statements_for(name)["audit_budgets"])))
    except asyncpg.QueryCanceledError:
        return ok("budgets", f"not added up within {seconds:g} s", "Add everything up: --deep")


async def lanes(connection: asyncpg.Connection, sql: str) -> list[LaneCount]:
    return [rows.parse_lane(row) for row in await connection.fetch(sql)]


async def in_lanes(connection: asyncpg.Connection, name: str) -> AsyncIterator[Finding]:
    now = await connection.fetchval(f"SELECT {name}.now_us()")
    counted = await lanes(connection, LANES.format(name))
    stuck, oldest = await connection.fetchrow(STUCK.format(name), now - STUCK_US_MAX)
    yield judge_leases(sum(lane.leased for lane in counted), stuck, oldest, now)
    waiting = dict(await connection.fetch(OLDEST.format(name), now))
    served = dict(await connection.fetch(SERVED.format(name)))
    pauses = [Pause(queue, tenant or None) for queue, tenant in await connection.fetch(PAUSES.format(name))]
    workers = [parse_worker(row, now) for row in await connection.fetch(WORKERS.format(name))]
    for finding in judge_waiting(waiting, served, now, find_causes(counted, pauses, workers)):
        yield finding
    yield judge_failed(counted)
