"""Points and spans of time as whole microseconds, exactly."""

from datetime import UTC, datetime, timedelta

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant

Seconds = float | timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
YEAR_SECONDS = 366 * 86_400
SECONDS_MAX = 10 * YEAR_SECONDS


def instant_of(field: str, value: object) -> Instant:
    if not isinstance(value, datetime):
        raise BadValue(field, f"must be a datetime (is {value!r})")
    if value.tzinfo is None:
        raise BadValue(field, "needs a time zone, for example datetime.now(timezone.utc)")
    return (value - EPOCH) // MICROSECOND


def duration_us(field: str, value: object, least: float = 0, most: float = SECONDS_MAX) -> int:
    """Seconds or a timedelta, as microseconds."""
    if isinstance(value, timedelta):
        microseconds = value // MICROSECOND
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= SECONDS_MAX:
        microseconds = round(value * SECOND_US)
    elif isinstance(value, int | float) and not isinstance(value, bool):  # far away, infinite, or not a number
        raise BadValue(field, f"must lie in {least:,} … {most:,} seconds (is {value:,})")
    else:
        raise BadValue(field, f"must be seconds or a timedelta (is {value!r})")
    if not least * SECOND_US <= microseconds <= most * SECOND_US:
        raise BadValue(field, f"must lie in {least:,} … {most:,} seconds (is {microseconds / SECOND_US:,})")
    return microseconds
