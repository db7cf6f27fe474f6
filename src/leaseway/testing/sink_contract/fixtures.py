"""The runs, shards and rows that the tests use, and short functions to write them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.imports.domain.page import BadRow, ColumnType, Row, WriteCounts
from leaseway.imports.domain.partition import Cursor, Shard, canonical, make_shard
from leaseway.imports.domain.run_state import RunRow, ShardRow, ShardState
from leaseway.imports.sinks.port import PageWrite, Sink
from leaseway.testing.clock import START_US

COLUMNS: Mapping[str, ColumnType] = {
    "title": ColumnType.TEXT,
    "size": ColumnType.INTEGER,
    "latitude": ColumnType.REAL,
    "is open": ColumnType.BOOLEAN,
    "seen_at": ColumnType.TIMESTAMP,
    'the "tags"': ColumnType.JSON,
}
"""One column of each type; some names must be quoted."""

RUN = RunRow(id="run-1", source="maps", spec_hash="hash-1", started_at=START_US)
LOW = make_shard("maps", "id=0-1000", {"id": [0, 1000]}, 1000)
HIGH = make_shard("maps", "id=1000-", {"id": [1000, None]})
STAMP = START_US - 1000 * SECOND_US


class Witness(Protocol):
    """Reads and changes the table without the sink."""

    async def rows(self) -> dict[str, dict[str, Any]]:
        """By external id: columns by name; documents and JSON decoded, timestamps in microseconds."""
        ...

    async def delete(self, external_id: str, at: Instant) -> None:
        """Sets `deleted_at`, as a sweep does."""
        ...


def row(external_id: int | str, version: int = 0, stamp: Instant | None = None, **values: Any) -> Row:
    """Each version is one second newer than the previous one."""
    return Row(
        external_id=str(external_id),
        stamp=STAMP + version * SECOND_US if stamp is None else stamp,
        content_hash=f"hash-{version}",
        document=canonical({"id": external_id, "version": version}),
        values=values,
    )


def tombstone(external_id: int | str, version: int = 0) -> Row:
    """A row that the source reports as deleted."""
    return replace(row(external_id, version), is_deleted=True)


def rows(*ids: int, version: int = 0) -> list[Row]:
    return [row(number, version) for number in ids]


def bad(position: int, document: str = "{}", external_id: str | None = None) -> BadRow:
    return BadRow(position=position, external_id=external_id, code="missing_key", problem="no id", document=document)


def page(
    rows: Sequence[Row] = (), before: int | None = None, after: int | None = None, fence: int = 1, **more: Any
) -> PageWrite:
    """A page of the shard LOW, with cursors given as numbers."""
    whole: dict[str, Any] = {"run": RUN.id, "shard": LOW.key, "fence": fence, "rows": rows, **more}
    return PageWrite(before=cursor(before), after=cursor(after), **whole)


def cursor(number: int | None) -> Cursor | None:
    return None if number is None else {"after": number}


async def started(sink: Sink, *shards: Shard, run: RunRow = RUN, fence: int = 1) -> None:
    """A run whose shards a worker has begun."""
    await sink.runs.start(run, shards or (LOW, HIGH))
    for shard in shards or (LOW, HIGH):
        assert await sink.shards.begin(run.id, shard.key, fence) is not None


async def written(sink: Sink, page: PageWrite) -> WriteCounts:
    answer = await sink.shards.write(page)
    assert answer is not None, "fenced"
    return answer


async def shard(sink: Sink, key: str = LOW.key, run: str = RUN.id) -> ShardRow:
    (found,) = [found for found in await sink.shards.find_all(run) if found.shard.key == key]
    return found


async def observed_state(sink: Sink, witness: Witness) -> object:
    """Everything that can be observed, for comparison."""
    runs = await sink.runs.find_all()
    shards = [await sink.shards.find_all(run.id) for run in runs]
    return runs, shards, await sink.quarantine.find_all(), await sink.rows.count(), await witness.rows()


async def imported(sink: Sink, run: str, *some: Row, source: str = "maps") -> WriteCounts:
    """A run of one shard with one page."""
    whole = replace(RUN, id=run, source=source)
    await started(sink, LOW, run=whole)
    return await written(sink, replace(page(some, state=ShardState.DONE), run=run))
