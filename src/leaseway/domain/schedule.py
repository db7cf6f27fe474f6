"""Cron schedules: when they fire, and what happens to missed fire times."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.validators import check_name

MISSED_MAX = 100
"""The most missed fires that `Missed.ALL` makes up for; older ones are dropped."""


class Missed(StrEnum):
    """What happens to fire times that passed while no worker ran."""

    LATEST = "latest"
    """Submit one job, for the latest of them."""
    ALL = "all"
    """Submit one job for each of the latest hundred."""
    SKIP = "skip"
    """Submit no job for a fire time that passed more than a minute ago."""


class Schedule(Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    cron: str
    tz: str = "UTC"
    missed: Missed = Missed.LATEST


class StoredSchedule(Struct, frozen=True, kw_only=True):
    schedule: Schedule
    seen: Instant
    """Fire times up to this instant have been handled."""
    now: Instant
    """The store's clock when it answered."""
    paused: bool = False
    last_fire: Instant | None = None


LATE_US_MAX = 60 * SECOND_US
HOUR_US = 3_600 * SECOND_US
FOLD_MAX = timedelta(hours=3)


def check_schedule(schedule: Schedule) -> None:
    """Refuse invalid names, an invalid cron expression or time zone."""
    check_name("cron: name", schedule.name)
    check_name(f"cron {schedule.name}: kind", schedule.kind)
    try:
        zone = ZoneInfo(schedule.tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadValue(
            f"cron {schedule.name}: tz", f"unknown time zone {schedule.tz!r}; use a name like 'Europe/Berlin'"
        ) from error
    if not isinstance(schedule.cron, str):
        raise BadValue(f"cron {schedule.name}", f"must be a text like '*/5 * * * *' (is {schedule.cron!r})")
    try:
        next(CronSim(schedule.cron, datetime(2024, 1, 1, tzinfo=zone)))
    except (CronSimError, StopIteration) as error:
        raise BadValue(
            f"cron {schedule.name}",
            f"{schedule.cron!r} is not a cron expression ({error}); five fields are expected, like '*/5 * * * *'",
        ) from error


def fires_after(schedule: Schedule, after: Instant) -> Iterator[Instant]:
    """Fire times later than `after`, in the schedule's own time zone, daylight saving included."""
    start = datetime.fromtimestamp(after / SECOND_US, UTC).astimezone(ZoneInfo(schedule.tz))
    if start.fold:
        # In the hour that is repeated in autumn, a local time names two instants. Start before that hour and skip.
        start = (start.astimezone(UTC) - FOLD_MAX).astimezone(start.tzinfo)
    for fire in CronSim(schedule.cron, start):
        instant = int(fire.timestamp()) * SECOND_US
        if instant > after:
            yield instant


def fires_before(schedule: Schedule, until: Instant) -> Iterator[Instant]:
    """Fire times up to `until`, newest first."""
    width = HOUR_US
    while until > 0:
        begin = max(until - width, 0)
        ahead = takewhile(lambda fire, end=until: fire <= end, fires_after(schedule, begin))  # type: ignore[misc]
        yield from reversed(list(ahead))
        until, width = begin, 2 * width


def next_fire(schedule: Schedule, after: Instant) -> Instant | None:
    return next(fires_after(schedule, after), None)


def upcoming_fire(row: StoredSchedule) -> Instant | None:
    """The next fire time; None if the schedule is paused or its time zone is unknown on this machine."""
    if row.paused:
        return None
    try:
        check_schedule(row.schedule)
    except BadValue:
        return None
    return next_fire(row.schedule, row.now)


def due_fires(schedule: Schedule, seen: Instant, now: Instant) -> list[Instant]:
    """The fire times in (seen, now] for which jobs are submitted, oldest first."""
    fires: list[Instant] = []
    for fire in fires_before(schedule, now):
        too_late = schedule.missed is Missed.SKIP and fire < now - LATE_US_MAX
        if fire <= seen or too_late or len(fires) == MISSED_MAX:
            break
        fires.append(fire)
        if schedule.missed is not Missed.ALL:
            break
    return fires[::-1]
