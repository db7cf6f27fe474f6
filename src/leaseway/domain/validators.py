"""Checks of values that users write: names, whole numbers, durations, points in time."""

from datetime import UTC, datetime, timedelta

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant

NAME_LENGTH_MAX = 200


def check_name(field: str, value: object) -> str:
    """Printable text of a bounded length."""
    if not isinstance(value, str):
        raise BadValue(field, f"must be a string (is {type(value).__name__})")
    if not value or len(value) > NAME_LENGTH_MAX or not value.isprintable():
        raise BadValue(field, f"must be 1 to {NAME_LENGTH_MAX} printable characters (is {value[:40]!r})")
    return value


def check_int(field: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadValue(field, f"must be a whole number (is {value!r})")
    if not least <= value <= most:
        raise BadValue(field, f"must be between {least:,} and {most:,} (is {value:,})")
    return value


Seconds = float | timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
YEAR_SECONDS = 366 * 86_400
SECONDS_MAX = 10 * YEAR_SECONDS


def parse_instant(field: str, value: object) -> Instant:
    if not isinstance(value, datetime):
        raise BadValue(field, f"must be a datetime (is {value!r})")
    if value.tzinfo is None:
        raise BadValue(field, "needs a time zone, for example datetime.now(timezone.utc)")
    return (value - EPOCH) // MICROSECOND


def parse_duration_us(field: str, value: object, least: float = 0, most: float = SECONDS_MAX) -> int:
    """Convert seconds or a timedelta to microseconds."""
    if isinstance(value, timedelta):
        microseconds = value // MICROSECOND
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= SECONDS_MAX:
        microseconds = round(value * SECOND_US)
    elif isinstance(value, int | float) and not isinstance(value, bool):  # too large, infinite, or not a number
        raise BadValue(field, f"must be between {least:,} and {most:,} seconds (is {value:,})")
    else:
        raise BadValue(field, f"must be seconds or a timedelta (is {value!r})")
    if not least * SECOND_US <= microseconds <= most * SECOND_US:
        raise BadValue(field, f"must be between {least:,} and {most:,} seconds (is {microseconds / SECOND_US:,})")
    return microseconds
