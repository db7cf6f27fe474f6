"""Merge the rows of a page: changed rows are written once and counted once.

A row is written only if it is still as it was read: new rows are inserted, and stored rows are replaced if unchanged
since. Otherwise `WriteConflict` is raised, and the page is repeated.

Without transactions a page can be half written. So each row contains the page that wrote it last (`leaseway_page`), and
when the page is repeated, its own rows are counted as if they had just been written.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pymongo import InsertOne, UpdateOne
from pymongo.errors import BulkWriteError

from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import WriteCounts
from leaseway.imports.sinks.mongodb.collections import Collection, row_key
from leaseway.imports.sinks.mongodb.connection import CONFLICTS, Document, Session, WriteConflict, error_codes
from leaseway.imports.sinks.mongodb.row_encoding import MARK
from leaseway.imports.sinks.row_encoding import IS_DELETED, Line
from leaseway.imports.sinks.shard_transitions import FLAGGED, StoredRowState, classify_rows

IDS_MAX = 2_000
"""Ids in one query: at most four megabytes, and the server accepts sixteen."""
JUDGED_BY = {"stamp": 1, "content_hash": 1, "deleted_at": 1, MARK: 1}


class PageMark(NamedTuple):
    """A page that may be repeated."""

    run: str
    shard: str
    page: int

    def on(self, is_new: bool) -> Document:
        return {**self._asdict(), "is_new": is_new}

    def is_on(self, row: Document) -> bool:
        mark = row.get(MARK) or {}
        return (mark.get("run"), mark.get("shard"), mark.get("page")) == self


class RowMerge(NamedTuple):
    """What all rows of a page share."""

    rows: Collection
    columns: Sequence[str]
    source: str
    run: str
    now: Instant
    mark: PageMark | None
    """None in a transaction, which is never half written."""
    session: Session | None

    async def merge(self, lines: Sequence[Line], quarantined: int = 0) -> WriteCounts:
        stored = await self._stored([line[0] for line in lines])
        own = {key for key, row in stored.items() if self.mark is not None and self.mark.is_on(row)}
        known = {key: stored_row(row) for key, row in stored.items()}
        fresh = classify_rows([line for line in lines if line[0] not in own], known, quarantined)
        again = classify_rows([line for line in lines if line[0] in own], known, 0)
        await self._write(fresh.new, [*fresh.changed, *again.changed], stored, own)
        return with_own(fresh.counts, [bool(stored[key][MARK]["is_new"]) for key in own])

    async def _stored(self, ids: Sequence[str]) -> dict[str, Document]:
        found: dict[str, Document] = {}
        for some in batches(ids):
            keys = [row_key(self.source, key) for key in some]
            cursor = self.rows.find({"_id": {"$in": keys}}, JUDGED_BY, session=self.session, batch_size=IDS_MAX)
            found |= {row["_id"]["external_id"]: row async for row in cursor}
        return found

    async def _write(
        self, new: Sequence[Line], changed: Sequence[Line], stored: dict[str, Document], own: set[str]
    ) -> None:
        requests: list[Any] = [InsertOne(self._document(line)) for line in new]
        for line in changed:
            before = stored[line[0]]
            is_new = line[0] in own and bool(before[MARK]["is_new"])
            requests.append(UpdateOne(same_as(before), {"$set": self._changes(line, is_new)}))
        if not requests:
            return
        try:
            result = await self.rows.bulk_write(requests, ordered=False, session=self.session)
        except BulkWriteError as error:
            if set(error_codes(error)) <= CONFLICTS:
                raise WriteConflict("another writer wrote a row of the page; try again") from error
            raise
        if result.inserted_count + result.matched_count < len(requests):
            raise WriteConflict("another writer changed a row of the page; try again")

    def _document(self, line: Line) -> dict[str, Any]:
        return {"_id": row_key(self.source, line[0]), **self._changes(line, is_new=True), "first_seen": self.now}

    def _changes(self, line: Line, is_new: bool) -> dict[str, Any]:
        """Other fields of the document are kept."""
        _, stamp, content_hash, document, is_deleted, *values = line
        row = {
            "stamp": stamp,
            "content_hash": content_hash,
            "document": document,
            **dict(zip(self.columns, values, strict=True)),
            "deleted_at": self.now if is_deleted else None,
            "deleted_reason": FLAGGED if is_deleted else None,
            "run": self.run,
            "updated_at": self.now,
        }
        return row if self.mark is None else {**row, MARK: self.mark.on(is_new)}


assert IS_DELETED == 4, "`_changes` takes a line apart by the order of its values"


def stored_row(row: Document) -> StoredRowState:
    return StoredRowState(row["stamp"], row["content_hash"], row["deleted_at"] is not None)


def same_as(row: Document) -> dict[str, Any]:
    """Matches the row as it was read; if it has changed since, nothing matches."""
    return {name: row.get(name) for name in ("_id", "stamp", "content_hash", "deleted_at")}


def with_own(written: WriteCounts, own: Sequence[bool]) -> WriteCounts:
    """Count rows of an interrupted write of the same page as that write would have."""
    inserted = sum(own)
    return WriteCounts(
        written.inserted + inserted,
        written.updated + len(own) - inserted,
        written.unchanged,
        written.stale,
        written.quarantined,
    )


def batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), IDS_MAX):
        yield ids[start : start + IDS_MAX]
