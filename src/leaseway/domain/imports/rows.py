"""Records ─► rows and bad rows. Everything that a spec says about a record is compiled once, and used for every one.

encode ─► key ─► stamp ─► quality ─► columns ─► content hash
   └─ a record that fails at one of these steps is a bad row: kept, named by a code, and never in the way of others
"""

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.imports.jsonpath import MISSING, path_of
from leaseway.domain.imports.page import BadRow, Record, Row
from leaseway.domain.imports.projection import Unfit, converter_of
from leaseway.domain.imports.spec_parts import Check, Column, Resource
from leaseway.domain.imports.stamps import PARSERS
from leaseway.domain.imports.volatile import stable_of

KEY_LENGTH_MAX = 500
AHEAD_US_MAX = 86_400 * SECOND_US
"""A stamp may lie so far after the source's own time. One that lies further would keep every later change out."""
SHOWN_LENGTH = 80

Getter = Callable[[Any], Any]
encode = msgspec.json.Encoder().encode
encode_canonical = msgspec.json.Encoder(order="deterministic").encode


class Field(NamedTuple):
    name: str
    get: Getter
    convert: Callable[[Any], Any]


class Moulds:
    """What becomes of the records of one resource."""

    def __init__(self, resource: Resource) -> None:
        self._key = path_of("key", resource.key).first
        self._stamp = None if resource.stamp is None else path_of("stamp.field", resource.stamp.field).first
        self._parse = PARSERS["auto" if resource.stamp is None else resource.stamp.format]
        self._stamp_is_optional = resource.stamp is None or resource.stamp.optional
        self._columns = [field_of(name, column) for name, column in resource.columns.items()]
        self._checks = [(name, path_of("quality", name).first, check) for name, check in resource.quality.items()]
        self._stable = stable_of([path_of("volatile", text) for text in resource.volatile])
        self._bytes_max = resource.guards.row_bytes_max

    def external_id(self, record: Record) -> str | None:
        try:
            return key_text(self._key(record))
        except Unfit:
            return None

    def rows_of(self, records: Sequence[Record], server_time: Instant | None = None) -> tuple[list[Row], list[BadRow]]:
        rows: list[Row] = []
        bad: list[BadRow] = []
        seen: set[str] = set()
        latest = None if server_time is None else server_time + AHEAD_US_MAX
        for position, record in enumerate(records):
            try:
                row = self._row_of(record, latest)
                if row.external_id in seen:
                    raise Unfit("duplicate_key_in_page", f"{row.external_id!r} came before in the same page")
            except Unfit as unfit:
                bad.append(self._bad_row(position, record, unfit))
            else:
                seen.add(row.external_id)
                rows.append(row)
        return rows, bad

    def _row_of(self, record: Record, latest: Instant | None) -> Row:
        if not isinstance(record, dict):
            raise Unfit("bad_type", f"must be an object (is {shown(record)})")
        document = document_of(record)
        if len(document) > self._bytes_max:
            raise Unfit("too_large", f"has {len(document):,} bytes; at most {self._bytes_max:,} are taken")
        external_id = key_text(self._key(record))
        stamp = self._stamp_of(record, latest)
        for name, get, check in self._checks:
            check_value(name, get(record), check)
        return Row(
            external_id=external_id,
            stamp=stamp,
            content_hash=self._hash_of(record),
            document=document.decode(),
            values=self._values_of(record),
        )

    def _stamp_of(self, record: Record, latest: Instant | None) -> Instant:
        value = MISSING if self._stamp is None else self._stamp(record)
        if value is None or value is MISSING:
            if self._stamp_is_optional:
                return 0
            raise Unfit("bad_stamp", "is null" if value is None else "is missing")
        stamp = self._parse(value)
        if stamp is None:
            raise Unfit("bad_stamp", f"is no instant (is {shown(value)})")
        if latest is not None and stamp > latest:
            raise Unfit("bad_stamp", f"lies more than a day after the source's own time (is {shown(value)})")
        return stamp

    def _hash_of(self, record: Record) -> str:
        return sha256(encode_canonical(self._stable(record))).hexdigest()[:32]

    def _values_of(self, record: Record) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, get, convert in self._columns:
            value = get(record)
            try:
                values[name] = None if value is None or value is MISSING else convert(value)
            except Unfit as unfit:
                raise Unfit(unfit.code, f"{name}: {unfit.problem}") from None
        return values

    def _bad_row(self, position: int, record: Record, unfit: Unfit) -> BadRow:
        return BadRow(
            position=position,
            external_id=self.external_id(record),
            code=unfit.code,
            problem=unfit.problem,
            document=text_of(record),
        )


def field_of(name: str, column: Column) -> Field:
    path = path_of(name, column.path)
    return Field(name, path.all if path.has_star else path.first, converter_of(column.type))


def document_of(record: Record) -> bytes:
    try:
        return encode(record)
    except (OverflowError, UnicodeEncodeError, RecursionError, TypeError, ValueError) as error:
        raise Unfit("bad_type", f"cannot be written as JSON again: {error}") from error


def text_of(record: Any) -> str:
    """For people and for another try, whatever it is."""
    try:
        return encode(record).decode()
    except (OverflowError, UnicodeEncodeError, RecursionError, TypeError, ValueError):
        try:
            return json.dumps(record, default=repr)
        except (RecursionError, ValueError):
            return json.dumps(repr(type(record)))


def key_text(key: Any) -> str:
    if type(key) is int:  # as most are
        return str(key)
    if key is None or key is MISSING or key == "":
        raise Unfit("missing_key", "has no key" if key is MISSING else f"its key is {shown(key)}")
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if not isinstance(key, str):
        raise Unfit("bad_type", f"its key must be text or a whole number (is {shown(key)})")
    if len(key) > KEY_LENGTH_MAX:
        raise Unfit("bad_type", f"its key has {len(key):,} characters; at most {KEY_LENGTH_MAX} are taken")
    return key


def check_value(name: str, value: Any, check: Check) -> None:
    if value is None or value is MISSING:
        if check.not_null:
            raise Unfit("bad_type", f"{name}: must not be null")
        return
    if check.range is not None:
        number = number_in(value)
        if number is None:
            raise Unfit("bad_type", f"{name}: must be a number (is {shown(value)})")
        if not check.range[0] <= number <= check.range[1]:
            raise Unfit(
                "out_of_range", f"{name}: must lie in {check.range[0]:g} … {check.range[1]:g} (is {shown(value)})"
            )
    if check.one_of is not None and value not in check.one_of:
        raise Unfit("out_of_range", f"{name}: must be one of {check.one_of} (is {shown(value)})")


def number_in(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"
