"""row ─► the values of one line, or a bad row if they cannot be stored.

One row must not fail its page forever, so values that the database would refuse go into quarantine here. `RowEncoder`
contains all rules. `PageEncoder` encodes a whole page at once, column by column, in less than half the time; a page
with an unusual value goes row by row through `RowEncoder`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.page import BadRow, ColumnType, Row
from leaseway.imports.domain.partition import canonical
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


NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC, as everything here is; without a zone it is written faster
Values = list[Any]
ColumnEncoder = Callable[[Values], Values]


class UnusualValue(Exception):
    """The page needs the row-by-row encoder."""


class PageEncoder(RowEncoder):
    def __init__(self, columns: Mapping[str, ColumnType], document: Callable[[str], str]) -> None:
        super().__init__(columns, document)
        fits = zip(self._columns, columns.values(), strict=True)
        self._encoders = [(name, COLUMN_ENCODERS.get(kind) or encode_each(fit)) for (name, fit), kind in fits]

    def lines(self, rows: Sequence[Row]) -> tuple[list[Line], list[BadRow]]:
        try:
            return self._encode_page(rows), []
        except (UnusualValue, Unstorable):
            return super().lines(rows)

    def _encode_page(self, rows: Sequence[Row]) -> list[Line]:
        ids = keys([row.external_id for row in rows])
        stamps = integers([row.stamp for row in rows])
        if None in stamps:
            raise UnusualValue
        hashes = [row.content_hash for row in rows]
        documents = [row.document for row in rows]
        if not all(map(str.isascii, documents)):
            documents = list(map(replace_surrogates, documents))
        deleted = [row.is_deleted for row in rows]
        values = [row.values for row in rows]
        columns = [whole([each.get(name) for each in values]) for name, whole in self._encoders]
        return list(zip(ids, stamps, hashes, map(self._document, documents), deleted, *columns, strict=True))


def encode_each(fit: Callable[[Any], Any]) -> ColumnEncoder:
    return lambda values: [None if value is None else fit(value) for value in values]


def keys(ids: list[str]) -> list[str]:
    together = "".join(ids)
    # A character has at most four bytes.
    is_plain = "\0" not in together and is_storable(together) and max(map(len, ids), default=0) * 4 <= ID_BYTES_MAX
    if not is_plain or len(set(ids)) < len(ids):
        raise UnusualValue
    return ids


def texts(values: Values) -> Values:
    present = require_type(values, str)
    together = "".join(present)
    if "\0" in together or not (together.isascii() or is_storable(together)):
        raise UnusualValue
    return values


def integers(values: Values) -> Values:
    present = require_type(values, int)
    if present and not INTEGER_MIN <= min(present) <= max(present) <= INTEGER_MAX:
        raise UnusualValue
    return values


def reals(values: Values) -> Values:
    types = set(map(type, values)) - {type(None)}
    if types <= {float}:
        return values
    if not types <= {float, int}:
        raise UnusualValue
    try:
        return [None if value is None else float(value) for value in values]
    except OverflowError:
        raise UnusualValue from None


def booleans(values: Values) -> Values:
    require_type(values, bool)
    return values


def timestamps(values: Values) -> Values:
    present = require_type(values, int)
    if present and not INSTANT_MIN <= min(present) <= max(present) <= INSTANT_MAX:
        raise UnusualValue
    return [
        None if value is None else f"{(NAIVE_EPOCH + timedelta(0, 0, value)).isoformat('T', 'microseconds')}Z"
        for value in values
    ]


def require_type(values: Values, kind: type) -> Values:
    """The values that are not None, if all of them have exactly this type."""
    types = set(map(type, values))
    if types <= {kind}:
        return values
    if not types <= {kind, type(None)}:
        raise UnusualValue
    return [value for value in values if value is not None]


COLUMN_ENCODERS: Mapping[ColumnType, ColumnEncoder] = {
    ColumnType.TEXT: texts,
    ColumnType.INTEGER: integers,
    ColumnType.REAL: reals,
    ColumnType.BOOLEAN: booleans,
    ColumnType.TIMESTAMP: timestamps,
}
