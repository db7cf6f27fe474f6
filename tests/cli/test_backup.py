"""leaseway backup and leaseway restore: no acknowledged job is missing, and nothing is granted a second time."""

import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from tests.cli.place import Place
from tests.sqlite_files import open_sqlite

from leaseway.stores.sqlite.backup import PAGES, back_up


def count_jobs(path: Path) -> int:
    with open_sqlite(path) as connection:
        return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


@pytest.fixture
def in_use(place: Place) -> sqlite3.Connection:
    """The store has a process that reads, so that its write-ahead log is never brought into the file."""
    place.submit("add", "x=1")
    connection = sqlite3.connect(place.database, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM jobs").fetchone()
    return connection


def test_a_backup_contains_what_a_plain_copy_lacks(place: Place, in_use: sqlite3.Connection) -> None:
    """The newest jobs are only in the write-ahead log."""
    place.submit("add", "x=2")
    plain = shutil.copy(place.database, place.folder / "plain.db")
    said = place.ok("backup", "copy.db").out
    assert said.startswith("backed up work.db to copy.db (")
    assert (count_jobs(Path(plain)), count_jobs(place.folder / "copy.db")) == (1, 2)
    assert not (place.folder / "copy.db-wal").exists()
    in_use.close()


def test_a_backup_ends_and_is_consistent_while_others_write(place: Place) -> None:
    """A copy that starts again after each write of another process would never end."""
    place.submit("add", "x=1")
    with open_sqlite(place.database) as connection:
        connection.execute("CREATE TABLE ballast AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n "
                           "WHERE i < 40000) SELECT i, randomblob(900) AS blob FROM n")  # fmt: skip
    steps = []

    def write(done: int, total: int) -> None:
        steps.append(done)
        assert len(steps) <= total // PAGES + 2, "the copy has started again"
        with open_sqlite(place.database) as writer:
            writer.execute("UPDATE ballast SET blob = randomblob(900) WHERE i <= 5")

    copy = place.folder / "copy.db"
    back_up(place.database, copy, write)
    assert len(steps) > 2
    with open_sqlite(copy) as found:
        assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert found.execute("SELECT count(*) FROM ballast").fetchone() == (40000,)


def test_only_the_owner_may_read_a_backup(place: Place) -> None:
    """It contains the payloads of all tenants."""
    place.submit("add", "x=1")
    place.ok("backup", "copy.db")
    place.ok("restore", "copy.db", "--store", "sqlite:///new.db")
    for name in ("copy.db", "new.db"):
        assert stat.S_IMODE((place.folder / name).stat().st_mode) == 0o600


def test_a_restored_store_continues_and_never_repeats_a_fence(place: Place) -> None:
    """An outside system compares fences; a lease after the restore must win over every lease before it."""
    id_ = place.submit("add", "x=1")
    with open_sqlite(place.database) as connection:
        connection.execute("UPDATE jobs SET fence = 7")
    place.ok("backup", "copy.db")
    place.ok("restore", "copy.db", "--replace")
    with open_sqlite(place.database) as connection:
        ((found, fence),) = connection.execute("SELECT id, fence FROM jobs").fetchall()
    assert found == id_
    assert fence > 1_700_000_000
    place.ok("work", "tasks:app", "--until-empty")
    assert place.json("jobs", "show", id_)["state"] == "done"


def test_definitions_of_limits_return_and_their_levels_count_as_used(place: Place) -> None:
    """Calls after the backup are unknown. A full bucket from the backup would let the provider's limit be exceeded."""
    place.submit("add", "x=1")
    place.ok("limits", "set", "maps", "100/hour")
    with open_sqlite(f"{place.database}-limits") as limits:
        limits.execute("INSERT INTO levels VALUES ('maps', 'maps', '{}', NULL)")
    said = place.ok("backup", "copy.db").out
    assert said.endswith("and the definitions of limits to copy.db-limits\n")
    place.ok("restore", "copy.db", "--store", "sqlite:///new.db")
    with open_sqlite(place.folder / "new.db-limits") as limits:
        assert limits.execute("SELECT name FROM definitions").fetchall() == [("maps",)]
        assert limits.execute("SELECT count(*) FROM levels").fetchone() == (0,)
        assert limits.execute("SELECT identity FROM fence").fetchone() == ("backup",), "a new file would start full"
    assert "0 of 5 permits" in place.ok("limits", "explain", "maps", "--store", "sqlite:///new.db").out


def test_neither_a_backup_nor_a_store_is_overwritten_by_accident(place: Place) -> None:
    """A mistyped name must not destroy the only good copy."""
    place.submit("add", "x=1")
    place.ok("backup", "copy.db")
    again = place.run("backup", "copy.db")
    assert (again.code, again.err) == (2, "error: copy.db: already exists; name another file, or delete it first\n")
    answer = place.run("restore", "copy.db")
    assert answer.code == 2
    assert "work.db: already exists; --replace deletes what it contains" in answer.err


def test_a_store_that_is_in_use_is_not_replaced(place: Place, in_use: sqlite3.Connection) -> None:
    """Its workers would keep writing into the deleted file."""
    place.ok("backup", "copy.db")
    answer = place.run("restore", "copy.db", "--replace")
    assert answer.code == 2
    assert "work.db: another process has the store open; stop all workers and services" in answer.err
    in_use.close()
    place.ok("restore", "copy.db", "--replace")


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(200)])
def test_a_file_that_is_no_backup_replaces_nothing(place: Place, content: bytes) -> None:
    """The store must survive a restore that fails."""
    place.submit("add", "x=1")
    (place.folder / "bad.db").write_bytes(content)
    assert place.run("restore", "bad.db", "--replace").code in (1, 2)
    assert count_jobs(place.database) == 1
    assert list(place.folder.glob("*.part")) == []


def test_other_stores_are_refused_with_the_way_out(place: Place) -> None:
    """A copy of nothing would be believed to be a backup."""
    answer = place.run("backup", "copy.db", "--store", "postgresql://u:secret@host/db")
    assert answer.code == 2
    assert "copies SQLite files only; back up PostgreSQL with pg_dump" in answer.err
    assert "secret" not in answer.err


def test_reports_are_json_if_asked(place: Place) -> None:
    """Backup scripts read sizes from it."""
    place.submit("add", "x=1")
    told = place.json("backup", "copy.db")
    assert told == {"from": "work.db", "to": "copy.db", "bytes": told["bytes"], "has_limits": False}
    assert told["bytes"] == (place.folder / "copy.db").stat().st_size
