"""Stamps and durations.

Stamps are ISO 8601 with or without a zone, or seconds or milliseconds since 1970. Durations are written "90s", "15m",
"1h30m" or "7d".
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.validators import EPOCH, MICROSECOND

MILLISECONDS_FROM = 100_000_000_000
"""As seconds, this is the year 5138: larger numbers are milliseconds."""
INSTANT_MAX = 253_402_300_800 * SECOND_US
"""The year 10,000."""
INSTANT_MIN = -62_135_596_800 * SECOND_US


def parse_stamp(value: Any, format: str = "auto") -> Instant | None:
    """Returns None if the value is not a stamp. A text without a zone is in UTC."""
    return PARSERS[format](value)


@lru_cache(maxsize=4_096)  # many records of a page have the same stamp
def parse_iso_text(value: str) -> Instant | None:
    try:
        moment = datetime.fromisoformat(value.strip())
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    except (ValueError, OverflowError):
        return None


def parse_iso(value: Any) -> Instant | None:
    # "20260401" would parse as a date but may be a number.
    return parse_iso_text(value) if isinstance(value, str) and len(value) <= 50 and "-" in value else None


def parse_epoch(value: Any) -> Instant | None:
    return scale_number(value, SECOND_US)


def parse_epoch_ms(value: Any) -> Instant | None:
    return scale_number(value, SECOND_US // 1_000)


def parse_any(value: Any) -> Instant | None:
    if isinstance(value, str):
        return parse_iso(value) if "-" in value[1:] else scale_number(value, None)
    return scale_number(value, None)


def scale_number(value: Any, unit_us: int | None) -> Instant | None:
    try:
        number = parse_number(value)
    except ValueError:
        return None
    if number is None:
        return None
    if unit_us is None:
        unit_us = SECOND_US if abs(number) < MILLISECONDS_FROM else SECOND_US // 1_000
    instant = number * unit_us
    return round(instant) if INSTANT_MIN <= instant < INSTANT_MAX else None


def parse_number(value: Any) -> int | float | None:
    if isinstance(value, str):
        return None if len(value) > 30 else float(value) if "." in value else int(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


PARSERS: dict[str, Callable[[Any], Instant | None]] = {
    "auto": parse_any,
    "iso": parse_iso,
    "epoch": parse_epoch,
    "epoch_ms": parse_epoch_ms,
}


UNITS_US = {
    "ms": SECOND_US // 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "d": 86_400 * SECOND_US,
    "w": 7 * 86_400 * SECOND_US,
}
PATTERN = r"^(?:[0-9]{1,9}(?:ms|[smhdw]))+$"
PART = re.compile(r"([0-9]{1,9})(ms|[smhdw])")
DURATION_US_MAX = 3_660 * 86_400 * SECOND_US


def duration_us(field: str, text: object) -> int:
    if not isinstance(text, str) or not re.fullmatch(PATTERN, text):
        raise BadValue(field, f"must be a duration such as '90s', '15m', '1h30m' or '7d' (is {text!r})")
    length_us = sum(int(count) * UNITS_US[unit] for count, unit in PART.findall(text))
    if length_us > DURATION_US_MAX:
        raise BadValue(field, f"must be at most ten years (is {text!r})")
    return length_us
