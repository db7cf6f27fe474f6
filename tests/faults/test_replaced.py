"""The file of a store is deleted or replaced while processes have it open.

SQLite commits into the deleted file without an error, so everything that it acknowledges would be lost.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.harness import Lab

from leaseway.domain.errors import TerminalError
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, Rate
from leaseway.stores.sqlite.limits import SqliteLimiter
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.system import wall_clock_us
from leaseway.testing.job_store_contract.fixtures import new_job

Fault = Callable[[Path], None]


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def replace(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


FAULTS = [delete, delete_all, replace, delete_log]


@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_acknowledged_into_a_file_that_is_gone(tmp_path: Path, fault: Fault) -> None:
    """A submission that is acknowledged must be found by the next process that opens the path."""
    path = tmp_path / "work.db"
    store = SqliteStore(str(path), wall_clock_us)
    await store.open()
    await store.jobs.submit([new_job(1)])
    assert store.blocking is not None
    fault(path)
    with pytest.raises(TerminalError, match=r"work\.db: the file or its write-ahead log .* deleted or replaced"):
        await store.jobs.submit([new_job(2)])
    with pytest.raises(TerminalError, match="restore it from a backup"):
        store.blocking.submit([new_job(3)])
    with pytest.raises(TerminalError, match="deleted or replaced"):
        await store.reads.lanes()
    await store.close()


async def test_a_store_that_only_reads_notices_it(tmp_path: Path) -> None:
    """A dashboard would show a deleted file for ever."""
    path = tmp_path / "work.db"
    writer, reader = (SqliteStore(str(path), wall_clock_us) for _ in range(2))
    await writer.open()
    await writer.jobs.submit([new_job(1)])
    assert len(await reader.reads.lanes()) == 1
    replace(path)
    with pytest.raises(TerminalError, match="deleted or replaced"):
        await reader.reads.lanes()
    await writer.close()
    await reader.close()


async def test_a_closed_store_opens_the_file_that_is_there_now(tmp_path: Path) -> None:
    """After a restore, the same process may open the store again."""
    path = tmp_path / "work.db"
    store = SqliteStore(str(path), wall_clock_us)
    await store.open()
    delete_all(path)
    await store.close()
    await store.open()
    await store.jobs.submit([new_job(1)])
    await store.close()


async def test_a_process_that_changes_its_folder_keeps_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is resolved once; otherwise every daemon that calls chdir would be refused."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("work.db", wall_clock_us)
    await store.open()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await store.jobs.submit([new_job(1)])
    await store.close()


async def test_a_symbolic_link_to_the_file_is_not_a_replacement(tmp_path: Path) -> None:
    """The log is beside the real file, not beside the link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "work.db").symlink_to(tmp_path / "real" / "jobs.db")
    store = SqliteStore(str(tmp_path / "work.db"), wall_clock_us)
    await store.open()
    await store.jobs.submit([new_job(1)])
    assert len(await store.reads.lanes()) == 1
    await store.close()


async def test_no_permit_is_granted_from_a_file_that_is_gone(tmp_path: Path) -> None:
    """Two processes with two files would each grant the whole rate."""
    path = tmp_path / "work.db"
    limiter = SqliteLimiter(str(path))
    await limiter.open()
    await limiter.definitions.declare([LimitDefinition(name="maps", rates=(Rate(1_000_000, 100),))])
    asks = [PermitRequest("maps", "maps")]
    await limiter.acquire(asks)
    delete_all(path)
    with pytest.raises(TerminalError, match=r"work\.db-limits: the file or its write-ahead log"):
        await limiter.acquire(asks)
    await limiter.close()


@pytest.mark.slow
def test_a_worker_whose_file_is_gone_ends_with_the_reason(lab: Lab) -> None:
    """A worker that continued would run jobs whose results no other process ever sees."""
    worker = lab.worker()
    aside = lab.db.parent / "aside"
    aside.mkdir()
    moved = [each.rename(aside / each.name) for each in lab.db.parent.glob(f"{lab.db.name}*")]
    assert worker.wait_for_exit() == 1
    for each in moved:
        each.rename(lab.db.parent / each.name)
    assert "was deleted or replaced while this process had it open" in worker.output()
