"""A worker takes over a shard: only with a larger fence, and at the last cursor. Guard reactions and reasons without a
page are added to the shard, and change nothing else of it.
"""

import pytest
from msgspec.structs import replace

from leaseway.imports.domain.run_state import ShardState
from leaseway.imports.sinks.port import Sink
from leaseway.testing.clock import FakeClock
from leaseway.testing.sink_contract.fixtures import (
    HIGH,
    LOW,
    RUN,
    Witness,
    observed_state,
    page,
    rows,
    shard,
    started,
    written,
)


async def test_the_first_worker_begins_at_the_beginning(sink: Sink) -> None:
    """The page loop relies on the row that `begin` returns."""
    await sink.runs.start(RUN, [LOW])
    begun = await sink.shards.begin(RUN.id, LOW.key, 7)
    assert begun is not None
    assert (begun.state, begun.fence, begun.cursor, begun.attempts) == (ShardState.RUNNING, 7, None, 1)
    assert begun == await shard(sink)


async def test_it_is_known_when_a_shard_was_first_begun(sink: Sink, clock: FakeClock) -> None:
    """The duration of a shard starts there, however many workers it needed."""
    await sink.runs.start(RUN, [LOW])
    assert (await shard(sink)).started_at is None
    clock.advance(30)
    first = clock.now_us()
    for fence in (3, 3, 4):
        begun = await sink.shards.begin(RUN.id, LOW.key, fence)
        assert begun is not None
        assert begun.started_at == first
        clock.advance(30)
    await written(sink, page(rows(1), after=1, fence=4))
    assert (await shard(sink)).started_at == first


async def test_the_next_worker_begins_where_the_last_one_stopped(sink: Sink) -> None:
    """After a crash, at most one page is fetched again."""
    await started(sink)
    await written(sink, page(rows(1, 2), after=2))
    begun = await sink.shards.begin(RUN.id, LOW.key, 2)
    assert begun is not None
    assert (begun.cursor, begun.resumed_at, begun.attempts, begun.fence) == ({"after": 2}, {"after": 2}, 2, 2)


async def test_a_late_worker_cannot_begin(sink: Sink, witness: Witness) -> None:
    """Its lease has expired, even if the worker does not know yet."""
    await started(sink, fence=5)
    before = await observed_state(sink, witness)
    assert await sink.shards.begin(RUN.id, LOW.key, 4) is None
    assert await observed_state(sink, witness) == before


async def test_a_worker_that_lost_the_answer_begins_again(sink: Sink, witness: Witness) -> None:
    """Repeating a call after a lost reply is not another attempt."""
    await started(sink)
    await written(sink, page(rows(1), after=1))
    before = await observed_state(sink, witness)
    assert await sink.shards.begin(RUN.id, LOW.key, 1) == await shard(sink)
    assert await observed_state(sink, witness) == before


@pytest.mark.parametrize(("run", "key"), [("run-9", LOW.key), (RUN.id, "maps/nowhere/0")])
async def test_what_was_never_planned_cannot_be_begun(sink: Sink, run: str, key: str) -> None:
    """A job that outlives its run must end without an error."""
    await sink.runs.start(RUN, [LOW])
    assert await sink.shards.begin(run, key, 1) is None


async def test_a_parked_shard_can_be_begun_again(sink: Sink) -> None:
    """An operator resumed the run, so the shard must not stay parked."""
    await started(sink)
    await written(sink, page(rows(1), after=1, state=ShardState.PARKED, why="loop"))
    begun = await sink.shards.begin(RUN.id, LOW.key, 2)
    assert begun is not None
    assert (begun.state, begun.why, begun.finished_at, begun.cursor) == (ShardState.RUNNING, None, None, {"after": 1})
    await written(sink, page(rows(2), 1, 2, fence=2))


async def test_a_worker_that_lost_the_answer_finds_its_shard_parked(sink: Sink, witness: Witness) -> None:
    """The worker repeats its call after a lost reply, and must not reopen a shard that waits for an operator."""
    await started(sink)
    await written(sink, page(rows(1), after=1, state=ShardState.PARKED, why="loop"))
    before = await observed_state(sink, witness)
    begun = await sink.shards.begin(RUN.id, LOW.key, 1)
    assert begun is not None
    assert begun.state is ShardState.PARKED
    assert await observed_state(sink, witness) == before


async def test_a_finished_shard_stays_finished(sink: Sink) -> None:
    """A job that is delivered twice must find nothing to do."""
    await started(sink)
    await written(sink, page(rows(1), after=1, state=ShardState.DONE))
    begun = await sink.shards.begin(RUN.id, LOW.key, 2)
    assert begun is not None
    assert begun.state is ShardState.DONE
    assert await sink.shards.write(page(rows(2), 1, 2, fence=2)) is None


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


async def test_requests_without_a_page_are_counted(sink: Sink) -> None:
    """A page that is refused or fails costs requests as well, and often money."""
    await started(sink)
    await written(sink, page(rows(1), after=1, requests=2))
    before = await shard(sink)
    assert await sink.shards.note(RUN.id, LOW.key, 1, {}, requests=4)
    now = await shard(sink)
    assert now.requests == 6
    assert replace(now, requests=before.requests) == before


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
    before = await observed_state(sink, witness)
    assert not await sink.shards.note(RUN.id, LOW.key, 1, {"empty_page": 1}, "late")
    assert not await sink.shards.note("run-9", LOW.key, 3, {"empty_page": 1}, "late")
    assert not await sink.shards.note(RUN.id, "maps/nowhere/0", 3, {"empty_page": 1}, "late")
    assert await observed_state(sink, witness) == before


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
    before = await observed_state(sink, witness)
    assert not await sink.shards.note(RUN.id, LOW.key, 5, {"empty_page": 1}, "late")
    assert not await sink.shards.note(RUN.id, HIGH.key, 5, {"empty_page": 1}, "late")
    assert await observed_state(sink, witness) == before


async def test_shards_of_another_table_take_no_notes(sink: Sink, elsewhere: Sink) -> None:
    """A configuration mistake must not affect another run."""
    await started(sink)
    assert not await elsewhere.shards.note(RUN.id, LOW.key, 5, {"empty_page": 1})
    assert (await shard(sink)).guards == {}
