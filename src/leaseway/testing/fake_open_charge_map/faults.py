"""What shall go wrong, and how often: switches, all of them off but for what the real API does every day."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from leaseway.domain.errors import BadValue


class Faults(Struct, frozen=True, forbid_unknown_fields=True):
    """`every`: each n-th page that is asked for; 0: never."""

    error_every: int = 0
    error_status: int = 503
    slow_every: int = 0
    slow_seconds: float = 1.0
    empty_every: int = 0
    """200 with [], as when the mirror's database is away."""
    truncated_every: int = 0
    """The connection ends in the middle of the body."""
    html_every: int = 0
    """200 with a page for people."""
    reordered: bool = False
    """`id_asc` sorts by the date of creation, as when the second database answers."""
    absent_every: int = 0
    """The mirror deletes some rows and inserts them again: they are absent for a moment."""
    absent_rows: int = 50
    absent_seconds: float = 0.3
    absent_changed: bool = True
    """It does so with rows that were changed, whose stamps tell. False: nothing tells, as when it is built anew."""
    lag_seconds: float = 0.0
    """The longest time until a change can be seen."""
    changes_every: int = 0
    """Data that changes while it is being read: rows that exist, and new ones."""
    changed_rows: int = 10
    inserted_rows: int = 0
    is_volatile: bool = False
    """Fields that are computed for each request differ each time."""
    unknown_country_is_world: bool = True
    """What the real API does with a country code that it does not know."""
    ignores_filters: bool = False
    """Countries and dates are not looked at."""
    page_max: int = 0
    """No page has more rows, whatever was asked for; nothing says so. 0: no such ceiling."""


def is_due(every: int, number: int) -> bool:
    return every > 0 and number % every == 0


def faults_of(value: Faults | Mapping[str, Any]) -> Faults:
    if isinstance(value, Faults):
        return value
    try:
        return msgspec.convert(value, Faults)
    except msgspec.ValidationError as error:
        raise BadValue("faults", f"{error}; there are {', '.join(Faults.__struct_fields__)}") from error
