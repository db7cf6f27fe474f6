"""Which store a command uses, and every way in which it can be wrong. Reading never creates or changes a store."""

import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.cli.place import Place

from leaseway.stores.sqlite import errors

LOOKING = [["jobs", "list"], ["jobs", "show", "x"], ["jobs", "why", "x"], ["lanes"], ["cron"]]
LOOKING += [["limits"], ["limits", "explain", "x"], ["budgets"], ["budgets", "show", "x"], ["budgets", "journal", "x"]]
LOOKING += [["budgets", "audit"], ["tenants"]]
CHANGING = [
    ["jobs", "retry", "x"],
    ["jobs", "retry", "--all", "--yes"],
    ["jobs", "cancel", "x"],
    ["jobs", "discard", "x"],
    ["jobs", "prune", "--older-than", "1d"],
    ["cron", "pause", "x"],
    ["limits", "set", "x", "1/second"],
    ["limits", "forget", "x"],
    ["budgets", "set", "x", "--usd", "1"],
    ["budgets", "forget", "x", "--yes"],
    ["tenants", "set", "x", "--weight", "2"],
    ["tenants", "set", "x", "--concurrency", "2"],
    ["tenants", "forget", "x"],
]


# -- which one --------------------------------------------------------------------------------------------------------


def test_an_option_wins_over_the_environment_and_that_over_the_app(place: Place) -> None:
    """An explicit URL wins over the environment and the app."""
    place.ok("submit", "tasks:app", "add", "x=1", "--store", "sqlite:///typed.db")
    place.ok("submit", "tasks:app", "add", "x=1")
    os.environ["LEASEWAY_STORE"] = "sqlite:///said.db"
    place.ok("submit", "tasks:app", "add", "x=1")
    assert sorted(path.name for path in place.folder.glob("*.db")) == ["said.db", "typed.db", "work.db"]


def test_without_a_word_the_apps_own_store_is_meant(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitting to another store than the worker's would lose the job from view."""
    monkeypatch.delenv("LEASEWAY_STORE")
    place.ok("submit", "tasks:app", "add", "x=1")
    assert place.database.exists()
    assert "there is no store at sqlite:///leaseway.db" in place.run("lanes").err


def test_the_store_may_be_named_before_the_command(place: Place) -> None:
    """The option is valid in both places; the one after the command wins."""
    place.ok("--store", "sqlite:///before.db", "migrate")
    assert place.run("--store", "sqlite:///before.db", "jobs", "list").code == 0
    assert place.run("jobs", "--store", "sqlite:///before.db", "list").code == 0
    assert place.run("--store", "sqlite:///nowhere.db", "jobs", "list", "--store", "sqlite:///before.db").code == 0


# -- what may be wrong with it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", LOOKING + CHANGING, ids=" ".join)
def test_a_store_that_does_not_exist_is_not_created_by_looking(place: Place, argv: list[str]) -> None:
    """A typing error in a URL must not create an empty store, which would look like lost jobs."""
    answer = place.run(*argv)
    assert answer.code == 2
    assert "there is no store at sqlite:///work.db" in answer.err
    assert "leaseway migrate" in answer.err
    assert list(place.folder.glob("*.db*")) == []


@pytest.mark.parametrize("argv", [*LOOKING, *CHANGING, ["migrate"], ["migrate", "--check"]], ids=" ".join)
def test_a_file_that_is_no_database_is_left_alone(place: Place, argv: list[str]) -> None:
    """A wrong path must not destroy the user's file."""
    place.database.write_text("Dear diary, this is not a database, however long it may be. " * 20)
    before = place.database.read_bytes()
    answer = place.run(*argv)
    assert answer.code == 2
    assert "is not an SQLite database" in answer.err
    assert place.database.read_bytes() == before


@pytest.mark.parametrize("argv", [*LOOKING, *CHANGING, ["migrate"], ["migrate", "--check"]], ids=" ".join)
def test_the_database_of_another_program_is_left_alone(place: Place, argv: list[str]) -> None:
    """A wrong path must not add tables to another program's database."""
    place.sql("CREATE TABLE theirs (x)")
    answer = place.run(*argv)
    assert answer.code == 2
    assert "another program" in answer.err
    assert place.sql("SELECT name FROM sqlite_schema") == [("theirs",)]


@pytest.mark.parametrize("argv", [*LOOKING, *CHANGING, ["migrate"], ["submit", "tasks", "add", "x=1"]], ids=" ".join)
def test_a_newer_schema_asks_for_a_newer_leaseway(place: Place, argv: list[str]) -> None:
    """Old code must not write into a store whose schema it does not know."""
    place.ok("migrate")
    place.sql("PRAGMA user_version = 99")
    answer = place.run(*argv)
    assert answer.code == 2
    assert "schema version 99" in answer.err
    assert "install a newer leaseway" in answer.err


def test_an_old_schema_is_not_changed_by_looking(place: Place) -> None:
    """Reading must not update the schema either."""
    place.database.touch()
    answer = place.run("lanes")
    assert answer.code == 2
    assert "run: leaseway migrate" in answer.err
    assert place.database.read_bytes() == b""


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("work.db", "did you mean sqlite:///work.db?"),
        ("oracle://x", "oracle:// is not a store"),
        ("sqlite://work.db", "three slashes"),
        ("sqlite:///", "names no file"),
        ("memory://", "exists only within one process"),
        ("sqlite:///no/such/folder/work.db", "there is no store"),
    ],
)
def test_an_address_that_means_nothing_is_explained(place: Place, url: str, complaint: str) -> None:
    """A typing error in a URL must not become a file with a strange name."""
    answer = place.run("lanes", "--store", url)
    assert answer.code == 2
    assert complaint in answer.err


def test_a_folder_is_no_store(place: Place) -> None:
    """The driver's own message does not name the path."""
    place.database.mkdir()
    answer = place.run("lanes")
    assert answer.code == 2
    assert "is a folder" in answer.err


def test_a_store_in_a_folder_that_is_missing_cannot_be_created(place: Place) -> None:
    """SQLite says "unable to open database file", which does not name the folder."""
    answer = place.run("migrate", "--store", "sqlite:///no/such/work.db")
    assert answer.code == 2
    assert "the folder no/such does not exist" in answer.err


def test_a_job_submitted_to_memory_would_be_gone_at_once(place: Place) -> None:
    """An accepted job that is lost when the command ends breaks the main promise."""
    answer = place.run("submit", "tasks", "add", "x=1", "--store", "memory://")
    assert answer.code == 2
    assert "exists only within" in answer.err


# -- rights -----------------------------------------------------------------------------------------------------------


@contextmanager
def unwritable(*paths: Path) -> Iterator[None]:
    """Also for root, for whom the file mode does not count but this attribute does, where the file system has it."""
    if os.geteuid() != 0:
        for path in paths:
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        yield
        for path in paths:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
        return
    if shutil.which("chattr") is None:
        pytest.skip("root may write everything here, and chattr is not installed")
    done = subprocess.run(["chattr", "+i", *paths], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"root may write everything here, and chattr says: {done.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *paths], check=True)


def test_who_may_only_read_may_look_and_is_told_when_writing(place: Place) -> None:
    """An operator with few rights must be able to read the state."""
    id_ = place.submit("add", "x=1")
    with unwritable(place.database):
        assert id_ in place.ok("jobs", "list").out
        for argv in (["jobs", "cancel", id_], ["submit", "tasks", "add", "x=1"]):
            answer = place.run(*argv)
            assert answer.code == 2
            assert "read-only" in answer.err
    assert place.json("jobs", "show", id_)["state"] == "pending"


def test_a_store_cannot_be_created_in_a_folder_that_may_not_be_written(place: Place) -> None:
    """The user must learn which permission is missing."""
    folder = place.folder / "sealed"
    folder.mkdir()
    with unwritable(folder):
        answer = place.run("migrate", "--store", "sqlite:///sealed/work.db")
    assert answer.code == 2
    assert "cannot be opened" in answer.err


# -- busy -------------------------------------------------------------------------------------------------------------


def test_a_store_that_stays_locked_is_reported_as_unavailable(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3 tells a script that the same command may succeed later."""
    monkeypatch.setattr(errors, "BUSY_SECONDS_MAX", 0.1)
    id_ = place.submit("add", "x=1")
    with place.locked():
        answer = place.run("jobs", "cancel", id_)
        assert place.run("jobs", "list").code == 0, "reading waits for nobody"
    assert answer.code == 3
    assert "locked" in answer.err


def test_looking_leaves_no_trace(place: Place) -> None:
    """The worker of another user may not be able to open files that this command creates."""
    place.submit("add", "x=1")
    before = sorted(path.name for path in place.folder.iterdir())
    looking = [["jobs", "list"], ["lanes"], ["cron"], ["doctor"], ["migrate", "--check"]]
    looking += [["limits"], ["budgets"], ["budgets", "audit"], ["tenants"]]
    for argv in looking:
        place.ok(*argv)
    assert sorted(path.name for path in place.folder.iterdir()) == before


def test_looking_works_beside_a_writer_with_an_open_log(place: Place) -> None:
    """Operators look at a store while workers write to it."""
    place.ok("migrate")
    with closing(sqlite3.connect(place.database)) as other:
        other.execute("SELECT count(*) FROM jobs").fetchall()
        id_ = place.submit("add", "x=1")
        assert id_ in place.ok("jobs", "list").out
