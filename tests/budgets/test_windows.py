"""Calendar windows: without gap or overlap, also on days with a clock change."""

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.domain.budgets import calendar_windows
from leaseway.domain.budgets.calendar_windows import (
    FOR_EVER,
    CalendarWindow,
    Every,
    parse_zone,
    window_at,
    windows_from,
)
from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant

HOUR_US = 3_600 * SECOND_US
ZONES = (
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "America/Santiago",  # clocks skip midnight in spring
    "America/Havana",  # midnight comes twice in autumn
    "Australia/Lord_Howe",  # the clock changes by half an hour
    "Asia/Kathmandu",
    "Pacific/Apia",
)


def at(*parts: int, tz: str = "UTC", fold: int = 0) -> Instant:
    moment = datetime(*parts, tzinfo=ZoneInfo(tz), fold=fold)  # type: ignore[arg-type,misc]
    return int(moment.astimezone(UTC).timestamp()) * SECOND_US


def hours(window: CalendarWindow) -> float:
    return (window.end - window.start) / HOUR_US


@pytest.mark.parametrize(
    ("every", "label", "start", "end"),
    [
        ("minute", "2026-11-15T14:30+01:00", (2026, 11, 15, 13, 30), (2026, 11, 15, 13, 31)),
        ("hour", "2026-11-15T14+01:00", (2026, 11, 15, 13), (2026, 11, 15, 14)),
        ("day", "2026-11-15", (2026, 11, 14, 23), (2026, 11, 15, 23)),
        ("week", "2026-W46", (2026, 11, 8, 23), (2026, 11, 15, 23)),
        ("month", "2026-11", (2026, 10, 31, 23), (2026, 11, 30, 23)),
    ],
)
def test_a_window_is_the_calendars_own(every: str, label: str, start: tuple[int, ...], end: tuple[int, ...]) -> None:
    """Users compare the window with their provider's bill."""
    window = window_at(Every(every), "Europe/Zurich", at(2026, 11, 15, 14, 30, tz="Europe/Zurich"))
    assert window == CalendarWindow(at(*start), at(*end), label)


def test_a_total_window_never_ends() -> None:
    """This must hold at any time."""
    assert (
        window_at(Every.TOTAL, "UTC", 0) == window_at(Every.TOTAL, "UTC", 2**55) == CalendarWindow(0, FOR_EVER, "total")
    )
    assert len(list(windows_from(Every.TOTAL, "UTC", 0))) == 1


@pytest.mark.parametrize(("day", "length"), [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 10, 26), 24)])
def test_days_on_which_clocks_are_set_are_shorter_or_longer(day: tuple[int, int, int], length: int) -> None:
    """Days of 86,400 seconds would drift away from the calendar by an hour."""
    window = window_at(Every.DAY, "Europe/Zurich", at(*day, 12, tz="Europe/Zurich"))
    assert hours(window) == length
    assert window.start == at(*day, tz="Europe/Zurich")


def test_the_hour_that_comes_twice_is_two_windows() -> None:
    """One label for both hours would be one budget for two hours."""
    first, second = (
        window_at(Every.HOUR, "Europe/Zurich", at(2026, 10, 25, 2, 30, tz="Europe/Zurich", fold=fold))
        for fold in (0, 1)
    )
    assert (first.label, second.label) == ("2026-10-25T02+02:00", "2026-10-25T02+01:00")
    assert first.end == second.start
    assert hours(first) == hours(second) == 1


def test_the_minute_that_comes_twice_is_two_windows() -> None:
    """The labels of the two must differ, because a label is part of the window's key."""
    first, second = (
        window_at(Every.MINUTE, "Europe/Zurich", at(2026, 10, 25, 2, 30, tz="Europe/Zurich", fold=fold))
        for fold in (0, 1)
    )
    assert (first.label, second.label) == ("2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00")
    assert second.start - first.start == HOUR_US


def test_the_hour_that_is_skipped_has_no_window() -> None:
    """A window without a moment could hold money that no call can spend."""
    windows = windows_from(Every.HOUR, "Europe/Zurich", at(2026, 3, 29, 1, tz="Europe/Zurich"), 2)
    assert [window.label for window in windows] == ["2026-03-29T01+01:00", "2026-03-29T03+02:00"]
    minutes = windows_from(Every.MINUTE, "Europe/Zurich", at(2026, 3, 29, 1, 59, tz="Europe/Zurich"), 2)
    assert [window.label for window in minutes] == ["2026-03-29T01:59+01:00", "2026-03-29T03:00+02:00"]


def test_hours_start_where_the_local_clock_starts_them() -> None:
    """Kathmandu is 5:45 ahead of UTC. A user there reads hours from a local clock."""
    window = window_at(Every.HOUR, "Asia/Kathmandu", at(2026, 5, 4, 12, 10))
    assert (window.label, window.start) == ("2026-05-04T17+05:45", at(2026, 5, 4, 11, 15))


def test_an_hour_in_which_the_clock_is_set_is_cut_in_two() -> None:
    """Lord Howe changes its clocks by half an hour; the repeated half hour must not be counted twice."""
    tz = "Australia/Lord_Howe"
    windows = list(windows_from(Every.HOUR, tz, at(2026, 4, 5, 1, tz=tz), 3))
    assert [(window.label[-8:], hours(window)) for window in windows] == [
        ("01+11:00", 1),
        ("01+10:30", 0.5),
        ("02+10:30", 1),
    ]
    assert windows[1] == window_at(Every.HOUR, tz, windows[1].start) == window_at(Every.HOUR, tz, windows[1].end - 1)


def test_an_hour_that_the_clock_leaves_early_ends_there() -> None:
    """Pyongyang set its clocks from 23:30 to midnight. The rest of that hour would overlap the first hour of the day,
    and its money could be spent twice."""
    tz = "Asia/Pyongyang"
    first, second = windows_from(Every.HOUR, tz, at(2018, 5, 4, 23, 10, tz=tz), 2)
    assert [(window.label, hours(window)) for window in (first, second)] == [
        ("2018-05-04T23+08:30", 0.5),
        ("2018-05-05T00+09:00", 1),
    ]
    assert first.end == second.start


def test_weeks_belong_to_the_year_of_their_thursday() -> None:
    """1 January 2027 lies in the last week of 2026; two labels for one week would be two budgets."""
    labels = {window_at(Every.WEEK, "UTC", at(*day)).label for day in ((2026, 12, 28), (2027, 1, 1), (2027, 1, 3))}
    assert labels == {"2026-W53"}
    assert window_at(Every.WEEK, "UTC", at(2027, 1, 4)).label == "2027-W01"


@given(
    every=st.sampled_from([Every.MINUTE, Every.HOUR, Every.DAY, Every.WEEK, Every.MONTH]),
    tz=st.sampled_from(ZONES),
    instant=st.integers(at(2010, 1, 1), at(2040, 1, 1)),
)
def test_windows_follow_each_other_without_gap_or_overlap(every: Every, tz: str, instant: Instant) -> None:
    """Each instant must lie in exactly one window, and every instant of a window must find the same one."""
    windows = list(windows_from(every, tz, instant, 30))
    assert instant in windows[0]
    assert len({window.label for window in windows}) == len(windows) == 30
    for before, after in pairwise(windows):
        assert before.end == after.start
    for window in windows:
        assert window_at(every, tz, window.start) == window_at(every, tz, window.end - 1) == window
        assert window.start - 1 not in window


@pytest.mark.parametrize(("day", "tz"), [((2026, 9, 6), "America/Santiago"), ((2026, 11, 1), "America/Havana")])
def test_days_begin_once_where_midnight_is_skipped_or_repeated(day: tuple[int, int, int], tz: str) -> None:
    """A day begins at its first instant, whatever the local time is then."""
    window = window_at(Every.DAY, tz, at(*day, 12, tz=tz))
    zone = ZoneInfo(tz)
    first, before = (
        datetime.fromtimestamp(each / SECOND_US, zone) for each in (window.start, window.start - SECOND_US)
    )
    assert first.day == day[2]
    assert before.day != day[2]


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", None, 5])
def test_an_unknown_time_zone_is_named(name: object) -> None:
    """The error must appear at the definition, not at midnight."""
    with pytest.raises(BadValue, match="time zone"):
        parse_zone("budget x: tz", name)


@pytest.mark.parametrize("every", [Every.MINUTE, Every.HOUR])
def test_every_instant_of_a_window_finds_the_same_one(every: Every) -> None:
    """Calls of one minute would otherwise be in windows that differ by microseconds, each with a budget of its own."""
    begin = at(2026, 5, 4, 10)
    found = {calendar_windows._compute_window(every, "UTC", begin + past) for past in (0, 1, 999_999, 59_999_999)}
    assert {window.start for window in found} == {begin}
    assert len(found) == 1


def test_a_cost_is_booked_at_most_four_hundred_windows_ahead() -> None:
    """More than a year of days. With fewer, a job would be told that no window has room although one does."""
    ahead = list(windows_from(Every.DAY, "UTC", at(2026, 5, 4)))
    assert (len(ahead), ahead[-1].label) == (400, "2027-06-07")
