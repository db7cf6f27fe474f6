"""One page, as a source hands it over, and one row, as a sink takes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from leaseway.domain.ids import Instant
from leaseway.domain.imports.shard import Cursor

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


class BadRow(Struct, frozen=True, kw_only=True):
    """A record that cannot become a row. It is kept, and can be replayed."""

    position: int
    external_id: str | None
    code: str
    """missing_key, bad_type, bad_stamp, out_of_range, too_large or duplicate_key_in_page."""
    problem: str
    document: str


class Written(Struct, frozen=True):
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
