"""Health checks of an SQLite file for `leaseway doctor`, with connections of their own.

    file ─► permissions ─► file system ─► disk ─► log ─► SQLite ─► database ─► schema ─► journal ─► lock
         ─► integrity ─► what is in it

A failed step that makes the following ones meaningless ends the checks.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from leaseway.domain.budgets.balances import judge_ledger
from leaseway.domain.errors import LeasewayError, SchemaVersions
from leaseway.domain.health import (
    STUCK_US_MAX,
    Finding,
    find_causes,
    judge_clock,
    judge_counters,
    judge_disk,
    judge_failed,
    judge_leases,
    judge_log,
    judge_waiting,
    ok,
    problem,
    render_bytes,
    warning,
)
from leaseway.domain.ids import Instant
from leaseway.domain.lane import LaneCount, Pause
from leaseway.stores.sqlite.budget_transaction import BudgetTransaction
from leaseway.stores.sqlite.database import parse_lane, statements
from leaseway.stores.sqlite.definitions import parse_worker
from leaseway.stores.sqlite.errors import translate_error
from leaseway.stores.sqlite.schema import check_version, connect_read_only

BOUND_SECONDS = 5.0
"""How long a check that reads everything may take unless `deep` is set."""
LOCK_SECONDS = 2.0
VERSION_MIN = (3, 38, 0)
"""The first SQLite with the JSON operators that the statements use."""
VERSION_WAL_MENDED = (3, 51, 3)
REMOTE = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.s3fs", "fuse.rclone")
"""Prefixes of the types of network file systems."""

RECOUNT = """
SELECT queue, tenant, needs, count(*) FILTER (WHERE state = 'ready'), count(*) FILTER (WHERE state = 'scheduled'),
       count(*) FILTER (WHERE state = 'leased'), count(*) FILTER (WHERE state = 'done'),
       count(*) FILTER (WHERE state = 'failed'), count(*) FILTER (WHERE state = 'cancelled'),
       coalesce(sum(payload + result + rest), 0), closed_until, closed_why
  FROM lanes LEFT JOIN job_sizes ON job_sizes.lane = lanes.id
 GROUP BY lanes.id ORDER BY queue, tenant, needs
"""
# Submissions are read from the newest back, because created_at has no index.
NEWEST = """
SELECT max(at) FROM (
  SELECT max(created_at) AS at FROM (SELECT created_at FROM jobs ORDER BY seq DESC LIMIT 1000)
  UNION ALL SELECT max(finished_at) FROM jobs WHERE finished_at IS NOT NULL
  UNION ALL SELECT max(served_at) FROM flows)
"""
STUCK = "SELECT count(*), min(until) FROM jobs WHERE state = 'leased' AND until <= ?"
# A scheduled job whose time has come counts as ready: without a worker, no exchange promotes it.
OLDEST = """
SELECT queue, min(run_at) FROM jobs JOIN lanes ON lanes.id = jobs.lane
 WHERE state = 'ready' OR (state = 'scheduled' AND run_at <= ?) GROUP BY queue ORDER BY queue
"""
PAUSES = "SELECT queue, tenant FROM pauses"
WORKERS = "SELECT since, seen_at, drain_requested, beat FROM workers"
SERVED = "SELECT queue, max(served_at) FROM flows GROUP BY queue"


def run_checks(path: str, now: Instant, deep: bool) -> list[Finding]:
    return list(_look(Path(path), now, None if deep else BOUND_SECONDS))


def _look(path: Path, now: Instant, seconds_max: float | None) -> Iterator[Finding]:
    file = _file(path)
    yield file
    if not path.is_file():
        return
    yield _permissions(path)
    yield _file_system(path)
    usage = shutil.disk_usage(path.parent)
    log_bytes = _size(Path(f"{path}-wal"))
    yield judge_disk(usage.free, usage.total, _size(path) + log_bytes)
    yield judge_log(log_bytes)
    yield _sqlite(sqlite3.sqlite_version_info)
    try:
        with closing(connect_read_only(str(path))) as connection:
            yield from _look_inside(connection, path, now, seconds_max)
    except sqlite3.Error as error:
        yield _sick("database", translate_error(error, str(path)))


def _look_inside(
    connection: sqlite3.Connection, path: Path, now: Instant, seconds_max: float | None
) -> Iterator[Finding]:
    try:
        found = check_version(connection, str(path))
    except LeasewayError as error:
        yield _sick("schema", error)
        return
    yield _schema(found)
    if found.present < found.newest:
        return
    yield _journal(connection)
    yield _lock(path)
    yield _integrity(connection, seconds_max)
    yield _counters(connection, seconds_max)
    yield _budgets(connection, now, seconds_max)
    yield judge_clock(connection.execute(NEWEST).fetchone()[0], now)
    yield from _in_lanes(connection, now)


# -- the file ---------------------------------------------------------------------------------------------------------


def _file(path: Path) -> Finding:
    if not path.exists():
        return problem("file", f"{path} does not exist", "Create it (leaseway migrate), or name another with --store")
    if not path.is_file():
        return problem("file", f"{path} is not a file", "Name a file with --store")
    if not os.access(path, os.R_OK):
        return problem("file", f"{path} may not be read", "Give the user who runs leaseway the right to read it")
    # The folder must be writable as well: the write-ahead log is a file beside the store.
    unwritable = [str(each) for each in (path, path.absolute().parent) if not os.access(each, os.W_OK)]
    if unwritable:
        text = f"{' and '.join(unwritable)} may not be written"
        return problem("file", text, "Give the user who runs leaseway the right to write the file and its folder")
    return ok("file", f"{path}, {render_bytes(_size(path))}, may be read and written")


def _permissions(path: Path) -> Finding:
    """Whether other users of the machine can read the file, its log or the limits."""
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm", "-limits")]
    shared = [str(each) for each in files if os.name == "posix" and _mode(each) & 0o077]
    if shared:
        text = f"other users can read {', '.join(shared)}"
        return warning("permissions", text, f"Unless that is intended, run: chmod 600 {' '.join(shared)}")
    return ok("permissions", "only the owner can read the files")


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _file_system(path: Path) -> Finding:
    kind = file_system_type(path.resolve(), _mounts())
    if kind.startswith(REMOTE):
        advice = "SQLite's locks do not hold over a network: move the file to a local disk"
        return problem("file system", f"{kind}, a network file system", advice)
    return ok("file system", f"{kind}, local" if kind else "not known on this system")


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""  # not Linux


def file_system_type(path: Path, mounts: str) -> str:
    """The type of the file system that holds a path, by the text of /proc/mounts; empty if unknown."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, place, type_, *_ = line.split(" ")
        root = Path(place.replace("\\040", " "))
        # Of two mounts at one path the later one is in effect.
        if path.is_relative_to(root) and len(root.parts) >= best:
            best, kind = len(root.parts), type_
    return kind


# -- SQLite -----------------------------------------------------------------------------------------------------------


def _sqlite(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    if version < VERSION_MIN:
        return problem("SQLite", f"{text} is too old", "Use a Python with SQLite 3.38 or newer")
    if version < VERSION_WAL_MENDED:
        note = "Before 3.51.3 two checkpoints at one moment could damage a file, very rarely: update when you can"
        return ok("SQLite", text, note)
    return ok("SQLite", text)


def _sick(check: str, error: LeasewayError) -> Finding:
    """The text of an error is what happened, then what to do."""
    text, _, advice = str(error).partition("; ")
    return problem(check, text, (advice[:1].upper() + advice[1:]) or "Restore the file from a backup: leaseway restore")


def _schema(found: SchemaVersions) -> Finding:
    if found.present < found.newest:
        what = f"version {found.present}" if found.present else "the file is empty"
        return problem("schema", f"{what}; the newest is {found.newest}", "Bring it up to date: leaseway migrate")
    return ok("schema", f"version {found.present}, the newest")


def _journal(connection: sqlite3.Connection) -> Finding:
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        return warning("journal", f"mode {mode}: readers and writers wait for each other", "Run: leaseway migrate")
    return ok("journal", "write-ahead log")


def _lock(path: Path) -> Finding:
    """Whether a writer gets the lock. It is taken and released; nothing is written."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000:.0f}")
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            name = error.sqlite_errorname.removeprefix("SQLITE_")
            if name.startswith("READONLY"):
                return problem("lock", "the file is read-only", "Give the right to write the file and its folder")
            if not name.startswith(("BUSY", "LOCKED")):
                raise
            text = f"another process has held the write lock for more than {LOCK_SECONDS:g} s"
            return problem("lock", text, f"Find it and end it: fuser {path}")
    return ok("lock", "free")


def _integrity(connection: sqlite3.Connection, seconds_max: float | None) -> Finding:
    pragma = "integrity_check" if seconds_max is None else "quick_check"

    def check() -> Finding:
        answers = [str(text) for (text,) in connection.execute(f"PRAGMA {pragma}(3)")]
        if answers == ["ok"]:
            return ok("integrity", f"{pragma} found nothing wrong")
        return problem(
            "integrity", f"damaged: {'; '.join(answers)}", "Stop all workers and restore a backup: leaseway restore"
        )

    return _bounded(connection, "integrity", check, seconds_max)


def _counters(connection: sqlite3.Connection, seconds_max: float | None) -> Finding:
    def check() -> Finding:
        connection.execute("BEGIN")  # both statements must see the same snapshot
        try:
            return judge_counters(_lanes(connection), [parse_lane(row) for row in connection.execute(RECOUNT)])
        finally:
            connection.execute("ROLLBACK")

    return _bounded(connection, "counters", check, seconds_max)


def _budgets(connection: sqlite3.Connection, now: Instant, seconds_max: float | None) -> Finding:
    desk = BudgetTransaction(connection, now)
    return _bounded(connection, "budgets", lambda: judge_ledger(desk.at_one_moment(desk.audit)), seconds_max)


def _bounded(
    connection: sqlite3.Connection, name: str, check: Callable[[], Finding], seconds_max: float | None
) -> Finding:
    if seconds_max is not None:
        deadline = time.monotonic() + seconds_max
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    try:
        return check()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_INTERRUPT":
            raise
        return ok(name, f"not finished within {seconds_max:g} s, nothing wrong so far", "Look at everything: --deep")
    finally:
        connection.set_progress_handler(None, 0)


# -- what is in it ----------------------------------------------------------------------------------------------------


def _in_lanes(connection: sqlite3.Connection, now: Instant) -> Iterator[Finding]:
    lanes = _lanes(connection)
    stuck, oldest = connection.execute(STUCK, (now - STUCK_US_MAX,)).fetchone()
    yield judge_leases(sum(lane.leased for lane in lanes), stuck, oldest, now)
    waiting = dict(connection.execute(OLDEST, (now,)).fetchall())
    pauses = [Pause(queue, tenant or None) for queue, tenant in connection.execute(PAUSES)]
    workers = [parse_worker(row, now) for row in connection.execute(WORKERS)]
    causes = find_causes(lanes, pauses, workers)
    yield from judge_waiting(waiting, dict(connection.execute(SERVED).fetchall()), now, causes)
    yield judge_failed(lanes)


def _lanes(connection: sqlite3.Connection) -> list[LaneCount]:
    return [parse_lane(row) for row in connection.execute(statements()["lane_list"], {"tenant": None})]
