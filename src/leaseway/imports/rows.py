"""Records ─► rows and bad rows. The spec is compiled once and applied to every record.

encode ─► key ─► stamp ─► quality ─► columns ─► content hash
   └─ a record that fails at a step becomes a bad row with a code; the other records continue
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.imports.domain.jsonpath import EVERY, MISSING, JsonPath, parse_path
from leaseway.imports.domain.page import BadRow, ColumnType, Record, Row
from leaseway.imports.domain.partition import canonical
from leaseway.imports.domain.timestamps import PARSERS, parse_any
from leaseway.imports.spec.model import ColumnSpec, DeleteSettings, QualityCheck, Resource

PathTree = dict[Any, Any]
"""Path steps to the subtree that is removed below them; an empty subtree removes everything."""


def compile_stable_part(volatile: Sequence[JsonPath]) -> Callable[[Record], Any]:
    """Compile a function that removes volatile fields before hashing. The common case, top-level fields, is fast."""
    if not volatile:
        return lambda record: record
    tree = build_path_tree(volatile)
    if EVERY in tree or any(tree.values()):
        return lambda record: remove_paths(record, tree)
    names = list(tree)

    def without_names(record: Record) -> Any:
        copy = dict(record)
        for name in names:
            copy.pop(name, None)
        return copy

    return without_names


def build_path_tree(paths: Iterable[JsonPath]) -> PathTree:
    tree: PathTree = {}
    for path in paths:
        level, is_covered = tree, False
        for step in path.steps[:-1]:
            if level.get(step) == {}:
                is_covered = True
                break
            level = level.setdefault(step, {})
        if path.steps and not is_covered:
            level[path.steps[-1]] = {}
    return tree


def remove_paths(value: Any, tree: PathTree) -> Any:
    """A copy without these fields. Parts of the value that are not affected are shared."""
    if isinstance(value, Mapping):
        steps: Iterable[Any] = list(value) if EVERY in tree else [step for step in tree if step in value]
        copy: Any = dict(value)
    elif isinstance(value, list):
        steps = range(len(value)) if EVERY in tree else [step for step in tree if is_index(step, value)]
        copy = list(value)
    else:
        return value
    for step in steps:
        below = tree.get(step, tree.get(EVERY))
        if below:
            copy[step] = remove_paths(copy[step], below)
        elif isinstance(copy, dict):
            del copy[step]
        else:
            copy[step] = None
    return copy


def is_index(step: Any, value: list[Any]) -> bool:
    return isinstance(step, int) and -len(value) <= step < len(value)


INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
TRUTH = {True: True, False: False, "true": True, "false": False, "True": True, "False": False}


class BadRecord(Exception):
    """A record that cannot become a row, with the error code of the bad row."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code
        self.problem = problem


def converter_for(type_: ColumnType) -> Callable[[Any], Any]:
    return CONVERTERS[type_]


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return canonical(value)
    raise wrong_type("text", value)


def integer(value: Any) -> int | None:
    if type(value) is int and INTEGER_MIN <= value <= INTEGER_MAX:  # the common case
        return value
    if isinstance(value, str):
        if not value:
            return None
        if not WHOLE.fullmatch(value):
            raise wrong_type("an integer", value)
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type("an integer", value)
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise BadRecord("out_of_range", f"must fit into 64 bits (is {value})")
    return value


def real(value: Any) -> float | None:
    if type(value) is float:
        return value
    if value == "":
        return None
    try:
        number = float(value) if isinstance(value, str | int) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise wrong_type("a number", value)
    return number


def boolean(value: Any) -> bool | None:
    if value == "" and isinstance(value, str):
        return None
    truth = TRUTH.get(value) if isinstance(value, bool | int | str) else None
    if truth is None:
        raise wrong_type("true or false", value)
    return truth


def timestamp(value: Any) -> int | None:
    if value == "":
        return None
    instant = parse_any(value)
    if instant is None:
        raise wrong_type("an instant", value)
    return instant


def wrong_type(what: str, value: Any) -> BadRecord:
    is_now = repr(value)
    return BadRecord("bad_type", f"must be {what} (is {is_now[:SHOWN_LENGTH]})")


CONVERTERS: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.TEXT: text,
    ColumnType.INTEGER: integer,
    ColumnType.REAL: real,
    ColumnType.BOOLEAN: boolean,
    ColumnType.TIMESTAMP: timestamp,
    ColumnType.JSON: canonical,
}


KEY_LENGTH_MAX = 500
AHEAD_US_MAX = 86_400 * SECOND_US
"""How far a stamp may be ahead of the source's clock. A stamp further in the future would block all later changes."""
SHOWN_LENGTH = 80

Getter = Callable[[Any], Any]
encode = msgspec.json.Encoder().encode
encode_canonical = msgspec.json.Encoder(order="deterministic").encode


class ColumnReader(NamedTuple):
    name: str
    get: Getter
    convert: Callable[[Any], Any]


class RowBuilder:
    """Builds the rows of one resource."""

    def __init__(self, resource: Resource) -> None:
        self._key = parse_path("key", resource.key).first
        self._stamp = None if resource.stamp is None else parse_path("stamp.field", resource.stamp.field).first
        self._parse = PARSERS["auto" if resource.stamp is None else resource.stamp.format]
        self._stamp_is_optional = resource.stamp is None or resource.stamp.optional
        self._columns = [compile_column(name, column) for name, column in resource.columns.items()]
        self._checks = [(name, parse_path("quality", name).first, check) for name, check in resource.quality.items()]
        self._stable = compile_stable_part([parse_path("volatile", text) for text in resource.volatile])
        self._bytes_max = resource.guards.row_bytes_max
        self._is_deleted = compile_deleted_mark(resource.deletes)

    def external_id(self, record: Record) -> str | None:
        try:
            return key_text(self._key(record))
        except BadRecord:
            return None

    def build(self, records: Sequence[Record], server_time: Instant | None = None) -> tuple[list[Row], list[BadRow]]:
        rows: list[Row] = []
        bad: list[BadRow] = []
        seen: set[str] = set()
        latest = None if server_time is None else server_time + AHEAD_US_MAX
        for position, record in enumerate(records):
            try:
                row = self._build_row(record, latest)
                if row.external_id in seen:
                    raise BadRecord("duplicate_key_in_page", f"{row.external_id!r} appears twice in the same page")
            except BadRecord as unfit:
                bad.append(self._bad_row(position, record, unfit))
            else:
                seen.add(row.external_id)
                rows.append(row)
        return rows, bad

    def _build_row(self, record: Record, latest: Instant | None) -> Row:
        if not isinstance(record, dict):
            raise BadRecord("bad_type", f"must be an object (is {render_value(record)})")
        document = encode_document(record)
        if len(document) > self._bytes_max:
            raise BadRecord("too_large", f"has {len(document):,} bytes; at most {self._bytes_max:,} are taken")
        external_id = key_text(self._key(record))
        stamp = self._read_stamp(record, latest)
        is_deleted = self._is_deleted(record)
        for name, get, check in () if is_deleted else self._checks:
            check_value(name, get(record), check)
        return Row(
            is_deleted=is_deleted,
            external_id=external_id,
            stamp=stamp,
            content_hash=self._content_hash(record),
            document=document.decode(),
            values={} if is_deleted else self._project(record),
        )

    def _read_stamp(self, record: Record, latest: Instant | None) -> Instant:
        value = MISSING if self._stamp is None else self._stamp(record)
        if value is None or value is MISSING:
            if self._stamp_is_optional:
                return 0
            raise BadRecord("bad_stamp", "is null" if value is None else "is missing")
        stamp = self._parse(value)
        if stamp is None:
            raise BadRecord("bad_stamp", f"is not a timestamp (is {render_value(value)})")
        if latest is not None and stamp > latest:
            raise BadRecord("bad_stamp", f"is more than a day ahead of the source's clock (is {render_value(value)})")
        return stamp

    def _content_hash(self, record: Record) -> str:
        return sha256(encode_canonical(self._stable(record))).hexdigest()[:32]

    def _project(self, record: Record) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, get, convert in self._columns:
            value = get(record)
            try:
                values[name] = None if value is None or value is MISSING else convert(value)
            except BadRecord as unfit:
                raise BadRecord(unfit.code, f"{name}: {unfit.problem}") from None
        return values

    def _bad_row(self, position: int, record: Record, unfit: BadRecord) -> BadRow:
        return BadRow(
            position=position,
            external_id=self.external_id(record),
            code=unfit.code,
            problem=unfit.problem,
            document=render_record(record),
        )


def compile_deleted_mark(deletes: DeleteSettings | None) -> Callable[[Record], bool]:
    if deletes is None or deletes.record is None:
        return lambda record: False
    get, values = parse_path("deletes.record.field", deletes.record.field).first, deletes.record.values

    def is_deleted(record: Record) -> bool:
        value = get(record)
        return value is not MISSING and (bool(value) if values is None else value in values)

    return is_deleted


def compile_column(name: str, column: ColumnSpec) -> ColumnReader:
    path = parse_path(name, column.path)
    return ColumnReader(name, path.all if path.has_star else path.first, converter_for(column.type))


def encode_document(record: Record) -> bytes:
    try:
        return encode(record)
    except (OverflowError, UnicodeEncodeError, RecursionError, TypeError, ValueError) as error:
        raise BadRecord("bad_type", f"cannot be encoded as JSON: {error}") from error


def render_record(record: Any) -> str:
    """The record as text, for display and for a later replay, whatever it contains."""
    try:
        return encode(record).decode()
    except (OverflowError, UnicodeEncodeError, RecursionError, TypeError, ValueError):
        try:
            return json.dumps(record, default=repr)
        except (RecursionError, ValueError):
            return json.dumps(repr(type(record)))


def key_text(key: Any) -> str:
    if type(key) is int:  # the common case
        return str(key)
    if key is None or key is MISSING or key == "":
        raise BadRecord("missing_key", "has no key" if key is MISSING else f"its key is {render_value(key)}")
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if not isinstance(key, str):
        raise BadRecord("bad_type", f"its key must be text or an integer (is {render_value(key)})")
    if len(key) > KEY_LENGTH_MAX:
        raise BadRecord("bad_type", f"its key has {len(key):,} characters; the maximum is {KEY_LENGTH_MAX}")
    return key


def check_value(name: str, value: Any, check: QualityCheck) -> None:
    if value is None or value is MISSING:
        if check.not_null:
            raise BadRecord("bad_type", f"{name}: must not be null")
        return
    if check.range is not None:
        number = parse_float(value)
        if number is None:
            raise BadRecord("bad_type", f"{name}: must be a number (is {render_value(value)})")
        if not check.range[0] <= number <= check.range[1]:
            raise BadRecord(
                "out_of_range",
                f"{name}: must be between {check.range[0]:g} and {check.range[1]:g} (is {render_value(value)})",
            )
    if check.one_of is not None and value not in check.one_of:
        raise BadRecord("out_of_range", f"{name}: must be one of {check.one_of} (is {render_value(value)})")


def parse_float(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None


def render_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"
