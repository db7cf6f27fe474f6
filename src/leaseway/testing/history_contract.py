"""The guarantees of the history, as tests that every store must pass. Used like `job_store_contract`, with the same
fixtures.
"""

from typing import Any

from leaseway.domain.history.rows import (
    DONE,
    RUN,
    STARTED,
    HistoryCell,
    HistoryLevel,
    HistoryRow,
    merge_rows,
    start_of,
)
from leaseway.ports.store import Store, require_history
from leaseway.testing.clock import FakeClock

MINUTE, HOUR = HistoryLevel.MINUTE, HistoryLevel.HOUR


def history_row(number: int = 1, **fields: Any) -> HistoryRow:
    cell = HistoryCell({STARTED: 3, DONE: 2}, {RUN: {0: 1, 40: 2}})
    values: dict[str, Any] = {"id": f"w/{number:03}", "tenant": "acme", "queue": "mail", "kind": "send", "cell": cell}
    return HistoryRow(**values | fields)


async def every_row(store: Store, level: HistoryLevel = MINUTE, **which: Any) -> list[HistoryRow]:
    return await require_history(store).rows(level, 0, 2**62, **which)


async def test_rows_of_workers_belong_to_the_current_minute(store: Store, clock: FakeClock) -> None:
    """The store's clock decides: the clocks of workers differ."""
    await require_history(store).record([history_row()])
    (found,) = await every_row(store)
    assert found == history_row(at=start_of(clock.now_us(), MINUTE))


async def test_a_repeated_record_counts_once(store: Store, clock: FakeClock) -> None:
    """The reply to a call can be lost, and twice the throughput would be shown."""
    rows = [history_row(1), history_row(2)]
    await require_history(store).record(rows)
    clock.advance(60)
    await require_history(store).record(rows)
    assert [row.id for row in await every_row(store)] == ["w/001", "w/002"]
    assert len({row.at for row in await every_row(store)}) == 1


async def test_rows_are_found_by_time_level_and_tenant(store: Store) -> None:
    """A page asks for one range, and a tenant must see its own jobs only."""
    history = require_history(store)
    await history.record([history_row(n, at=n * 60_000_000) for n in (3, 1, 2)])
    await history.record([history_row(4, at=60_000_000, level=HOUR), history_row(5, at=60_000_000, tenant="globex")])
    assert [row.id for row in await history.rows(MINUTE, 60_000_000, 180_000_000)] == ["w/001", "w/005", "w/002"]
    assert [row.id for row in await history.rows(MINUTE, 0, 2**62, limit=1)] == ["w/001"]
    assert [row.id for row in await every_row(store, HOUR)] == ["w/004"]
    assert [row.id for row in await every_row(store, tenant="globex")] == ["w/005"]


async def test_a_list_continues_behind_its_last_row(store: Store) -> None:
    """A minute of many tenants has more rows than one read returns. The others would be missing in every report."""
    history = require_history(store)
    await history.record([history_row(n, at=60_000_000 * (1 + n // 4)) for n in range(8)])
    found = await history.rows(MINUTE, 0, 2**62, limit=3)
    while rows := await history.rows(MINUTE, found[-1].at, 2**62, after=found[-1].id, limit=3):
        found += rows
    assert [row.id for row in found] == [f"w/{n:03}" for n in range(8)]
    assert await history.rows(MINUTE, 60_000_000, 60_000_001, after="w/003") == []


async def test_merged_rows_replace_those_of_workers(store: Store) -> None:
    """Two workers may merge the same minute at the same time; nothing may be counted twice or get lost."""
    history = require_history(store)
    await history.record([history_row(n, at=60_000_000) for n in (1, 2)])
    rows = await every_row(store)
    merged = merge_rows(rows, MINUTE)
    for _ in range(2):
        await history.replace([row.id for row in rows], merged)
    (found,) = await every_row(store)
    assert found.cell == HistoryCell({STARTED: 6, DONE: 4}, {RUN: {0: 2, 40: 4}})


async def test_old_rows_are_deleted_in_steps(store: Store) -> None:
    """The history must not grow for ever, and a delete must not block other writers for long."""
    history = require_history(store)
    await history.record([history_row(n, at=n * 60_000_000) for n in range(1, 6)])
    await history.record([history_row(9, at=60_000_000, level=HOUR)])
    assert await history.prune(MINUTE, 240_000_000, 2) == 2
    assert await history.prune(MINUTE, 240_000_000, 9) == 1
    assert [row.id for row in await every_row(store)] == ["w/004", "w/005"]
    assert len(await every_row(store, HOUR)) == 1
