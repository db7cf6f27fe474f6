"""A full disk: writes fail completely and with a clear error, and work continues when there is space again."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.harness import Lab, checked, eventually

from leaseway import StoreFull
from leaseway.stores.sqlite.connection import Connection

pytestmark = pytest.mark.slow

ROOM_KB = 1_024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("cannot make a small disk: that needs root and the program mount")
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_KB}k", "tmpfs", str(place)]
    mount = subprocess.run(command, capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"cannot make a small disk: {mount.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def small_lab(tmp_path: Path, small_disk: Path) -> Iterator[Lab]:
    with checked(Lab(tmp_path, small_disk / "work.db")) as lab:
        yield lab


def fill(lab: Lab) -> tuple[set[str], StoreFull]:
    """Submit until the disk is full; return the acknowledged jobs and the error."""
    acknowledged: set[str] = set()
    for _ in range(1_000):
        try:
            acknowledged.update(lab.submit_each("nap", 10, seconds=0, options={"shard_key": "x" * 200}))
        except StoreFull as full:
            return acknowledged, full
    raise AssertionError("the disk did not fill up")


def test_a_file_at_its_size_limit_refuses_writes_and_stays_intact(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without root too: SQLite's own page limit has the same effect as a full disk."""
    connect = Connection.connect

    def connect_small(self: Connection) -> sqlite3.Connection:
        connection = connect(self)
        connection.execute("PRAGMA max_page_count = 60")
        return connection

    monkeypatch.setattr(Connection, "connect", connect_small)
    acknowledged, full = fill(lab)
    assert "disk is full" in str(full)
    assert {id_ for (id_,) in lab.rows("SELECT id FROM jobs")} == acknowledged
    lab.check_store()
    monkeypatch.undo()
    lab.app.close_sync()
    acknowledged.update(lab.submit_each("quick", 100))
    assert {id_ for (id_,) in lab.rows("SELECT id FROM jobs")} == acknowledged, (
        "a job is missing although there is space again"
    )


def test_a_full_disk_refuses_submissions_and_writes_no_part_of_them(small_lab: Lab) -> None:
    """The caller must learn that the job was not stored."""
    lab = small_lab
    acknowledged, full = fill(lab)
    assert "disk is full" in str(full)
    assert {id_ for (id_,) in lab.rows("SELECT id FROM jobs")} == acknowledged
    lab.check_store()


def test_a_worker_on_a_full_disk_continues_when_there_is_space_again(small_lab: Lab) -> None:
    """It can neither claim nor settle. It must wait instead of exiting, and settle its results later."""
    lab = small_lab
    ballast = lab.db.parent / "ballast"
    lab.submit("quick", n=0)
    worker = lab.worker(concurrency=2)
    running = lab.submit("held", n=1)
    lab.await_event("start", job=running)
    acknowledged = set(lab.submit_each("held", 10))
    fill_up(ballast)
    lab.release("1-1")
    eventually(lambda: len(lab.history("store_unavailable", pid=worker.pid)) >= 3, what="the worker reported the error")
    with pytest.raises(StoreFull):
        lab.submit_each("quick", 1_000)
    ballast.unlink()
    for n in range(10):
        for fence in range(1, 30):
            lab.release(f"{n}-{fence}")
    assert lab.await_finished(running, 30)["state"] == "done"
    lab.await_all_finished()
    assert lab.number("SELECT count(*) FROM jobs WHERE state <> 'done'") == 0
    assert acknowledged <= {id_ for (id_,) in lab.rows("SELECT id FROM jobs")}
    assert worker.stop() == 0


def fill_up(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
