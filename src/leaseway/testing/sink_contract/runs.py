"""Runs: started once, found again, finished. A run's budget is taken before a request and never exceeded."""

import asyncio

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue, KeyConflict
from leaseway.imports.domain.run_state import RunMode, RunState, ShardState
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
    started,
    written,
)


async def test_a_run_starts_with_its_shards(sink: Sink) -> None:
    """Workers rely on the stored plan."""
    assert await sink.runs.start(RUN, [HIGH, LOW]) == RUN
    found = await sink.shards.find_all(RUN.id)
    assert [one.shard for one in found] == sorted([LOW, HIGH], key=lambda one: one.key)
    assert {(one.state, one.fence, one.cursor, one.attempts, one.pages) for one in found} == {
        (ShardState.WAITING, 0, None, 0, 0)
    }


async def test_a_run_is_kept_with_all_that_it_was_planned_with(sink: Sink, other: Sink) -> None:
    """Workers on other machines know the run only from the sink."""
    planned = replace(
        RUN,
        mode=RunMode.INCREMENTAL,
        since=17,
        watermark=10**15,
        concurrency=8,
        id_max=311_592,
        requests_max=500,
        requests=3,
        notes={"drift": {"new": ["$.a", "größe"]}, "none": None},
        why="on purpose",
    )
    assert await sink.runs.start(planned, [LOW]) == planned
    assert await other.runs.find(RUN.id) == planned
    assert await other.runs.find_all() == [planned]


async def test_a_run_of_another_table_is_nobody(sink: Sink, elsewhere: Sink) -> None:
    """Two imports may share their run tables."""
    await sink.runs.start(RUN, [LOW])
    assert await sink.runs.find("run-9") is None
    assert await elsewhere.runs.find(RUN.id) is None
    assert await elsewhere.runs.find_all() == []


async def test_a_run_that_is_started_again_goes_on(sink: Sink, witness: Witness) -> None:
    """Resuming starts the run again, and must not lose anything."""
    await started(sink)
    await written(sink, page(rows(1, 2), after=2))
    before = await observed_state(sink, witness)
    assert await sink.runs.start(replace(RUN, started_at=RUN.started_at + 5), [LOW, HIGH]) == RUN
    assert await observed_state(sink, witness) == before


async def test_a_plan_that_was_made_again_adds_no_shards(sink: Sink) -> None:
    """The source may have grown, and two plans in one run would import some rows twice."""
    await sink.runs.start(RUN, [LOW])
    await sink.runs.start(RUN, [LOW, HIGH])
    assert [one.shard for one in await sink.shards.find_all(RUN.id)] == [LOW]


async def test_a_run_with_another_spec_is_refused(sink: Sink, witness: Witness) -> None:
    """One half of the rows would have another meaning than the other."""
    await started(sink)
    before = await observed_state(sink, witness)
    with pytest.raises(KeyConflict, match=r"run-1.*another spec.*hash-1.*hash-2.*another id"):
        await sink.runs.start(replace(RUN, spec_hash="hash-2"), [LOW])
    assert await observed_state(sink, witness) == before


async def test_a_shard_that_is_planned_twice_is_refused(sink: Sink) -> None:
    """A mistake in a partition must not be accepted as a plan."""
    with pytest.raises(BadValue, match=r"shards: .* twice"):
        await sink.runs.start(RUN, [LOW, LOW])
    assert await sink.runs.find_all() == []


async def test_runs_come_newest_first(sink: Sink) -> None:
    """The newest run is the one that commands show by default."""
    for number, source in ((1, "maps"), (3, "maps"), (2, "mail")):
        await sink.runs.start(replace(RUN, id=f"run-{number}", source=source, started_at=number), [LOW])
    assert [run.id for run in await sink.runs.find_all()] == ["run-3", "run-2", "run-1"]
    assert [run.id for run in await sink.runs.find_all(limit=2)] == ["run-3", "run-2"]
    assert [run.id for run in await sink.runs.find_all("maps")] == ["run-3", "run-1"]
    assert await sink.runs.find_all("nobody") == []


async def test_runs_can_be_asked_for_by_how_they_ended_and_what_they_read(sink: Sink) -> None:
    """An incremental run builds on the last complete run, and a full run is due when the last one is old."""
    for number, mode in enumerate((RunMode.FULL, RunMode.INCREMENTAL, RunMode.FULL)):
        await sink.runs.start(replace(RUN, id=f"run-{number}", mode=mode, started_at=number), [LOW])
    await sink.runs.finish("run-0", RunState.COMPLETE)
    await sink.runs.finish("run-1", RunState.COMPLETE)
    assert [run.id for run in await sink.runs.find_all(state=RunState.COMPLETE)] == ["run-1", "run-0"]
    assert [run.id for run in await sink.runs.find_all(mode=RunMode.FULL)] == ["run-2", "run-0"]
    assert [run.id for run in await sink.runs.find_all("maps", 1, state=RunState.COMPLETE, mode=RunMode.FULL)] == [
        "run-0"
    ]
    assert await sink.runs.find_all("maps", state=RunState.RUNNING, mode=RunMode.INCREMENTAL) == []


async def test_open_shards_are_those_that_wait_or_run(sink: Sink) -> None:
    """Large shards are split while fewer shards are open than workers can process."""
    assert await sink.shards.count_open(RUN.id) == 0
    await sink.runs.start(RUN, [LOW, HIGH])
    await sink.runs.start(replace(RUN, id="run-2"), [LOW])
    assert await sink.shards.count_open(RUN.id) == 2
    await sink.shards.begin(RUN.id, LOW.key, 1)
    await written(sink, page(rows(1), after=1))
    assert await sink.shards.count_open(RUN.id) == 2
    await written(sink, page(rows(2), 1, state=ShardState.DONE))
    assert await sink.shards.count_open(RUN.id) == 1
    await sink.shards.begin(RUN.id, HIGH.key, 1)
    await written(sink, replace(page(state=ShardState.PARKED, why="loop"), shard=HIGH.key))
    assert await sink.shards.count_open(RUN.id) == 0
    await sink.shards.begin(RUN.id, HIGH.key, 2)
    assert await sink.shards.count_open(RUN.id) == 1


async def test_notes_stay_until_others_are_given(sink: Sink) -> None:
    """A resumed run keeps its findings until there are new ones."""
    await sink.runs.start(RUN, [LOW])
    await sink.runs.finish(RUN.id, RunState.SUSPECT, notes={"suspect": ["few rows"], "größe": 1})
    await sink.runs.finish(RUN.id, RunState.RUNNING)
    (run,) = await sink.runs.find_all()
    assert run.notes == {"suspect": ["few rows"], "größe": 1}
    for _ in range(2):
        await sink.runs.finish(RUN.id, RunState.COMPLETE, notes={"drift": {}})
    (run,) = await sink.runs.find_all()
    assert (run.state, run.notes) == (RunState.COMPLETE, {"drift": {}})


async def test_a_finished_run_says_how_it_ended(sink: Sink, clock: FakeClock) -> None:
    """The watermark of the next run depends on it."""
    await sink.runs.start(replace(RUN, watermark=17), [LOW])
    clock.advance(60)
    await sink.runs.finish(RUN.id, RunState.PARTIAL, "one shard is parked\0")
    (run,) = await sink.runs.find_all()
    assert (run.state, run.finished_at, run.watermark) == (RunState.PARTIAL, clock.now_us(), 17)
    assert run.why == "one shard is parked\ufffd"


async def test_a_run_that_goes_on_has_not_ended(sink: Sink) -> None:
    """A resumed run that still looked ended would be reported or swept too early."""
    await sink.runs.start(RUN, [LOW])
    await sink.runs.finish(RUN.id, RunState.PARTIAL)
    await sink.runs.finish(RUN.id, RunState.RUNNING)
    (run,) = await sink.runs.find_all()
    assert (run.state, run.finished_at) == (RunState.RUNNING, None)


async def test_a_run_that_nobody_knows_cannot_finish(sink: Sink) -> None:
    """A mistyped id must not look like success."""
    with pytest.raises(BadValue, match="run: there is no run 'run-9'"):
        await sink.runs.finish("run-9", RunState.COMPLETE)
    assert await sink.shards.find_all("run-9") == []


async def spent(sink: Sink, run: str = RUN.id) -> tuple[int, int | None]:
    found = await sink.runs.find(run)
    assert found is not None
    return found.requests, found.requests_max


async def test_a_run_without_a_budget_always_has_enough(sink: Sink, witness: Witness) -> None:
    """Most runs have no budget, so nothing may be written for them."""
    await sink.runs.start(RUN, [LOW])
    before = await observed_state(sink, witness)
    for _ in range(3):
        assert await sink.runs.spend(RUN.id, 10**9)
    assert await observed_state(sink, witness) == before


async def test_a_budget_is_spent_to_its_last_request_and_no_further(sink: Sink) -> None:
    """A refused amount takes nothing, because a smaller one may still fit."""
    await sink.runs.start(replace(RUN, requests_max=5), [LOW])
    assert [await sink.runs.spend(RUN.id, requests) for requests in (3, 3, 1, 0, 2, 1, 1)] == [
        *(True, False, True, True),
        *(False, True, False),
    ]
    assert await spent(sink) == (5, 5)


async def test_many_who_spend_at_once_never_pass_the_budget(sink: Sink, other: Sink) -> None:
    """Eight workers on four machines spend at the same moment. Checking first and taking later would exceed the
    budget.
    """
    await sink.runs.start(replace(RUN, requests_max=25), [LOW])
    answers = await asyncio.gather(*((sink, other)[number % 2].runs.spend(RUN.id, 1) for number in range(60)))
    assert answers.count(True) == 25
    assert await spent(sink) == (25, 25)


async def test_a_larger_budget_goes_on_from_what_was_spent(sink: Sink, other: Sink) -> None:
    """Resuming with a larger budget pays only for the rest."""
    await sink.runs.start(replace(RUN, requests_max=2), [LOW])
    assert await sink.runs.spend(RUN.id, 2)
    assert not await other.runs.spend(RUN.id, 1)
    for _ in range(2):
        await sink.runs.set_budget(RUN.id, 3)
    assert await other.runs.spend(RUN.id, 1)
    assert not await other.runs.spend(RUN.id, 1)
    assert await spent(sink) == (3, 3)


async def test_a_budget_can_be_lifted_and_set_later(sink: Sink, other: Sink) -> None:
    """Also for workers that found no budget before."""
    await sink.runs.start(RUN, [LOW])
    assert await other.runs.spend(RUN.id, 7)
    await sink.runs.set_budget(RUN.id, 1)
    assert [await other.runs.spend(RUN.id, 1) for _ in range(2)] == [True, False]
    await sink.runs.set_budget(RUN.id, None)
    assert await other.runs.spend(RUN.id, 100)
    assert await spent(sink) == (1, None)


async def test_a_budget_below_what_was_spent_is_used_up(sink: Sink) -> None:
    """Spent requests cannot be returned."""
    await sink.runs.start(replace(RUN, requests_max=5), [LOW])
    await sink.runs.spend(RUN.id, 4)
    await sink.runs.set_budget(RUN.id, 2)
    assert not await sink.runs.spend(RUN.id, 1)
    assert await spent(sink) == (4, 2)


async def test_runs_do_not_share_their_budgets(sink: Sink) -> None:
    """The budget of an earlier run must not affect this one."""
    for run in ("run-1", "run-2"):
        await sink.runs.start(replace(RUN, id=run, requests_max=1), [LOW])
        assert await sink.runs.spend(run, 1)
    await sink.runs.set_budget("run-2", 2)
    assert [await sink.runs.spend(run, 1) for run in ("run-1", "run-2")] == [False, True]


async def test_what_was_spent_stays_when_a_run_is_started_again_or_finishes(sink: Sink) -> None:
    """A request that was sent before a crash is charged."""
    budgeted = replace(RUN, requests_max=5)
    await sink.runs.start(budgeted, [LOW])
    await sink.runs.spend(RUN.id, 4)
    assert (await sink.runs.start(budgeted, [LOW])).requests == 4
    await sink.runs.finish(RUN.id, RunState.PARTIAL, notes={})
    assert await spent(sink) == (4, 5)


async def test_what_makes_no_sense_cannot_be_spent(sink: Sink, elsewhere: Sink) -> None:
    """A negative number would return spent requests, and a mistyped run must not look like a run without a budget."""
    await sink.runs.start(replace(RUN, requests_max=5), [LOW])
    with pytest.raises(BadValue, match=r"requests: must be at least 0 \(is -1\)"):
        await sink.runs.spend(RUN.id, -1)
    with pytest.raises(BadValue, match=r"requests_max: must be at least 0 \(is -1\)"):
        await sink.runs.set_budget(RUN.id, -1)
    for where, run in ((sink, "run-9"), (elsewhere, RUN.id)):
        with pytest.raises(BadValue, match=f"run: there is no run '{run}'"):
            await where.runs.spend(run, 1)
        with pytest.raises(BadValue, match=f"run: there is no run '{run}'"):
            await where.runs.set_budget(run, 1)
    assert await spent(sink) == (0, 5)
