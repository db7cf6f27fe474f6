"""Arguments, results and cursors as JSON.

Values are encoded here, once. Values that not every store and language can read back are refused, and the error names
the field: NaN, lone surrogates, NUL characters, deep nesting, more than 256 KiB.
"""

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from leaseway.domain.errors import BadValue

BYTES_MAX = 256 * 1024
DEPTH_MAX = 64

_encoder = msgspec.json.Encoder(order="deterministic", decimal_format="string")


def encode(value: Any, field: str) -> str:
    """The JSON text of a value. `field` is its name in error messages."""
    try:
        text = _encoder.encode(value).decode()
    except UnicodeEncodeError as error:
        raise BadValue(field, "contains a lone surrogate, which is not a valid character") from error
    except RecursionError as error:
        raise BadValue(field, f"is nested deeper than {DEPTH_MAX} levels, or contains itself") from error
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise BadValue(field, f"cannot be written as JSON: {error}") from error
    check(text, value, field)
    return text


def check(text: str, value: Any, field: str) -> None:
    """Refuse values that JSON text hides. A cheap test comes first; a careful one follows only if it finds a sign."""
    if len(text) > BYTES_MAX or (not text.isascii() and len(text.encode()) > BYTES_MAX):
        size = len(text.encode())
        raise BadValue(
            field,
            f"is {size:,} bytes of JSON; at most {BYTES_MAX:,} are allowed. Store the data and submit its URL",
        )
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise BadValue(field, f"is nested deeper than {DEPTH_MAX} levels")
    if "null" in text:
        # The encoder writes NaN and infinity as null, so a reader would get null where a number was sent.
        _refuse_not_finite(value, field)
    if "\\u0000" in text:
        _refuse_nul(msgspec.json.decode(text), field)


def _depth(text: str) -> int:
    """The nesting depth of the brackets outside strings."""
    deepest = depth = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def _refuse_not_finite(value: Any, field: str) -> None:
    if isinstance(value, Enum):
        _refuse_not_finite(value.value, field)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadValue(field, f"is {value}, which JSON cannot represent; use null or a string instead")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_not_finite(item, f"{field}.{name}")
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            _refuse_not_finite(item, f"{field}[{index}]")
    elif not isinstance(value, str | bytes | int | None):
        _refuse_not_finite_fields(value, field)


def _refuse_not_finite_fields(value: Any, field: str) -> None:
    fields: Any = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    for name in fields:
        _refuse_not_finite(getattr(value, name), f"{field}.{name}")


def _refuse_nul(value: Any, field: str) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise BadValue(field, "contains a NUL character, which not every store can keep")
    elif isinstance(value, dict):
        for name, item in value.items():
            _refuse_nul(name, f"{field}.{name!r}")
            _refuse_nul(item, f"{field}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_nul(item, f"{field}[{index}]")
