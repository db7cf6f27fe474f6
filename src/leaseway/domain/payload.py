"""JSON, and nothing but JSON: what may be stored as arguments, result or cursor.

Values are encoded once, here. What could be stored but not be read back by every store and every language is
refused with the field's name: NaN, lone surrogates, NUL, nesting without end, more than 256 KiB.
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
    """The JSON text of a value. `field` is how an error calls it."""
    try:
        text = _encoder.encode(value).decode()
    except UnicodeEncodeError as error:
        raise BadValue(field, "contains a lone surrogate, which is not a character") from error
    except RecursionError as error:
        raise BadValue(field, f"is nested deeper than {DEPTH_MAX} levels, or contains itself") from error
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise BadValue(field, f"cannot be written as JSON: {error}") from error
    check(text, value, field)
    return text


def check(text: str, value: Any, field: str) -> None:
    """Refuse what JSON text hides. Each test is a cheap look for a sign, then a careful look if there is one."""
    if len(text) > BYTES_MAX or (not text.isascii() and len(text.encode()) > BYTES_MAX):
        size = len(text.encode())
        raise BadValue(
            field,
            f"is {size:,} bytes of JSON; {BYTES_MAX:,} are allowed. Store the data and submit its address",
        )
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise BadValue(field, f"is nested deeper than {DEPTH_MAX} levels")
    if "null" in text:
        # The encoder writes NaN and the infinities as null: a reader would get nothing where a number was sent.
        _refuse_not_finite(value, field)
    if "\\u0000" in text:
        _refuse_nul(msgspec.json.decode(text), field)


def _depth(text: str) -> int:
    """How deep the brackets go. Brackets inside strings may count too much: then the decoder has the last word."""
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
            raise BadValue(field, f"is {value}, which JSON cannot express; send null or a string instead")
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
