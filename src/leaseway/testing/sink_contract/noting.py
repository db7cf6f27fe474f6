"""Guard reactions outside a page, and why an attempt failed: added to the shard, and nothing else changes."""

from msgspec.structs import replace

from leaseway.imports.domain.run_state import ShardState
from leaseway.imports.sinks.port import Sink
from leaseway.testing.sink_contract.actors import (
    HIGH,
    LOW,
    RUN,
    Witness,
    page,
    picture,
    rows,
    shard,
    started,
    written,
)


async def test_reactions_without_a_page_are_counted(sink: Sink) -> None:
    """A page that was fetched four times is one page with three reactions."""
    await started(sink)
    await written(sink, page(rows(1), after=1, guards={"heavy_page": 1}))
    before = await shard(sink)
    assert await sink.shards.note(RUN.id, LOW.key, 1, {"heavy_page": 2, "empty_page": 1}, "no answer within 30 s")
    now = await shard(sink)
    assert (now.guards, now.why) == ({"heavy_page": 3, "empty_page": 1}, "no answer within 30 s")
    assert replace(now, guards=before.guards, why=before.why) == before
    assert await sink.shards.write(page(rows(2), 1, 2)) is not None


async def test_a_note_without_a_reason_leaves_the_last_one(sink: Sink) -> None:
    """The reason of the last failure stays visible until the next page."""
    await started(sink)
    await sink.shards.note(RUN.id, LOW.key, 1, {}, "the source is away\0")
    await sink.shards.note(RUN.id, LOW.key, 1, {"wrong_body": 1})
    assert ((await shard(sink)).why, (await shard(sink)).guards) == ("the source is away\ufffd", {"wrong_body": 1})


async def test_a_shard_that_waits_can_be_noted(sink: Sink) -> None:
    """The run's budget can be used up before a worker begins the shard."""
    await sink.runs.start(RUN, [LOW])
    assert await sink.shards.note(RUN.id, LOW.key, 1, {"budget": 1}, "the budget is used up")
    now = await shard(sink)
    assert (now.state, now.why, now.attempts, now.cursor) == (ShardState.WAITING, "the budget is used up", 0, None)


async def test_a_late_worker_notes_nothing(sink: Sink, witness: Witness) -> None:
    """The shard belongs to another worker by now."""
    await started(sink, fence=2)
    before = await picture(sink, witness)
    assert not await sink.shards.note(RUN.id, LOW.key, 1, {"empty_page": 1}, "late")
    assert not await sink.shards.note("run-9", LOW.key, 3, {"empty_page": 1}, "late")
    assert not await sink.shards.note(RUN.id, "maps/nowhere/0", 3, {"empty_page": 1}, "late")
    assert await picture(sink, witness) == before


async def test_who_noted_with_a_larger_fence_has_the_shard(sink: Sink) -> None:
    """As with pages, the largest fence wins."""
    await started(sink)
    assert await sink.shards.note(RUN.id, LOW.key, 3, {"empty_page": 1})
    assert await sink.shards.write(page(rows(1), after=1, fence=2)) is None
    assert await sink.shards.write(page(rows(1), after=1, fence=3)) is not None


async def test_a_shard_that_has_ended_takes_no_notes(sink: Sink, witness: Witness) -> None:
    """Its counters are final, and its reason is that of its end."""
    await started(sink)
    await written(sink, page(rows(1), state=ShardState.DONE))
    await written(sink, replace(page(state=ShardState.PARKED, why="loop"), shard=HIGH.key))
    before = await picture(sink, witness)
    assert not await sink.shards.note(RUN.id, LOW.key, 5, {"empty_page": 1}, "late")
    assert not await sink.shards.note(RUN.id, HIGH.key, 5, {"empty_page": 1}, "late")
    assert await picture(sink, witness) == before


async def test_shards_of_another_table_take_no_notes(sink: Sink, elsewhere: Sink) -> None:
    """A configuration mistake must not affect another run."""
    await started(sink)
    assert not await elsewhere.shards.note(RUN.id, LOW.key, 5, {"empty_page": 1})
    assert (await shard(sink)).guards == {}
