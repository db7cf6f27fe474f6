"""Faults, and how often they occur. All are off, except what the real API does every day."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from leaseway.domain.errors import BadValue


class Faults(Struct, frozen=True, forbid_unknown_fields=True):
    """`every` means each n-th requested page; 0 means never."""

    error_every: int = 0
    error_status: int = 503
    slow_every: int = 0
    slow_seconds: float = 1.0
    empty_every: int = 0
    """200 with [], as when the mirror's database is down."""
    truncated_every: int = 0
    """The connection ends in the middle of the body."""
    html_every: int = 0
    """200 with an HTML page."""
    reordered: bool = False
    """`id_asc` sorts by date of creation, as when the secondary database answers."""
    absent_every: int = 0
    """The mirror deletes some rows and inserts them again: they are missing for a moment."""
    absent_rows: int = 50
    absent_seconds: float = 0.3
    absent_changed: bool = True
    """True: with changed rows, which have new stamps. False: with unchanged rows, as when the mirror is rebuilt."""
    lag_seconds: float = 0.0
    """The longest time until a change becomes visible."""
    changes_every: int = 0
    """Data changes while it is read: existing records, and new ones."""
    changed_rows: int = 10
    inserted_rows: int = 0
    is_volatile: bool = False
    """Computed fields differ in every reply."""
    unknown_country_is_world: bool = True
    """What the real API does with an unknown country code."""
    ignores_filters: bool = False
    """Filters by country and date are ignored."""
    page_max: int = 0
    """No page has more rows, whatever was requested, and the reply does not say so. 0: no such limit."""


def is_due(every: int, number: int) -> bool:
    return every > 0 and number % every == 0


def parse_faults(value: Faults | Mapping[str, Any]) -> Faults:
    if isinstance(value, Faults):
        return value
    try:
        return msgspec.convert(value, Faults)
    except msgspec.ValidationError as error:
        raise BadValue("faults", f"{error}; there are {', '.join(Faults.__struct_fields__)}") from error
