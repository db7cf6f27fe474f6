"""Workers record what they did, and one of them merges it."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from leaseway import App, Context, Fail
from leaseway.domain.errors import BadValue
from leaseway.domain.history.rows import (
    DEAD,
    DONE,
    FAILED,
    KEYS_MAX,
    READY,
    RELEASED,
    RUN,
    SAMPLES,
    STARTED,
    TIMES_US,
    HistoryCell,
    HistoryLevel,
    HistoryRow,
    merge_cells,
    merge_rows,
    percentile_us,
    start_of,
)
from leaseway.domain.history.timeline import build_timeline, choose_range
from leaseway.domain.ids import SECOND_US
from leaseway.ports.store import require_history
from leaseway.stores.memory.store import MemoryStore
from leaseway.testing.clock import FakeClock
from leaseway.worker import maintenance
from leaseway.worker.maintenance import maintain_history, read_history

MINUTE, HOUR, DAY = HistoryLevel
HOUR_US = 3_600 * SECOND_US


async def test_attempts_are_counted_by_their_outcome(app: App) -> None:
    """12 % of the attempts of a kind failed while the dashboard showed no failure, because the jobs ended well."""

    @app.job(attempts=3, backoff=0)
    async def flaky(ctx: Context, until: int) -> None:
        if ctx.attempt < until:
            raise OSError("try again")

    @app.job
    async def hopeless() -> None:
        raise Fail("never")

    await flaky.submit(until=3)
    await flaky.submit(until=1)
    await hopeless.submit()
    await app.run_worker(until_empty=True)
    rows = await require_history(await app.store()).rows(MINUTE, 0, 2**62)
    counts = {row.kind: merge_cells(each.cell for each in rows if each.kind == row.kind).counts for row in rows}
    assert counts["flaky"] == {STARTED: 4, DONE: 2, FAILED: 2, RELEASED: 2}
    assert counts["hopeless"] == {STARTED: 1, DEAD: 1, FAILED: 1}
    assert sum(sum(row.cell.times[RUN].values()) for row in rows) == 5


def test_percentiles_are_right_within_a_tenth() -> None:
    """A histogram that merges has buckets; they must not be so wide that a regression disappears."""
    for time_us in (1_100, 50_000, 1_000_000, 47_000_000, 3_600_000_000):
        bucket = next(n for n, bound in enumerate(TIMES_US) if time_us <= bound)
        found = percentile_us({bucket: 10}, 0.95)
        assert found is not None
        assert abs(found / time_us - 1) < 0.1
    assert percentile_us({}, 0.5) is None
    assert percentile_us({0: 99, 80: 1}, 0.99) == TIMES_US[0]
    assert percentile_us({0: 90, 80: 10}, 0.95) != TIMES_US[0]


def row(number: int, at: int, kind: str = "send", **counts: int) -> HistoryRow:
    return HistoryRow(id=f"w/{number}", at=at, tenant="acme", queue="mail", kind=kind, cell=HistoryCell(counts))


def test_a_tenant_with_many_kinds_does_not_grow_the_history() -> None:
    """Kinds are names that a tenant chooses, and every minute would have a row for each."""
    merged = merge_rows([row(n, 0, f"kind-{n:04}", started=1) for n in range(KEYS_MAX + 50)], MINUTE)
    assert len(merged) == KEYS_MAX + 1
    assert sum(each.cell.counts[STARTED] for each in merged) == KEYS_MAX + 50


async def test_minutes_become_hours_and_days_without_loss(clock_and_app: tuple[FakeClock, App]) -> None:
    """A page over 30 days must not read 43,200 minutes, and must show the same sums."""
    clock, app = clock_and_app
    world, history = app._world, require_history(await app.store())
    begin = clock.now_us()
    for step in range(60):
        await history.record([row(step, 0, started=1), row(1_000 + step, 0, started=2)])
        clock.advance(3_600)
        await maintain_history(world)
    assert len(await history.rows(DAY, 0, 2**62)) > 0
    for level in (HOUR, DAY):
        steps = read_history(history, level, begin - 86_400 * SECOND_US, clock.now_us())
        found = [each async for rows in steps for each in rows]
        total = merge_cells(each.cell for each in found if each.kind)
        assert total.counts == {STARTED: 180}, level


async def test_periods_are_added_however_long_the_history_is(
    clock_and_app: tuple[FakeClock, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read returns at most so many rows, the oldest first. With 2,100 kinds of all tenants, the end of two days was
    not among them: no further hour was added, and its minutes were deleted two days later.
    """
    clock, app = clock_and_app
    history = require_history(await app.store())
    rows = type(history).rows

    async def few(*given: Any, limit: int = 20, **named: Any) -> list[HistoryRow]:
        return await rows(*given, limit=limit, **named)

    monkeypatch.setattr(type(history), "rows", few)
    monkeypatch.setattr(maintenance, "HISTORY_PAGE", 20)
    hour = start_of(clock.now_us(), HOUR)
    for number in range(1, 47):
        minute = row(number, hour - number * HOUR_US, started=1)
        await history.record([minute, replace(minute, id=f"h/{number}", level=HOUR)])
    await history.record([row(number, hour + number * SECOND_US, started=1) for number in range(100, 130)])
    clock.advance(2 * 3_600)
    for _ in range(10):
        clock.advance(60)
        await maintain_history(app._world)
    (found,) = [each for each in await history.rows(HOUR, hour, hour + 1) if each.kind]
    assert found.cell.counts[STARTED] > 0


async def test_one_worker_samples_the_backlog_of_a_minute(clock_and_app: tuple[FakeClock, App]) -> None:
    """Two hundred workers that read all lanes every minute would be a load of their own."""
    clock, app = clock_and_app

    @app.job
    async def add(a: int) -> None: ...

    await add.submit(a=1)
    for _ in range(3):
        await maintain_history(app._world)
    history = require_history(await app.store())
    (found,) = await history.rows(MINUTE, 0, 2**62)
    assert (found.queue, found.cell.counts[READY], found.cell.counts[SAMPLES]) == ("default", 1, 1)
    clock.advance(60)
    await maintain_history(app._world)
    assert len(await history.rows(MINUTE, 0, 2**62)) == 2


async def test_minutes_of_several_workers_are_merged(clock_and_app: tuple[FakeClock, App]) -> None:
    """A fleet writes a row per worker, kind and flush; a range would take seconds to read."""
    clock, app = clock_and_app
    history = require_history(await app.store())
    await history.record([row(n, 0, started=1) for n in range(50)])
    clock.advance(240)
    await maintain_history(app._world)
    found = [each for each in await history.rows(MINUTE, 0, 2**62) if each.kind]
    assert [each.cell.counts for each in found] == [{STARTED: 50}]


@pytest.mark.parametrize("rows_max", [1_000, 70])
async def test_a_minute_with_more_rows_than_one_read_returns_loses_none(
    clock_and_app: tuple[FakeClock, App], monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    """A minute was merged from the first 100,000 rows, and again from the next ones, whose merged rows had the ids of
    the first and were not written. Hours and days were added from the first 100,000 rows of four minutes.
    """
    monkeypatch.setattr(maintenance, "HISTORY_PAGE", 10)
    monkeypatch.setattr(maintenance, "MERGED_ROWS_MAX", rows_max)
    clock, app = clock_and_app
    history, tenants = require_history(await app.store()), ("acme", "globex", "zeta")
    rows = [row(n, 0, kind=f"k{n // 3 % 30}", started=1) for n in range(180)]
    # These ids sort before those of merged rows.
    await history.record([replace(each, id=f"!/{n:03}", tenant=tenants[n % 3]) for n, each in enumerate(rows)])
    begin = start_of(clock.now_us(), HOUR)
    for _ in range(20):
        clock.advance(60)
        await maintain_history(app._world)
    merged = [each for each in await history.rows(MINUTE, 0, 2**62) if each.kind]
    assert len(merged) == 90
    assert {(each.tenant, each.cell.counts[STARTED]) for each in merged} == {(name, 2) for name in tenants}
    clock.advance(2 * 3_600)
    await maintain_history(app._world)
    found = [each async for rows in read_history(history, HOUR, begin, clock.now_us()) for each in rows if each.kind]
    assert len(found) == 90
    assert sum(each.cell.counts[STARTED] for each in found) == 180


async def test_a_minute_is_merged_page_by_page(
    clock_and_app: tuple[FakeClock, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To merge the 100,000 rows that tenants may record in a minute took a second, in which the worker did nothing
    else."""
    clock, app = clock_and_app
    history, most, kinds = require_history(await app.store()), 0, 5
    await history.record([row(n, 0, kind=f"k{n % kinds}", started=1) for n in range(200)])

    def counted(rows: Iterable[HistoryRow], level: HistoryLevel) -> list[HistoryRow]:
        nonlocal most
        given = list(rows)
        most = max(most, len(given))
        return merge_rows(given, level)

    monkeypatch.setattr(maintenance, "HISTORY_PAGE", 10)
    monkeypatch.setattr(maintenance, "merge_rows", counted)
    clock.advance(240)
    await maintain_history(app._world)
    merged = [each for each in await history.rows(MINUTE, 0, 2**62) if each.kind]
    assert sorted(each.cell.counts[STARTED] for each in merged) == [200 // kinds] * kinds
    assert most <= 10 + kinds + 1


def test_a_range_is_shown_in_few_points() -> None:
    """A chart of a month in minutes would take seconds, and a range of a year has no rows."""
    now = 1_750_000_000 * SECOND_US
    for text, step in (("15m", 60), ("6h", 120), ("24h", 3_600), ("30d", 4 * 3_600)):
        assert choose_range(text, now).step_us == step * SECOND_US
    for wrong in ("1m", "31d", "long", "", "-1h", "1e9h"):
        with pytest.raises(BadValue, match="range"):
            choose_range(wrong, now)
    span = choose_range("1h", now)
    timeline = build_timeline([row(1, now - HOUR_US // 2, started=4, failed=1), row(2, now - 60, started=4)], span)
    assert [kind.failed_share for kind in timeline.kinds] == [0.125]
    assert len(timeline.points) == 2


@pytest.fixture
async def clock_and_app() -> tuple[FakeClock, App]:
    clock = FakeClock()
    app = App("memory://")
    store = await app.store()
    assert isinstance(store, MemoryStore)
    store.state.now_us = clock.now_us
    return clock, app
