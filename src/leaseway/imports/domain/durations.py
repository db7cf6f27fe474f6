"""Durations as people write them in a spec: "90s", "15m", "1h30m", "7d"."""

import re

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US

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
