"""The history of the work: counts and times per minute, queue and kind, which merge into hours and days.

    worker ─► one row per flush ─► [merged] minute ─► hour ─► day

A row has counters, and histograms of times whose buckets grow by a fifth. Rows with the same key merge in any order, so
every worker writes its own and nothing has to be read before.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, Instant


class HistoryLevel(IntEnum):
    MINUTE = 0
    HOUR = 1
    DAY = 2


LENGTH_US = {
    HistoryLevel.MINUTE: 60 * SECOND_US,
    HistoryLevel.HOUR: 3_600 * SECOND_US,
    HistoryLevel.DAY: 86_400 * SECOND_US,
}
KEEP_US = {
    HistoryLevel.MINUTE: 2 * 86_400 * SECOND_US,
    HistoryLevel.HOUR: 35 * 86_400 * SECOND_US,
    HistoryLevel.DAY: 400 * 86_400 * SECOND_US,
}
"""How long rows of each level are kept."""
SETTLED_AFTER_US = 120 * SECOND_US
"""A minute that ended this long ago gets no more rows: its rows can be merged."""

TIMES_US = tuple(round(1_000 * 2 ** (exponent / 4)) for exponent in range(128))
"""The upper bounds of the buckets, from a millisecond to 50 days. A percentile is right within a tenth."""

KEYS_MAX = 100
"""The most queues and kinds per tenant and period that have a row of their own; the others share one."""
OTHERS = "(others)"
ROWS_MAX = 1_000
"""The most rows of one flush."""

HISTORY_PAGE = 10_000
"""The most rows that one read returns."""
HISTORY_ID_BYTES_MAX = 4_096

MERGED, BACKLOG = "!~merged", "!~backlog"
"""How the ids of merged rows and of samples of the backlog begin. Names of tenants are escaped in ids of their workers'
rows, so that none can begin like this: such a row would take the place of a merged one."""

NAMES_MAX = 16
"""The most counters, and the most histograms, of one row."""

STARTED, DONE, FAILED, DEAD, CANCELLED, RELEASED = "started", "done", "failed", "dead", "cancelled", "released"
"""Counters. `failed`: attempts that failed; `dead`: jobs that ended as failed."""
RUN = "run"
READY, SCHEDULED, SAMPLES = "ready", "scheduled", "samples"
"""Of backlog rows, whose kind is empty: sums of so many samples."""
COUNTERS = frozenset({STARTED, DONE, FAILED, DEAD, CANCELLED, RELEASED})
"""Of the rows of workers."""


class HistoryKey(NamedTuple):
    tenant: str
    queue: str
    kind: str
    """Empty: the backlog of the queue."""


class HistoryCell(Struct, frozen=True, omit_defaults=True):
    """Merged by adding everything."""

    counts: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By name: how many times fell into each bucket, by its index in TIMES_US."""


class HistoryRow(Struct, frozen=True, kw_only=True):
    id: str
    """Of a flush: never used again. Of a merged row: follows from its key, so that it is written once."""
    level: HistoryLevel = HistoryLevel.MINUTE
    at: Instant = 0
    """The beginning of the period. 0: the store's current minute."""
    tenant: str
    queue: str
    kind: str = ""
    cell: HistoryCell

    @property
    def key(self) -> HistoryKey:
        return HistoryKey(self.tenant, self.queue, self.kind)


def choose_own(tenant: str, rows: Iterable[HistoryRow]) -> list[HistoryRow]:
    """What workers of this tenant did, without names that no reader knows: merged rows have all names of their parts.
    The backlog is left out. It is sampled for all tenants together, and one tenant's samples would change its average.
    """
    return [
        replace(row, cell=HistoryCell(
            {name: count for name, count in row.cell.counts.items() if name in COUNTERS},
            {name: times for name, times in row.cell.times.items() if name == RUN},
        ))
        for row in rows if row.tenant == tenant and row.kind
    ]  # fmt: skip


def percentile_us(buckets: Mapping[int, int], share: float) -> int | None:
    """The time that this share of the times does not exceed; the middle of its bucket."""
    total, seen = sum(buckets.values()), 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= share * total:
            return round(TIMES_US[bucket] / 2 ** (1 / 8)) if bucket else TIMES_US[0]
    return None


class CellSum:
    """Cells that are added one by one."""

    def __init__(self, cells: Iterable[HistoryCell] = ()) -> None:
        self.counts = Counter[str]()
        self._times: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for cell in cells:
            self.add(cell)

    def add(self, cell: HistoryCell, has_times: bool = True) -> None:
        self.counts.update(cell.counts)
        for name, buckets in cell.times.items() if has_times else ():
            self._times[name].update(buckets)

    @property
    def cell(self) -> HistoryCell:
        return HistoryCell(dict(self.counts), {name: dict(buckets) for name, buckets in self._times.items()})


def merge_cells(cells: Iterable[HistoryCell]) -> HistoryCell:
    return CellSum(cells).cell


def start_of(at: Instant, level: HistoryLevel) -> Instant:
    return at - at % LENGTH_US[level]


def merge_rows(rows: Iterable[HistoryRow], level: HistoryLevel) -> list[HistoryRow]:
    """One row of this level per period and key."""
    cells: defaultdict[tuple[Instant, HistoryKey], list[HistoryCell]] = defaultdict(list)
    for at, row in bounded_keys(rows, level):
        cells[at, row.key].append(row.cell)
    return [
        HistoryRow(
            id="/".join((MERGED, str(level.value), str(at), *map(escaped, key))),
            level=level, at=at, tenant=key.tenant, queue=key.queue, kind=key.kind, cell=merge_cells(each),
        )
        for (at, key), each in cells.items()
    ]  # fmt: skip


def escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def bounded_keys(rows: Iterable[HistoryRow], level: HistoryLevel) -> Iterator[tuple[Instant, HistoryRow]]:
    """Rows with the period that they belong to. Beyond `KEYS_MAX` keys of a tenant, the others share a key."""
    keys: defaultdict[tuple[Instant, str], set[HistoryKey]] = defaultdict(set)
    for row in rows:
        at = start_of(row.at, level)
        known = keys[at, row.tenant]
        if row.key in known or len(known) < KEYS_MAX:
            known.add(row.key)
            yield at, row
        else:
            yield at, replace(row, queue=OTHERS, kind=OTHERS)
