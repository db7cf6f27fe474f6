"""row ─► the values of one line, or a bad row if they cannot be stored.

One row must not fail its page forever, so values that the database would refuse go into quarantine here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.page import BadRow, ColumnType, Row
from leaseway.imports.domain.shard import canonical
from leaseway.imports.sinks.columns import is_storable

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
INSTANT_MIN, INSTANT_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999."""

ID_BYTES_MAX = 2_000
"""Index entries of PostgreSQL can be slightly larger, together with the name of the source."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNKNOWN = "\ufffd"
ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
"""One JSON escape; a surrogate pair counts as one."""
IMPOSSIBLE = re.compile(r"\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})")

Line = tuple[Any, ...]
"""external_id, stamp, content_hash, document, is_deleted, and the projected columns in their order."""
IS_DELETED = 4
ValueEncoder = Callable[[Any], Any]


class RowEncoder:
    """Encodes the rows of one table. `document` encodes documents for the database."""

    def __init__(self, columns: Mapping[str, ColumnType], document: Callable[[str], str]) -> None:
        fits: Mapping[ColumnType, ValueEncoder] = {
            ColumnType.TEXT: text,
            ColumnType.INTEGER: integer,
            ColumnType.REAL: real,
            ColumnType.BOOLEAN: boolean,
            ColumnType.TIMESTAMP: timestamp,
            ColumnType.JSON: lambda value: document(
                replace_surrogates(value if isinstance(value, str) else canonical(value))
            ),
        }
        self._columns = [(name, fits[kind]) for name, kind in columns.items()]
        self._document = document

    def lines(self, rows: Sequence[Row]) -> tuple[list[Line], list[BadRow]]:
        lines: dict[str, Line] = {}
        bad = []
        for position, row in enumerate(rows):
            try:
                if row.external_id in lines:
                    raise Unstorable("duplicate_key_in_page", "the page has another row with this id, which is used")
                lines[row.external_id] = self.line(row)
            except Unstorable as unfit:
                bad.append(bad_row(position, row, unfit))
        return list(lines.values()), bad

    def single(self, row: Row) -> Line:
        """Encode a row outside a page. The caller gets the problem as an error."""
        try:
            return self.line(row)
        except Unstorable as unfit:
            raise BadValue("row", f"{unfit} ({unfit.code})") from None

    def line(self, row: Row) -> Line:
        key = row.external_id
        if not is_storable_id(key):
            raise unstorable_id(key)
        own = (
            key,
            integer(row.stamp),
            row.content_hash,
            self._document(replace_surrogates(row.document)),
            row.is_deleted,
        )
        return (*own, *self._projected(row.values)) if self._columns else own

    def _projected(self, values: Mapping[str, Any]) -> list[Any]:
        fitted = []
        for name, fit in self._columns:
            value = values.get(name)
            try:
                fitted.append(None if value is None else fit(value))
            except Unstorable as unfit:
                raise Unstorable(unfit.code, f"{name}: {unfit}") from None
        return fitted


class Unstorable(Exception):
    """A value that cannot be stored."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code


def bad_row(position: int, row: Row, unfit: Unstorable) -> BadRow:
    return BadRow(
        position=position, external_id=row.external_id, code=unfit.code, problem=str(unfit), document=row.document
    )


def is_storable_id(key: str) -> bool:
    if key.isascii():
        return len(key) <= ID_BYTES_MAX and "\0" not in key
    return len(key) <= ID_BYTES_MAX and "\0" not in key and is_storable(key) and len(key.encode()) <= ID_BYTES_MAX


def unstorable_id(key: str) -> Unstorable:
    if "\0" in key or not is_storable(key):
        return Unstorable("out_of_range", "the id contains NUL or a lone surrogate, which databases do not accept")
    return Unstorable("too_large", f"the id is longer than {ID_BYTES_MAX:,} bytes")


def replace_surrogates(value: str) -> str:
    """Replace invalid characters by U+FFFD."""
    if value.isascii() or is_storable(value):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def replace_nul(value: str) -> str:
    """Replace NUL, which ends texts in some databases and programs."""
    return replace_surrogates(value).replace("\0", UNKNOWN)


def jsonb_text(document: str) -> str:
    """jsonb accepts neither NUL nor lone surrogates, not even as escapes."""
    if "\\u" not in document:
        return document
    return ESCAPE.sub(lambda found: IMPOSSIBLE.sub(r"\\ufffd", found[0]) if len(found[0]) == 6 else found[0], document)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unstorable("bad_type", f"must be text (is {shorten(value)})")
    return replace_nul(value)


def integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unstorable("bad_type", f"must be an integer (is {shorten(value)})")
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise Unstorable("out_of_range", "must be a 64-bit integer")
    return value


def real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unstorable("bad_type", f"must be a number (is {shorten(value)})")
    try:
        return float(value)
    except OverflowError:
        raise Unstorable("out_of_range", "is too large for a 64-bit number") from None


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unstorable("bad_type", f"must be true or false (is {shorten(value)})")
    return value


def timestamp(value: Any) -> str:
    """0800-12-25T12:30:00.000000Z. The length is constant, so texts sort by time."""
    if not INSTANT_MIN <= integer(value) <= INSTANT_MAX:
        raise Unstorable("out_of_range", "must be between the years 1 and 9999, in microseconds since 1970")
    moment = EPOCH + timedelta(microseconds=value)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def shorten(value: Any) -> str:
    return f"{value!r:.40}"
