"""Cron schedules: correct instants through both clock changes, and the configured handling of missed fires."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.schedule import (
    LATE_US_MAX,
    MISSED_MAX,
    Missed,
    Schedule,
    check_schedule,
    due_fires,
    fires_after,
    fires_before,
    next_fire,
)

MINUTE_US = 60 * SECOND_US
DAY_US = 24 * 60 * MINUTE_US


def schedule(cron: str, tz: str = "UTC", missed: Missed = Missed.LATEST) -> Schedule:
    return Schedule(name="nightly", kind="report", cron=cron, tz=tz, missed=missed)


def at(text: str, tz: str = "UTC", fold: int = 0) -> Instant:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)
    return int(moment.timestamp()) * SECOND_US


def told(instants: Iterator[Instant] | list[Instant], tz: str, count: int | None = None) -> list[str]:
    """Instants as local time with the offset from UTC."""
    local = (datetime.fromtimestamp(instant / SECOND_US, ZoneInfo(tz)) for instant in islice(instants, count))
    return [f"{moment:%m-%d %H:%M%z}" for moment in local]


# -- invalid schedules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "* * * * * * *", "61 * * * *", "* 24 * * *", "a * * * *", "*/0 * * * *", "@daily", "5-1 * * * *"],
)
def test_what_is_no_cron_expression_is_refused_by_name(cron: str) -> None:
    """The error must appear when the program starts, not when the first fire is due."""
    with pytest.raises(BadValue, match="cron nightly"):
        check_schedule(schedule(cron))


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 29 2 MON#5"])
def test_a_day_that_never_comes_is_refused_or_is_found(cron: str) -> None:
    """A schedule that can never fire is a mistake; one that fires rarely is not."""
    try:
        check_schedule(schedule(cron))
    except BadValue:
        return
    assert next_fire(schedule(cron), at("2024-01-01")) is not None


@pytest.mark.parametrize("tz", ["", "Nowhere/Land", "../../etc/passwd", "/etc/localtime", "America", "a\0b"], ids=ascii)
def test_what_is_no_time_zone_is_refused_by_name(tz: str) -> None:
    """The name is also a path, so no file outside the time zone database may be opened."""
    with pytest.raises(BadValue, match="cron nightly: tz"):
        check_schedule(schedule("0 3 * * *", tz))


def test_a_sensible_schedule_is_accepted() -> None:
    """Names of months and days must work, too."""
    check_schedule(schedule("*/5 9-17 * JAN-DEC MON-FRI", "Europe/Berlin"))


# -- clock changes --------------------------------------------------------------------------------------------------


def test_a_time_that_is_skipped_in_spring_fires_once_right_after() -> None:
    """02:30 does not exist in that night, and the job must still run."""
    nights = fires_after(schedule("30 2 * * *", "Europe/Berlin"), at("2024-03-30 12:00", "Europe/Berlin"))
    assert told(nights, "Europe/Berlin", 3) == ["03-31 03:00+0200", "04-01 02:30+0200", "04-02 02:30+0200"]


def test_a_time_that_comes_twice_in_autumn_fires_once() -> None:
    """02:30 exists twice in that night, and the job must run once."""
    nights = fires_after(schedule("30 2 * * *", "Europe/Berlin"), at("2024-10-26 12:00", "Europe/Berlin"))
    assert told(nights, "Europe/Berlin", 3) == ["10-27 02:30+0200", "10-28 02:30+0100", "10-29 02:30+0100"]


def test_every_hour_means_every_hour_in_both_nights() -> None:
    """Wildcards count real time: 23 fires in spring, 25 in autumn."""
    hourly = schedule("0 * * * *", "Europe/Berlin")
    for day, next_day, hours in (("2024-03-31", "2024-04-01", 23), ("2024-10-27", "2024-10-28", 25)):
        midnight, midnight_after = at(day, "Europe/Berlin"), at(next_day, "Europe/Berlin")
        fires = list(islice(fires_after(hourly, midnight - 1), hours + 1))
        assert (fires[0], fires[-1]) == (midnight, midnight_after)
        assert {later - earlier for earlier, later in pairwise(fires)} == {60 * MINUTE_US}


def test_in_the_repeated_hour_the_next_fire_is_not_in_the_past() -> None:
    """At the second 02:10, the 02:30 that fired in the first pass is over; the next one is tomorrow's."""
    nightly = schedule("30 2 * * *", "Europe/Berlin")
    second_pass = at("2024-10-27 02:10", "Europe/Berlin", fold=1)
    assert told([next_fire(nightly, second_pass) or 0], "Europe/Berlin") == ["10-28 02:30+0100"]


def test_in_the_repeated_hour_the_fire_of_the_first_pass_is_not_forgotten() -> None:
    """No worker ran from 02:25 on; one that starts at the second 02:10 must find the missed fire."""
    nightly = schedule("30 2 * * *", "Europe/Berlin")
    seen = at("2024-10-27 02:25", "Europe/Berlin")
    now = at("2024-10-27 02:10", "Europe/Berlin", fold=1)
    assert told(due_fires(nightly, seen, now), "Europe/Berlin") == ["10-27 02:30+0200"]


CRONS = [
    "30 2 * * *",
    "0 2 * * *",
    "0 3 * * *",
    "30 1-3 * * *",
    "*/20 * * * *",
    "15 * * * *",
    "59 1 * * *",
    "0 0 1 * *",
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"]
schedules = st.builds(schedule, st.sampled_from(CRONS), st.sampled_from(ZONES))
instants = st.integers(at("2024-01-01"), at("2025-01-01"))
BERLIN = schedule("30 2 * * *", "Europe/Berlin")


@given(schedules, instants)
@example(BERLIN, at("2024-10-27 02:10", "Europe/Berlin", fold=1))
@example(BERLIN, at("2024-03-31 03:00", "Europe/Berlin"))
def test_fires_after_an_instant_come_after_it_in_order(cron: Schedule, after: Instant) -> None:
    """This must hold to the microsecond, because a fire that is returned twice is a job that runs twice."""
    fires = list(islice(fires_after(cron, after), 5))
    assert len(fires) == 5
    assert all(a < b for a, b in pairwise([after, *fires]))


@given(schedules, instants)
@example(BERLIN, at("2024-10-27 02:10", "Europe/Berlin", fold=1))
@example(BERLIN, at("2024-03-31 03:00", "Europe/Berlin"))
def test_fires_before_an_instant_come_before_it_newest_first(cron: Schedule, until: Instant) -> None:
    """The instant itself is included."""
    fires = list(islice(fires_before(cron, until), 5))
    assert len(fires) == 5
    assert fires[0] <= until
    assert all(a > b for a, b in pairwise(fires))


@given(schedules, instants)
@example(BERLIN, at("2024-10-27 02:10", "Europe/Berlin", fold=1))
@example(BERLIN, at("2024-10-27 01:30", "Europe/Berlin"))
@example(BERLIN, at("2024-03-31 03:00", "Europe/Berlin"))
def test_the_past_is_what_the_future_was(cron: Schedule, now: Instant) -> None:
    """Searching backwards must find exactly the fires that searching forwards returned."""
    begin = now - 3 * DAY_US
    announced = list(takewhile(lambda fire: fire <= now, fires_after(cron, begin)))
    found = list(takewhile(lambda fire: fire > begin, fires_before(cron, now)))
    assert found[::-1] == announced


# -- missed fires -------------------------------------------------------------------------------------------

EVERY_MINUTE = {missed: schedule("* * * * *", missed=missed) for missed in Missed}
NOON = at("2024-06-01 12:00")


@pytest.mark.parametrize("missed", list(Missed))
def test_a_fire_happens_once(missed: Missed) -> None:
    """All fires up to and including `seen` were handled, and no fire may come before its time."""
    cron = EVERY_MINUTE[missed]
    assert due_fires(cron, NOON - 1, NOON) == [NOON]
    assert due_fires(cron, NOON, NOON) == []
    assert due_fires(cron, NOON, NOON + MINUTE_US - 1) == []
    assert due_fires(cron, NOON, NOON + MINUTE_US) == [NOON + MINUTE_US]


@pytest.mark.parametrize("missed", list(Missed))
def test_a_clock_that_was_set_back_fires_nothing(missed: Missed) -> None:
    """In this case `seen` lies in the future, so every due fire was already handled."""
    assert due_fires(EVERY_MINUTE[missed], NOON + DAY_US, NOON) == []


def test_latest_makes_up_for_the_newest_only() -> None:
    """After a weekend, users want one report, not three."""
    assert due_fires(EVERY_MINUTE[Missed.LATEST], NOON - DAY_US, NOON + 1) == [NOON]


def test_all_makes_up_for_the_newest_hundred_oldest_first() -> None:
    """A schedule that fires every minute must not flood the store after a month of downtime."""
    few = due_fires(EVERY_MINUTE[Missed.ALL], NOON - 3 * MINUTE_US, NOON)
    assert few == [NOON - 2 * MINUTE_US, NOON - MINUTE_US, NOON]
    many = due_fires(EVERY_MINUTE[Missed.ALL], NOON - DAY_US, NOON)
    assert many == [NOON - back * MINUTE_US for back in reversed(range(MISSED_MAX))]


def test_skip_drops_what_is_late() -> None:
    """A delay of up to a minute is tolerated, so that a slow tick is not a missed fire."""
    hourly = schedule("0 * * * *", missed=Missed.SKIP)
    assert due_fires(hourly, NOON - 1, NOON + LATE_US_MAX) == [NOON]
    assert due_fires(hourly, NOON - 1, NOON + LATE_US_MAX + 1) == []
    assert due_fires(hourly, NOON - DAY_US, NOON + 30 * MINUTE_US) == []


@given(st.sampled_from(Missed), st.sampled_from(CRONS), instants, st.integers(0, 3 * DAY_US))
def test_what_is_due_lies_between_seen_and_now(missed: Missed, cron: str, seen: Instant, passed_us: int) -> None:
    """Fires must come oldest first, each once and bounded in number; if none was dropped, none may be missing."""
    this = schedule(cron, missed=missed)
    now = seen + passed_us
    due = due_fires(this, seen, now)
    every = list(takewhile(lambda fire: fire <= now, fires_after(this, seen)))
    kept = {Missed.ALL: every[-MISSED_MAX:], Missed.LATEST: every[-1:]}
    in_time = [fire for fire in every[-1:] if fire >= now - LATE_US_MAX]
    assert due == kept.get(missed, in_time)
