"""One page, as a source hands it over, and one row, as a sink takes it."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.domain.shard import Cursor

NAMES_SHOWN_MAX = 8

Record = Mapping[str, Any]
"""A document of the source, as it came."""


class Page(Struct, frozen=True, kw_only=True):
    records: Sequence[Record]
    """Those of the shard."""
    raw_count: int
    """How many came, before any filter of ours: a short page is judged by this."""
    next: Cursor | None
    """None: there is no next page, as far as the source says."""
    is_end: bool | None = None
    """True: the source says so. None: it does not say, and a short page has to be confirmed."""
    server_time: Instant | None = None
    size_bytes: int = 0

    @classmethod
    def keyset(cls, records: Sequence[Record], *, key: str, limit: int | None = None) -> "Page":
        """Records in the order of their keys: the next page begins after the last one, {"after": its key}.

        `limit` is for sources that promise that a page with fewer records is the last one. Without it, that is
        confirmed by asking again.
        """
        if not records:
            return cls(records=(), raw_count=0, next=None)
        after = parse_path("key", key).first(records[-1])
        if after is MISSING or after is None:
            raise BadValue("Page.keyset: key", f"the last record has no {key!r}; it has {field_names(records[-1])}")
        is_end = True if limit is not None and len(records) < limit else None
        return cls(records=records, raw_count=len(records), next=None if is_end else {"after": after}, is_end=is_end)

    @classmethod
    def offset(cls, records: Sequence[Record], cursor: Cursor | None, *, total: int | None = None) -> "Page":
        """Records by their number: the next page begins after so many, {"offset": 200}. `total`: how many there are, if
        the source says so; without it, a short page is confirmed by asking again."""
        done = (0 if cursor is None else int(cursor["offset"])) + len(records)
        is_end = None if total is None else done >= total
        return cls(
            records=records,
            raw_count=len(records),
            next={"offset": done} if records and not is_end else None,
            is_end=None if is_end is False and not records else is_end,
        )

    @classmethod
    def last(cls, records: Sequence[Record] = ()) -> "Page":
        """Nothing comes after these: the source has said so."""
        return cls(records=records, raw_count=len(records), next=None, is_end=True)


def field_names(record: Any) -> str:
    names = [repr(name) for name in record] if isinstance(record, Mapping) else []
    return ", ".join(names[:NAMES_SHOWN_MAX]) or "no names at all"


class Row(Struct, frozen=True, kw_only=True):
    """A record on its way into a sink. The whole document is kept beside what was projected from it."""

    external_id: str
    stamp: Instant
    """When the source says it was changed; 0 if it does not say. An older one never replaces a newer one."""
    content_hash: str
    """Of the document without its volatile fields: equal means unchanged."""
    document: str
    values: Mapping[str, Any]
    """The projection, by column."""
    is_deleted: bool = False
    """The source says that it is no more. Kept, and marked."""


class BadRow(Struct, frozen=True, kw_only=True):
    """A record that cannot become a row. It is kept, and can be replayed."""

    position: int
    external_id: str | None
    code: str
    """missing_key, bad_type, bad_stamp, out_of_range, too_large or duplicate_key_in_page."""
    problem: str
    document: str


class WriteCounts(Struct, frozen=True):
    """What became of the rows of one page."""

    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    stale: int = 0
    """Older than what was there."""
    quarantined: int = 0

    @property
    def rows(self) -> int:
        return self.inserted + self.updated + self.unchanged + self.stale


class ColumnType(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    """Of 64 bits."""
    REAL = "real"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """As an `Instant`: microseconds since 1970."""
    JSON = "json"
    """Any part of a document, as canonical JSON text."""


RESERVED = frozenset(
    {
        "source",
        "external_id",
        "stamp",
        "content_hash",
        "document",
        "deleted_at",
        "deleted_reason",
        "run",
        "first_seen",
        "updated_at",
    }
)
