"""A page is written once: rows, bad rows, counters and cursor together, or nothing. A worker that lost its lease writes
nothing.
"""

import asyncio

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.page import WriteCounts
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import ShardState
from leaseway.imports.sinks.port import PageWrite, Sink
from leaseway.testing.clock import FakeClock
from leaseway.testing.sink_contract.fixtures import (
    HIGH,
    LOW,
    RUN,
    Witness,
    bad,
    observed_state,
    page,
    row,
    rows,
    shard,
    started,
    written,
)

LEFT = make_shard("maps", "id=500-750", {"id": [500, 750]}, depth=1)
RIGHT = make_shard("maps", "id=750-1000", {"id": [750, 1000]}, depth=1)


async def test_a_page_changes_everything_at_once(sink: Sink, witness: Witness) -> None:
    """Reports must agree with the table."""
    await started(sink)
    first = page(rows(1, 2, 3), after=3, page_hash="a", page_limit=500, requests=2, size_bytes=900, guards={"heavy": 1})
    assert await sink.shards.write(first) == WriteCounts(inserted=3)
    second = page(rows(4), 3, 4, bad=[bad(0), bad(2)], page_hash="b", size_bytes=100, guards={"heavy": 2, "short": 1})
    assert (await shard(sink)).page_limit == 500
    assert await sink.shards.write(second) == WriteCounts(inserted=1, quarantined=2)
    now = await shard(sink)
    assert (now.state, now.cursor, now.pages, now.rows, now.inserted) == (ShardState.RUNNING, {"after": 4}, 2, 4, 4)
    assert (now.quarantined, now.requests, now.size_bytes, now.page_limit) == (2, 3, 1000, None)
    assert (now.recent, now.guards, now.finished_at) == (("a", "b"), {"heavy": 3, "short": 1}, None)
    assert sorted(await witness.rows()) == ["1", "2", "3", "4"]
    assert await sink.rows.count() == 4
    assert len(await sink.quarantine.find_all()) == 2


async def test_a_page_without_rows_turns_too(sink: Sink, clock: FakeClock) -> None:
    """The last page of a shard is often empty and proves its end."""
    await started(sink)
    clock.advance(5)
    assert await sink.shards.write(page(state=ShardState.DONE)) == WriteCounts()
    now = await shard(sink)
    assert (now.state, now.pages, now.rows, now.finished_at) == (ShardState.DONE, 1, 0, clock.now_us())


async def test_profiles_add_up(sink: Sink) -> None:
    """The profile of one page is a small sample; drift needs all of them."""
    await started(sink)
    await written(sink, page(after=1, profile={"$.id": {"integer": 10}, "$.größe": {"null": 2, "text": 1}}))
    await written(sink, page(before=1, after=2))
    await written(sink, page(before=2, after=3, profile={"$.größe": {"text": 4}, "$.new": {"object": 1}}))
    expected = {"$.id": {"integer": 10}, "$.größe": {"null": 2, "text": 5}, "$.new": {"object": 1}}
    assert (await shard(sink)).profile == expected
    assert await sink.shards.write(page(before=2, after=3, profile={"$.id": {"integer": 1}})) is None
    assert (await shard(sink)).profile == expected


async def test_a_profile_has_an_end(sink: Sink) -> None:
    """Documents with values as keys have new paths in every document. Known paths continue to count."""
    await started(sink)
    await written(sink, page(after=1, profile={f"$.{number}": {"text": 1} for number in range(250)}))
    await written(sink, page(before=1, after=2, profile={f"$.{number}": {"text": 1} for number in range(200, 400)}))
    found = (await shard(sink)).profile
    assert len(found) == 300
    assert [found[f"$.{number}"] for number in (0, 200, 249)] == [{"text": 1}, {"text": 2}, {"text": 2}]


async def test_only_the_last_hashes_are_kept(sink: Sink) -> None:
    """The hashes detect loops; a shard with ten thousand pages must not store all of them."""
    await started(sink)
    for number in range(10):
        await written(sink, page(before=number or None, after=number + 1, page_hash=f"hash {number}"))
    assert (await shard(sink)).recent == tuple(f"hash {number}" for number in range(2, 10))


REPEATED = {
    "a page in the middle": page([row(1)], after=1, bad=[bad(0)]),
    "the only page": page([row(1)], state=ShardState.DONE, bad=[bad(0)]),
    "a page that parks": page([row(1)], state=ShardState.PARKED, why="loop", bad=[bad(0)]),
    "a page whose cursor stays": page([row(1)], page_hash="a", page_limit=50, bad=[bad(0)]),
    "a page that splits": page([row(1)], after=1, state=ShardState.SPLIT, children=[LEFT, RIGHT], bad=[bad(0)]),
}


@pytest.mark.parametrize("sent", REPEATED.values(), ids=REPEATED)
async def test_a_page_that_is_sent_twice_counts_once(sink: Sink, witness: Witness, sent: PageWrite) -> None:
    """The worker repeats the page after a lost reply."""
    await started(sink)
    assert await sink.shards.write(sent) == WriteCounts(inserted=1, quarantined=1)
    before = await observed_state(sink, witness)
    assert await sink.shards.write(sent) is None
    assert await observed_state(sink, witness) == before


async def test_the_order_of_a_cursors_words_means_nothing(sink: Sink) -> None:
    """A cursor can be reordered when it passes through a job payload."""
    await started(sink)
    one, same = {"b": 10**15, "a": "https://x/?é=1&next=\u2028"}, {"a": "https://x/?é=1&next=\u2028", "b": 10**15}
    whole = {"run": RUN.id, "shard": LOW.key, "fence": 1}
    assert await sink.shards.write(PageWrite(**whole, before=None, after=one)) is not None  # type: ignore[arg-type]
    assert await sink.shards.write(PageWrite(**whole, before=same, after={"c": 1.5})) is not None  # type: ignore[arg-type]
    assert (await shard(sink)).cursor == {"c": 1.5}


async def test_a_split_shard_leaves_the_rest_to_its_children(sink: Sink, witness: Witness) -> None:
    """A crash between two transactions would lose the rest of the shard or import it twice."""
    await started(sink)
    split = page(rows(1), after=1, state=ShardState.SPLIT, children=[LEFT, RIGHT], why="truncated")
    assert await sink.shards.write(split) == WriteCounts(inserted=1)
    parent, left, right = await shard(sink), await shard(sink, LEFT.key), await shard(sink, RIGHT.key)
    assert (parent.state, parent.why) == (ShardState.SPLIT, "truncated")
    assert [(one.shard, one.state, one.parent, one.cursor) for one in (left, right)] == [
        (LEFT, ShardState.WAITING, LOW.key, None),
        (RIGHT, ShardState.WAITING, LOW.key, None),
    ]
    assert await sink.shards.begin(RUN.id, LEFT.key, 1) is not None
    assert sorted(await witness.rows()) == ["1"]


WRONG = {
    "split without children": page(state=ShardState.SPLIT),
    "children without a split": page(after=1, children=[LEFT]),
    "its own child": page(state=ShardState.SPLIT, children=[LEFT, LOW]),
    "waiting again": page(state=ShardState.WAITING),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_page_that_makes_no_sense_is_refused(sink: Sink, witness: Witness, wrong: PageWrite) -> None:
    """A mistake in a partition must not lose a part of the source."""
    await started(sink)
    before = await observed_state(sink, witness)
    with pytest.raises(BadValue, match=r"^(children|state): "):
        await sink.shards.write(wrong)
    assert await observed_state(sink, witness) == before


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
    before = await observed_state(sink, witness)
    assert await sink.shards.write(late) is None
    assert await observed_state(sink, witness) == before


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
