"""Calendar windows: the minute, hour, day, week or month that contains an instant, in a time zone.

Windows are half-open and follow each other without a gap. They are computed, not stored, so nothing has to be reset. A
day on which clocks change has 23 or 25 hours. Hours and minutes are those of the local clock: where a zone is half an
hour away from UTC, its hours start at half past. The hour that comes twice in autumn is two windows with two labels,
and the hour that is skipped in spring has none.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import Instant
from leaseway.domain.validators import EPOCH, MICROSECOND

AHEAD_MAX = 400
"""How many windows are searched for room, including the current one: more than a year of days, or 400 minutes."""
FOR_EVER: Instant = 2**62
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Every(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday, as in ISO 8601."""
    MONTH = "month"
    TOTAL = "total"
    """One window that never ends."""


class CalendarWindow(Struct, frozen=True, order=True):
    """From `start` up to but excluding `end`."""

    start: Instant
    end: Instant
    label: str

    def __contains__(self, instant: Instant) -> bool:
        return self.start <= instant < self.end


TOTAL = CalendarWindow(0, FOR_EVER, "total")


def parse_zone(field: str, name: object) -> ZoneInfo:
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError, AttributeError) as error:
        raise BadValue(field, f"unknown time zone {name!r}; use a name like 'Europe/Berlin'") from error


RECENT_MAX = 1_000
_recent: dict[tuple[Every, str], CalendarWindow] = {}
"""The window that was computed last. Nearly all holds are in it."""


def window_at(every: Every, tz: str, instant: Instant) -> CalendarWindow:
    """The window that contains this instant."""
    if every is Every.TOTAL:
        return TOTAL
    recent = _recent.get((every, tz))
    if recent is not None and recent.start <= instant < recent.end:
        return recent
    if len(_recent) >= RECENT_MAX:
        _recent.clear()
    window = _recent[every, tz] = _compute_window(every, tz, instant)
    return window


def _compute_window(every: Every, tz: str, instant: Instant) -> CalendarWindow:
    zone = ZoneInfo(tz)
    moment = (EPOCH + instant * MICROSECOND).astimezone(zone)
    if every is Every.HOUR or every is Every.MINUTE:
        return _clock_window_at(every, moment, zone)
    first, after, label = _days_at(every, moment.date())
    return CalendarWindow(_day_start(first, zone), _day_start(after, zone), label)


def windows_from(every: Every, tz: str, instant: Instant, count: int = AHEAD_MAX) -> Iterator[CalendarWindow]:
    """The window that contains this instant and those that follow it, `count` in all."""
    return islice(_windows_from(every, tz, instant), count)


def _windows_from(every: Every, tz: str, instant: Instant) -> Iterator[CalendarWindow]:
    window = window_at(every, tz, instant)
    yield window
    while window.end < FOR_EVER:
        window = _window_from(every, tz, window.end)
        yield window


_window_from = lru_cache(maxsize=4_096)(_compute_window)
"""The window that starts at this instant. Each search for room goes through the same later windows."""


def _days_at(every: Every, day: date) -> tuple[date, date, str]:
    """The first day of the window, the first day after it, and its label."""
    if every is Every.DAY:
        return day, day + DAY, day.isoformat()
    if every is Every.WEEK:
        monday = day - day.weekday() * DAY
        return monday, monday + 7 * DAY, f"{day.isocalendar().year:04}-W{day.isocalendar().week:02}"
    first = day.replace(day=1)
    return first, (first + 31 * DAY).replace(day=1), f"{day:%Y-%m}"


def _day_start(day: date, zone: ZoneInfo) -> Instant:
    """The first moment of a day. If clocks skip midnight, that is the moment at which they do."""
    return _instant(datetime(day.year, day.month, day.day, tzinfo=zone))


def _clock_window_at(every: Every, moment: datetime, zone: ZoneInfo) -> CalendarWindow:
    """One hour or minute of local time. If the clock is set within it, it is split in two."""
    length, pattern = (HOUR, "%Y-%m-%dT%H") if every is Every.HOUR else (MINUTE, "%Y-%m-%dT%H:%M")
    past = timedelta(minutes=moment.minute, seconds=moment.second, microseconds=moment.microsecond) % length
    now = moment.astimezone(UTC)
    full = now - past
    begin = _clock_set(full, now + MICROSECOND, zone) or full
    end = _clock_set(now, full + length, zone) or full + length
    offset = moment.isoformat()[-6:]
    return CalendarWindow(_instant(begin), _instant(end), f"{moment:{pattern}}{offset}")


def _clock_set(low: datetime, high: datetime, zone: ZoneInfo) -> datetime | None:
    """The moment in [low, high) at which the local clock is set, if it is."""
    before = low.astimezone(zone).utcoffset()
    high -= MICROSECOND
    if before == high.astimezone(zone).utcoffset():
        return None
    while high - low > MICROSECOND:  # halved each time: at most 32 steps for an hour
        middle = low + (high - low) // 2
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    return high


def _instant(moment: datetime) -> Instant:
    return (moment - EPOCH) // MICROSECOND
