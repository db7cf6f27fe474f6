"""row ─► the fields of a document, or a bad row if MongoDB would refuse it.

The record is stored as a sub-document, so that all its fields can be queried. Names with dots and dollars are kept.
Only values that BSON cannot represent are changed: integers of more than 64 bits become decimals, or texts if they are
longer, and invalid characters become U+FFFD.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import bson
import msgspec
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.page import BadRow, ColumnType, Row
from leaseway.imports.sinks.bulk_encoding import PageEncoder, UnusualValue
from leaseway.imports.sinks.columns import check_columns
from leaseway.imports.sinks.row_encoding import INTEGER_MAX, INTEGER_MIN, Line, Unstorable, jsonb_text, replace_nul

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
