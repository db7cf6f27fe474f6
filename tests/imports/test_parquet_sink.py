"""Rows in Parquet files keep the promises of every sink; a page is stored whole or not at all, at every moment of a
kill.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from tests.imports.parquet_fixtures import ParquetPlace

from leaseway.domain.errors import BadValue, StoreFull, StoreRefused
from leaseway.imports.domain.page import ColumnType, WriteCounts
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.imports.sinks.parquet.files import ParquetFolder
from leaseway.imports.sinks.parquet.sink import ParquetSink, ParquetTables
from leaseway.imports.sinks.port import Sink
from leaseway.testing.clock import FakeClock
from leaseway.testing.sink_contract import *  # noqa: F403
from leaseway.testing.sink_contract.fixtures import (
    COLUMNS,
    RUN,
    STAMP,
    imported,
    page,
    row,
    rows,
    shard,
    started,
    tombstone,
    written,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def witness(tmp_path: Path) -> ParquetPlace:
    return ParquetPlace(tmp_path / "places")


@pytest.fixture
async def sink(witness: ParquetPlace, clock: FakeClock) -> AsyncIterator[Sink]:
    sink = witness.sink(clock.now_us)
    await sink.open()
    yield sink
    await sink.close()


@pytest.fixture
async def other(witness: ParquetPlace, sink: Sink, clock: FakeClock) -> AsyncIterator[Sink]:
    other = witness.sink(clock.now_us)
    await other.open()
    yield other
    await other.close()


@pytest.fixture
async def elsewhere(witness: ParquetPlace, sink: Sink, clock: FakeClock) -> AsyncIterator[Sink]:
    elsewhere = witness.sink(clock.now_us, table="other places")
    await elsewhere.open()
    yield elsewhere
    await elsewhere.close()


# -- change log --


async def test_only_news_are_written(sink: Sink, witness: ParquetPlace) -> None:
    """The files are a log of changes; repeating unchanged rows would make them grow with every run."""
    await imported(sink, "run-1", row(1, title="a"), row(2))
    await imported(sink, "run-2", row(1, title="a"), row(2))
    assert len(witness.files()) == 1
    await imported(sink, "run-3", row(1, 1, title="b"), row(2), tombstone(3))
    await sink.sweeps.delete("run-3", ["2"], "swept")
    told = [(line["external_id"], line["title"], line["deleted_reason"]) for line in witness.versions()]
    assert told == [("1", "a", None), ("2", None, None), ("3", None, "flagged"), ("1", "b", None), ("2", None, "swept")]
    versions = [line["leaseway_version"] for line in witness.versions()]
    assert versions == [1, 1, 2, 2, 3]


async def test_columns_have_their_types(sink: Sink, witness: ParquetPlace) -> None:
    """Readers of the files must not have to guess: instants are UTC timestamps with microseconds."""
    values = {"seen_at": STAMP + 1, "size": 7, "latitude": 1.5, "is open": True, 'the "tags"': [1]}
    await imported(sink, "run-1", replace(row(1), values=values))
    (path,) = witness.files()
    found = pq.read_schema(path)
    instant = pa.timestamp("us", tz="UTC")
    for name in ("stamp", "seen_at", "first_seen", "updated_at", "deleted_at"):
        assert found.field(name).type == instant
    kinds = [found.field(name).type for name in ("size", "latitude", "is open", 'the "tags"', "title", "document")]
    assert kinds == [pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.string(), pa.string()]


async def test_a_run_that_ends_leaves_one_file(sink: Sink, witness: ParquetPlace) -> None:
    """Thousands of small files are slow to read; merging must not lose a version."""
    await started(sink)
    for number in range(5):
        some = [*rows(number, number + 10), row(99, number)]
        await written(sink, page(some, number or None, number + 1))
    await imported(sink, "run-2", row(50))
    before, table = witness.versions(), await witness.rows()
    assert len(witness.files()) == 6
    await sink.runs.finish(RUN.id, RunState.COMPLETE)
    assert len(witness.files()) == 2
    assert (witness.versions(), await witness.rows()) == (before, table)
    await sink.runs.finish(RUN.id, RunState.COMPLETE)
    assert len(witness.all_files()) == 2
    reopened = witness.sink()
    await reopened.open()
    assert await reopened.rows.count() == 12
    assert witness.versions() == before
    await reopened.close()


async def test_a_run_that_goes_on_after_its_end_is_merged_again(sink: Sink, witness: ParquetPlace) -> None:
    """A partial run is resumed, and the rows that it adds must end up in the same file."""
    await started(sink)
    await written(sink, page(rows(1), after=1))
    await written(sink, page([row(1, 1)], 1, 2))
    await sink.runs.finish(RUN.id, RunState.PARTIAL)
    await written(sink, page([row(1, 2)], 2, 3, state=ShardState.DONE))
    assert (await witness.rows())["1"]["content_hash"] == "hash-2"
    await sink.runs.finish(RUN.id, RunState.COMPLETE)
    assert len(witness.files()) == 1
    assert (await witness.rows())["1"]["content_hash"] == "hash-2"


# -- crashes --


class Killed(Exception):
    """Ends a worker in the middle of a step."""


def kill(*_: object) -> None:
    raise Killed


async def test_a_file_without_its_commit_is_removed(
    sink: Sink, witness: ParquetPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page was never committed, so a reader must never see it."""
    await started(sink)
    await written(sink, page(rows(1), after=1))
    monkeypatch.setattr("leaseway.imports.sinks.sql_tables.apply_page", kill)
    with pytest.raises(Killed):
        await sink.shards.write(page(rows(2), 1, 2))
    monkeypatch.undo()
    assert len(witness.all_files()) == 2
    assert sorted(await witness.rows()) == ["1"]
    reopened = witness.sink()
    await reopened.open()
    assert len(witness.all_files()) == 1
    assert (await shard(reopened)).pages == 1
    assert await reopened.shards.write(page(rows(2), 1, 2)) == WriteCounts(inserted=1)
    assert sorted(await witness.rows()) == ["1", "2"]
    await reopened.close()


async def test_a_commit_without_its_rename_is_caught_up(
    sink: Sink, witness: ParquetPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run tables say that the page is written, so the next open must publish its file."""
    await started(sink)
    monkeypatch.setattr(ParquetFolder, "show", kill)
    with pytest.raises(Killed):
        await sink.shards.write(page(rows(1), after=1))
    monkeypatch.undo()
    assert await witness.rows() == {}
    reopened = witness.sink()
    await reopened.open()
    assert sorted(await witness.rows()) == ["1"]
    assert await reopened.shards.write(page(rows(1), after=1)) is None
    await reopened.close()


STEPS: dict[str, tuple[type, str]] = {
    "while merging": (ParquetFolder, "merge"),
    "before the swap": (ParquetTables, "swap_files"),
    "before it is shown": (ParquetFolder, "show"),
    "before the others are removed": (ParquetFolder, "remove"),
}


@pytest.mark.parametrize(("part", "step"), STEPS.values(), ids=STEPS)
async def test_a_merge_that_is_killed_loses_nothing(
    sink: Sink, witness: ParquetPlace, monkeypatch: pytest.MonkeyPatch, part: type, step: str
) -> None:
    """At any step the newest version of each row must be the same; the next open cleans up, and the next end merges."""
    await started(sink)
    for number in range(3):
        await written(sink, page([row(1, number), row(number + 5)], number or None, number + 1))
    table, before = await witness.rows(), witness.versions()
    monkeypatch.setattr(part, step, kill)
    with pytest.raises(Killed):
        await sink.runs.finish(RUN.id, RunState.COMPLETE)
    monkeypatch.undo()
    assert {key: line for key, line in (await witness.rows()).items() if key in table} == table
    reopened = witness.sink()
    await reopened.open()
    assert (await witness.rows(), witness.versions()) == (table, before)
    await reopened.runs.finish(RUN.id, RunState.COMPLETE)
    assert (await witness.rows(), witness.versions(), len(witness.all_files())) == (table, before, 1)
    await reopened.close()


async def test_who_opens_does_not_disturb_a_merge(
    sink: Sink, other: Sink, witness: ParquetPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A starting worker finds an unreferenced file and removes it: the merge is lost, but no rows."""
    await started(sink)
    for number in range(3):
        await written(sink, page([row(1, number)], number or None, number + 1))
    before, merge = witness.versions(), ParquetFolder.merge

    def merged_and_cleaned(shelf: ParquetFolder, numbers: Any, into: int) -> bool:
        assert merge(shelf, numbers, into)
        command = "import asyncio, sys; from tests.imports.test_parquet_sink import *; asyncio.run(opened(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", command, str(witness.folder)], check=True, cwd=ROOT)
        return True

    monkeypatch.setattr(ParquetFolder, "merge", merged_and_cleaned)
    await sink.runs.finish(RUN.id, RunState.COMPLETE)
    assert (witness.versions(), len(witness.all_files())) == (before, 3)


async def test_two_that_end_a_run_at_once_merge_it_once(
    sink: Sink, other: Sink, witness: ParquetPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes may end a run; the second one finds the files gone, and that must not be an error."""
    await started(sink)
    for number in range(3):
        await written(sink, page([row(1, number)], number or None, number + 1))
    before, merge = witness.versions(), ParquetFolder.merge

    def merged_by_the_other(shelf: ParquetFolder, numbers: Any, into: int) -> bool:
        monkeypatch.undo()
        asyncio.run(other.runs.finish(RUN.id, RunState.COMPLETE))
        return merge(shelf, numbers, into)

    monkeypatch.setattr(ParquetFolder, "merge", merged_by_the_other)
    await sink.runs.finish(RUN.id, RunState.COMPLETE)
    assert (witness.versions(), len(witness.all_files())) == (before, 1)


async def opened(folder: str) -> None:
    """Open the sink in another process."""
    sink = ParquetPlace(Path(folder)).sink()
    await sink.open()
    await sink.close()


async def test_a_full_disk_is_told(sink: Sink, witness: ParquetPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of the page may be left on a full disk."""
    await started(sink)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "places")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull, match="disk is full; nothing was written"):
        await sink.shards.write(page(rows(1), after=1))
    monkeypatch.undo()
    assert (await witness.rows(), (await shard(sink)).pages) == ({}, 0)
    assert await sink.shards.write(page(rows(1), after=1)) == WriteCounts(inserted=1)


# -- folders --


async def test_a_file_that_is_lost_is_missed(sink: Sink, witness: ParquetPlace) -> None:
    """The run tables would keep calling its rows unchanged, and the rows would be missing for ever."""
    await imported(sink, "run-1", row(1))
    (path,) = witness.files()
    path.unlink()
    with pytest.raises(
        StoreRefused, match=r"000000000001.parquet: is referenced by the run tables but missing; restore it"
    ):
        await opened(str(witness.folder))


async def test_a_column_that_changed_its_type_is_refused(sink: Sink, witness: ParquetPlace) -> None:
    """A column with two types in one folder cannot be read; a new column can."""
    await imported(sink, "run-1", row(1, title="x"))
    changed = witness.sink(columns={**COLUMNS, "title": ColumnType.INTEGER})
    with pytest.raises(StoreRefused, match="column 'title' is string in its files, and int64 is required"):
        await changed.open()
    await changed.close()
    wider = witness.sink(columns={**COLUMNS, "more": ColumnType.TEXT})
    await wider.open()
    assert await imported(wider, "run-2", replace(row(2), values={"more": "x"})) == WriteCounts(inserted=1)
    await wider.close()


async def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    """A user must learn what is at that path."""
    (tmp_path / "places").touch()
    sink = ParquetPlace(tmp_path / "places").sink()
    with pytest.raises(StoreRefused, match="is a file, and a folder is required"):
        await sink.open()


@pytest.mark.parametrize("table", ["../poi", "a/b", "a\\b", ".poi", "poi.", "leaseway_files", ""])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, table: str) -> None:
    """A table is a folder inside the given one, and must not lead out of it."""
    with pytest.raises(BadValue, match="table: "):
        ParquetSink(str(tmp_path), table)


def test_the_column_of_versions_is_ours(tmp_path: Path) -> None:
    """A user column of this name would collide with the version column that every file has."""
    with pytest.raises(BadValue, match=r"columns\.leaseway_version: every file has a column with this name"):
        ParquetSink(str(tmp_path), "poi", {"leaseway_version": ColumnType.TEXT})
