"""Rows in MongoDB: encoded as documents, and merged page by page.

The record is stored as a sub-document, so that all its fields can be queried. Names with dots and dollars are kept.
Only values that BSON cannot represent are changed: integers of more than 64 bits become decimals, or texts if they are
longer, and invalid characters become U+FFFD. A row that MongoDB would refuse becomes a bad row.

Changed rows are written once and counted once. A row is written only if it is still as it was read: new rows are
inserted, and stored rows are replaced if unchanged since. Otherwise `WriteConflict` is raised, and the page is
repeated.

Without transactions a page can be half written. So each row contains the page that wrote it last (`leaseway_page`),
and when the page is repeated, its own rows are counted as if they had just been written.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import bson
import msgspec
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument
from msgspec.structs import replace
from pymongo import InsertOne, UpdateOne
from pymongo.errors import BulkWriteError

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.imports.domain.page import BadRow, ColumnType, Row, WriteCounts
from leaseway.imports.sinks.columns import check_columns
from leaseway.imports.sinks.mongodb.collections import Collection, row_key
from leaseway.imports.sinks.mongodb.connection import CONFLICTS, Document, Session, WriteConflict, error_codes
from leaseway.imports.sinks.row_encoding import (
    INTEGER_MAX,
    INTEGER_MIN,
    IS_DELETED,
    Line,
    PageEncoder,
    Unstorable,
    UnusualValue,
    jsonb_text,
    replace_nul,
)
from leaseway.imports.sinks.shard_transitions import FLAGGED, StoredRowState, classify_rows

SIZE_BYTES_MAX = 16 * 2**20 - 65_536
"""The server accepts 16 MiB, including leaseway's own fields."""
DEPTH_MAX = 150
"""The server accepts 180 levels, including leaseway's own."""
DECIMAL_DIGITS_MAX = 34
CUT_TO = 1_000_000
GROWTH_MAX = 10
"""A character of JSON needs fewer bytes than this in BSON, even in a list of digits."""

MARK = "leaseway_page"
"""The page that wrote the row last, on servers without transactions."""


def check_fields(columns: Mapping[str, ColumnType]) -> Mapping[str, ColumnType]:
    for name in columns:
        if name in ("_id", MARK):
            raise BadValue(f"columns.{name}", f"every document has a field {name}; choose another name")
        if name.startswith("$") or "." in name:
            raise BadValue(f"columns.{name}", "MongoDB interprets $ and . in names; choose another name")
    return check_columns(columns)


class MongoEncoder(PageEncoder):
    """Encodes documents and JSON columns as BSON."""

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        super().__init__(columns, document=encode_bson)

    def line(self, row: Row) -> Line:
        line = super().line(row)
        if sum(bson_size(value) for value in line) > SIZE_BYTES_MAX:
            raise Unstorable("too_large", f"the row is larger than the {SIZE_BYTES_MAX:,} bytes that MongoDB accepts")
        return line

    def _encode_page(self, rows: Sequence[Row]) -> list[Line]:
        # Then all rows together are smaller than the limit of one row, and none needs to be measured.
        if sum(map(length, rows)) * GROWTH_MAX > SIZE_BYTES_MAX:
            raise UnusualValue
        return super()._encode_page(rows)


def length(row: Row) -> int:
    return len(row.document) + sum(len(value if type(value) is str else repr(value)) for value in row.values.values())


def encode_bson(document: str) -> Any:
    """JSON text ─► BSON. Objects are encoded here once, to find out whether they can be."""
    text = jsonb_text(document)
    if text.count("{") + text.count("[") > DEPTH_MAX:  # with fewer brackets it cannot be too deep
        refuse_depth(text)
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unstorable("bad_type", f"is no JSON ({error})") from None
    if not isinstance(value, dict):
        return replace_big_integers(value)
    try:
        return RawBSONDocument(bson.encode(value))
    except OverflowError:
        return RawBSONDocument(bson.encode(replace_big_integers(value)))


def shorten_bad_row(bad: BadRow) -> BadRow:
    """A bad row that is too large even for quarantine is shortened, and says so."""
    if len(bad.document) < SIZE_BYTES_MAX // 4 or len(replace_nul(bad.document).encode()) <= SIZE_BYTES_MAX:
        return bad
    problem = f"{bad.problem}; only {CUT_TO:,} characters of the document are stored"
    return replace(bad, document=bad.document[:CUT_TO], problem=problem)


def refuse_depth(text: str) -> None:
    depth, is_text, is_escaped = 0, False, False
    for character in text:
        if is_text:
            is_text = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            is_text = True
        elif character in "{[":
            depth += 1
            if depth > DEPTH_MAX:
                raise Unstorable("too_large", f"is nested deeper than the {DEPTH_MAX} levels that MongoDB accepts")
        elif character in "}]":
            depth -= 1


def replace_big_integers(value: Any) -> Any:
    """Replaces integers that BSON cannot represent. The recursion is limited by `refuse_depth`."""
    if isinstance(value, dict):
        return {name: replace_big_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [replace_big_integers(each) for each in value]
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        return Decimal128(str(value)) if len(str(abs(value))) <= DECIMAL_DIGITS_MAX else str(value)
    return value


def bson_size(value: Any) -> int:
    if isinstance(value, RawBSONDocument):
        return len(value.raw)
    if isinstance(value, str):
        return len(value.encode())
    return len(bson.encode({"": value})) if isinstance(value, list) else 16


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
    overwrites: bool = False

    async def merge(self, lines: Sequence[Line], quarantined: int = 0) -> WriteCounts:
        stored = await self._stored([line[0] for line in lines])
        own = {key for key, row in stored.items() if self.mark is not None and self.mark.is_on(row)}
        known = {key: stored_row(row) for key, row in stored.items()}
        fresh = classify_rows([line for line in lines if line[0] not in own], known, quarantined, self.overwrites)
        again = classify_rows([line for line in lines if line[0] in own], known, 0, self.overwrites)
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
            changes = self._changes(line, is_new)
            if line[IS_DELETED]:  # a tombstone has no content of its own: the last content of the row is kept
                changes = {name: value for name, value in changes.items() if name not in self._content_names()}
            requests.append(UpdateOne(same_as(before), {"$set": changes}))
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

    def _content_names(self) -> set[str]:
        return {"content_hash", "document", *self.columns}

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
