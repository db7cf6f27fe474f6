"""A range of the history as points and totals, for people."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from leaseway.domain.errors import BadValue
from leaseway.domain.history.rows import (
    FAILED,
    LENGTH_US,
    OTHERS,
    SAMPLES,
    STARTED,
    CellSum,
    HistoryCell,
    HistoryKey,
    HistoryLevel,
    HistoryRow,
    merge_cells,
    start_of,
)
from leaseway.domain.ids import SECOND_US, Instant

RANGE = re.compile(r"(\d{1,6}) ?(m|h|d)")
UNITS_US = {"m": 60 * SECOND_US, "h": 3_600 * SECOND_US, "d": 86_400 * SECOND_US}
RANGE_US_MIN, RANGE_US_MAX = 900 * SECOND_US, 30 * 86_400 * SECOND_US
MINUTES_US_MAX = 6 * 3_600 * SECOND_US
"""Ranges up to this length are shown from minutes, longer ones from hours."""
POINTS_MAX = 200
KINDS_SHOWN_MAX = 200
KINDS_MAX = 5_000
"""The most kinds, by tenant and queue, that a timeline counts one by one."""
OTHER_KINDS = HistoryKey(OTHERS, OTHERS, OTHERS)


class HistoryRange(NamedTuple):
    since: Instant
    until: Instant
    level: HistoryLevel
    step_us: int

    def point(self, at: Instant) -> Instant:
        return at - at % self.step_us


def choose_range(text: str, now: Instant, until: Instant | None = None) -> HistoryRange:
    """A range that ends now or at `until`, in steps of whole minutes or hours."""
    found = RANGE.fullmatch(text.strip())
    length = int(found[1]) * UNITS_US[found[2]] if found else 0
    if not RANGE_US_MIN <= length <= RANGE_US_MAX:
        raise BadValue("range", f"must be between 15m and 30d (is {text!r})")
    end = now if until is None else min(until, now)
    level = HistoryLevel.MINUTE if length <= MINUTES_US_MAX else HistoryLevel.HOUR
    unit = LENGTH_US[level]
    step = unit * max(-(-length // (unit * POINTS_MAX)), 1)
    # The point that has begun is shown, too.
    return HistoryRange(start_of(end - length, level), end, level, step)


class HistoryPoint(NamedTuple):
    at: Instant
    cell: HistoryCell
    samples: int = 1
    """How many times the backlog was sampled in this step."""


class KindHistory(NamedTuple):
    key: HistoryKey
    total: HistoryCell
    points: list[HistoryPoint]

    @property
    def failed_share(self) -> float:
        """The share of attempts that failed."""
        started = self.total.counts.get(STARTED, 0)
        return self.total.counts.get(FAILED, 0) / started if started else 0.0


class Timeline(NamedTuple):
    range: HistoryRange
    points: list[HistoryPoint]
    """Of all kinds together."""
    kinds: list[KindHistory]
    """Those with the most attempts first."""
    backlog: list[HistoryPoint]
    """Sums over all queues and samples."""


class TimelineBuilder:
    """Adds rows to a timeline, some at a time: those of a month do not fit in memory together. Only the totals of kinds
    have times; a point of a chart has none. Queues of several tenants are separate; so are the kinds in a queue.
    """

    def __init__(self, span: HistoryRange) -> None:
        self._span = span
        self._totals: defaultdict[HistoryKey, CellSum] = defaultdict(CellSum)
        self._points: defaultdict[HistoryKey, defaultdict[Instant, CellSum]] = defaultdict(lambda: defaultdict(CellSum))
        self._together: defaultdict[Instant, CellSum] = defaultdict(CellSum)
        self._backlog: defaultdict[Instant, defaultdict[HistoryKey, CellSum]] = defaultdict(
            lambda: defaultdict(CellSum)
        )

    def add(self, rows: Iterable[HistoryRow]) -> None:
        for row in rows:
            at = self._span.point(row.at)
            if not row.kind:
                self._backlog[at][row.key].add(row.cell)
                continue
            key = row.key if row.key in self._totals or len(self._totals) < KINDS_MAX else OTHER_KINDS
            self._totals[key].add(row.cell)
            self._points[key][at].add(row.cell, has_times=False)
            self._together[at].add(row.cell, has_times=False)

    def finish(self) -> Timeline:
        keys = sorted(self._totals, key=lambda key: (-self._totals[key].counts[STARTED], key))[:KINDS_SHOWN_MAX]
        kinds = [KindHistory(key, self._totals[key].cell, merge_points(self._points[key])) for key in keys]
        return Timeline(self._span, merge_points(self._together), kinds, merge_backlog(self._backlog))


def build_timeline(rows: Iterable[HistoryRow], span: HistoryRange) -> Timeline:
    builder = TimelineBuilder(span)
    builder.add(rows)
    return builder.finish()


def merge_points(sums: Mapping[Instant, CellSum]) -> list[HistoryPoint]:
    return [HistoryPoint(at, each.cell) for at, each in sorted(sums.items())]


def merge_backlog(backlog: Mapping[Instant, Mapping[HistoryKey, CellSum]]) -> list[HistoryPoint]:
    """The queues of a minute are sampled together, so the queue with the most samples tells their number. A queue that
    was empty in some minutes has fewer."""
    points = []
    for at, queues in sorted(backlog.items()):
        samples = max(each.counts.get(SAMPLES, 1) for each in queues.values())
        points.append(HistoryPoint(at, merge_cells(each.cell for each in queues.values()), max(samples, 1)))
    return points
