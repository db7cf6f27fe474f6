"""A worker that lost its lease writes nothing: no row, no counter, no bad row."""

import asyncio

import pytest
from msgspec.structs import replace

from leaseway.imports.domain.run_state import ShardState
from leaseway.imports.domain.shard import make_shard
from leaseway.imports.sinks.port import PageWrite, Sink
from leaseway.testing.sink_contract.actors import (
    HIGH,
    LOW,
    Witness,
    bad,
    page,
    picture,
    row,
    rows,
    shard,
    started,
    written,
)

CHILD = make_shard("maps", "id=500-1000", {"id": [500, 1000]}, depth=1)

LATE = {
    "a smaller fence": page(rows(1, 5, 6), 2, 6, fence=1, bad=[bad(0)]),
    "a smaller fence that ends it": page(rows(5), 2, fence=1, state=ShardState.DONE, bad=[bad(0)]),
    "a smaller fence that splits it": page(rows(5), 2, 5, fence=1, state=ShardState.SPLIT, children=[CHILD]),
    "a cursor of the past": page(rows(1, 5, 6), None, 6, fence=2, bad=[bad(0)]),
    "a cursor of the future": page(rows(5, 6), 4, 6, fence=3, bad=[bad(0)]),
    "another run": replace(page(rows(5, 6), 2, 6, fence=3, bad=[bad(0)]), run="run-9"),
    "another shard": replace(page(rows(5, 6), 2, 6, fence=3, bad=[bad(0)]), shard="maps/nowhere/0"),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
async def test_a_late_workers_page_leaves_no_trace(sink: Sink, witness: Witness, late: PageWrite) -> None:
    """The worker was frozen for longer than its lease, and another worker has continued."""
    await started(sink)
    await written(sink, page(rows(1, 2), after=2, bad=[bad(1)]))
    assert await sink.shards.begin(late.run, LOW.key, 2) is not None or late.run == "run-9"
    await sink.shards.begin("run-1", LOW.key, 2)
    before = await picture(sink, witness)
    assert await sink.shards.write(late) is None
    assert await picture(sink, witness) == before


async def test_a_worker_that_did_not_begin_may_write_with_a_larger_fence(sink: Sink) -> None:
    """The largest fence wins, whichever call stored it."""
    await started(sink)
    await written(sink, page(rows(1), after=1, fence=3))
    assert (await shard(sink)).fence == 3
    assert await sink.shards.write(page(rows(2), 1, 2, fence=2)) is None


async def test_of_two_workers_with_one_page_one_wins(sink: Sink, other: Sink, witness: Witness) -> None:
    """Both fetched the same page; the rows of exactly one must be stored and counted once."""
    await started(sink)
    for number in range(10):
        at, then = number * 2 or None, number * 2 + 2
        pages = [page(rows(then), at, then), page(rows(then + 1), at, then)]
        answers = await asyncio.gather(sink.shards.write(pages[0]), other.shards.write(pages[1]))
        assert sorted(answer is None for answer in answers) == [False, True]
    found = await shard(sink)
    assert (found.pages, found.rows, await sink.rows.count()) == (10, 10, 10)
    assert len(await witness.rows()) == 10


async def test_shards_that_overlap_do_not_disturb_each_other(sink: Sink, other: Sink, witness: Witness) -> None:
    """Boxes overlap at their edges, so two workers write the same rows at once, in any order."""
    await started(sink)
    ids = range(1, 41)
    for turn in range(6):
        at = turn or None
        up = page([row(number, 2 * turn) for number in ids], at, turn + 1)
        down = page([row(number, 2 * turn + 1) for number in reversed(ids)], at, turn + 1)
        await asyncio.gather(sink.shards.write(up), other.shards.write(replace(down, shard=HIGH.key)))
    low, high = await shard(sink), await shard(sink, HIGH.key)
    assert (low.rows, high.rows) == (6 * 40, 6 * 40)
    assert low.inserted + high.inserted == 40
    assert {found["content_hash"] for found in (await witness.rows()).values()} == {"hash-11"}
