"""Pages as sources return them, rows as sinks store them, and the types of projected columns."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.domain.partition import Cursor

NAMES_SHOWN_MAX = 8

Record = Mapping[str, Any]
"""A document of the source, unchanged."""


class Page(Struct, frozen=True, kw_only=True):
    records: Sequence[Record]
    """The records that belong to the shard."""
    raw_count: int
    """The number of records received, before filtering. Decides whether a page is short."""
    skipped: int = 0
    """How many of them were read before: pages that start early."""
    is_shifted: bool = False
    """The records have moved since the last page, and some may have moved past it unseen."""
    next: Cursor | None
    """None if the source reports no next page."""
    is_end: bool | None = None
    """True if the source says so. None if it does not say; then a short page has to be confirmed."""
    server_time: Instant | None = None
    size_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return self.raw_count <= self.skipped

    @classmethod
    def keyset(cls, records: Sequence[Record], *, key: str, limit: int | None = None) -> "Page":
        """Records in the order of their keys: the next page starts after the last one, {"after": its key}.

        Pass `limit` only if the source promises that a page with fewer records is the last one. Without it, the end is
        confirmed with another request.
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
        """Records by position: the next page starts after this many, {"offset": 200}. Pass `total` if the source
        reports the number of records; without it, a short page is confirmed with another request.
        """
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
        """The last page: the source says that nothing follows."""
        return cls(records=records, raw_count=len(records), next=None, is_end=True)


def field_names(record: Any) -> str:
    names = [repr(name) for name in record] if isinstance(record, Mapping) else []
    return ", ".join(names[:NAMES_SHOWN_MAX]) or "no fields"


class Row(Struct, frozen=True, kw_only=True):
    """A record on its way into a sink. The whole document is stored next to the projected columns."""

    external_id: str
    stamp: Instant
    """When the source changed the record; 0 if unknown. An older row never replaces a newer one."""
    content_hash: str
    """Hash of the document without its volatile fields. Equal hashes mean unchanged."""
    document: str
    values: Mapping[str, Any]
    """The projected columns by name."""
    is_deleted: bool = False
    """The source reports the record as deleted. The row is kept and marked."""


class BadRow(Struct, frozen=True, kw_only=True):
    """A record that cannot become a row. It is stored and can be replayed."""

    position: int
    external_id: str | None
    code: str
    """missing_key, bad_type, bad_stamp, out_of_range, too_large or duplicate_key_in_page."""
    problem: str
    document: str


class WriteCounts(Struct, frozen=True):
    """What happened to the rows of one page."""

    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    stale: int = 0
    """Older than the stored row."""
    quarantined: int = 0

    @property
    def rows(self) -> int:
        return self.inserted + self.updated + self.unchanged + self.stale


class ColumnType(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    """64 bits."""
    REAL = "real"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """An `Instant`: microseconds since 1970."""
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
