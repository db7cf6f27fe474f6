"""Finishing a run: its state must be correct, from any process and however often it is computed."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.imports.apps import import_app
from tests.imports.changing_source import Changing, changing
from tests.imports.test_deletes import FULL, SWEEP, hide

from leaseway.domain.errors import NoSuchJob, UnknownOutcome
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardRow, ShardState
from leaseway.imports.run.finish_run import (
    duplicate_warning,
    find_excess_absence,
    find_yield_collapse,
    finish_run,
    judge_shards,
)
from leaseway.imports.run.start import start_planned
from leaseway.imports.sinks.sql_tables import SqlSweeps
from leaseway.imports.sinks.sqlite.sink import SqliteSink
from leaseway.imports.spec.model import GuardSettings, SweepSettings
from leaseway.system import wall_clock_us
from leaseway.testing.fake_open_charge_map import API_KEY, Faults
from leaseway.testing.provider import Answer

HUNDREDS = '{ by = "id_range", size = 100, upper = "/system/status#$.maxPOIId" }'
RUN = RunRow(id="r", source="s", spec_hash="h", started_at=0)
GUARDS = GuardSettings(yield_floor=0.5)


def shard(label: str, rows: int = 0, state: ShardState = ShardState.DONE, **more: Any) -> ShardRow:
    made = more.pop("shard", make_shard("s", label, {"id": label}))
    return ShardRow(run="r", shard=made, state=state, fence=1, cursor=None, rows=rows, **more)


# -- the states of the shards --


def test_a_run_whose_shards_are_done_or_split_is_complete() -> None:
    """The children of a split shard carry its rows, so the parent must not keep the run open."""
    assert judge_shards(RUN, [shard("a"), shard("b", state=ShardState.SPLIT)]).state is RunState.COMPLETE


def test_a_partial_run_says_how_many_shards_and_why() -> None:
    """Without the cause, a user can only resume and hope."""
    shards = [
        shard("a"),
        shard("b", state=ShardState.PARKED),
        shard("c", state=ShardState.PARKED, why="the key is wrong"),
        shard("d", state=ShardState.RUNNING),
    ]
    verdict = judge_shards(RUN, shards)
    assert verdict.state is RunState.PARTIAL
    assert verdict.why == ("2 of 4 shards parked: c: the key is wrong; 1 of 4 shards unfinished: d: not finished")


def test_a_run_whose_budget_is_used_up_says_so() -> None:
    """A used-up budget needs more money, not a correction of the spec."""
    run = replace(RUN, requests_max=1_000, requests=1_000)
    verdict = judge_shards(run, [shard("a"), shard("b", state=ShardState.RUNNING, why="whatever")])
    assert (verdict.state, verdict.why) == (
        RunState.PARTIAL,
        "the budget of 1,000 requests is used up, with 1 of 2 shards left; resume the run with a larger one",
    )


def test_a_shard_that_is_parked_does_not_wait_for_a_budget() -> None:
    """A larger budget would not help a shard that has a wrong key."""
    run = replace(RUN, requests_max=1_000, requests=1_000)
    verdict = judge_shards(run, [shard("a"), shard("b", state=ShardState.PARKED, why="the key is wrong")])
    assert verdict.why == "1 of 2 shards parked: b: the key is wrong"


def test_a_run_that_failed_stays_failed() -> None:
    """A failure must not turn into success because the shards look finished."""
    verdict = judge_shards(replace(RUN, state=RunState.FAILED, why="the key is wrong"), [shard("a")])
    assert (verdict.state, verdict.why) == (RunState.FAILED, "the key is wrong")


# -- the yield --


@pytest.mark.parametrize(
    ("now", "before", "problem"),
    [
        ({"a": 50, "b": 50}, {"a": 100, "b": 100}, None),
        ({"a": 50, "b": 49}, {"a": 100, "b": 100}, "99 rows, and the last complete full run had 200"),
        ({"a": 49, "b": 900}, {"a": 100, "b": 100}, "has 49 rows, and had 100"),
        ({"a": 1, "b": 900}, {"a": 99, "b": 100}, None),
        ({"c": 900}, {"a": 100, "b": 100}, None),
        ({"a": 0}, {}, None),
    ],
)
def test_a_yield_that_collapsed_is_suspect(now: Mapping[str, int], before: Mapping[str, int], problem: str) -> None:
    """Half as many rows as last time, in total or in one shard, are far more often a broken source than a cleaned one.
    Small and new shards prove nothing.
    """
    verdict = find_yield_collapse(
        [shard(*each) for each in now.items()], [shard(*each) for each in before.items()], GUARDS
    )
    if problem is None:
        assert verdict is None
        return
    assert verdict is not None
    assert (verdict.state, verdict.guard) == (RunState.SUSPECT, "yield_collapse")
    assert problem in str(verdict.why)
    assert "resource.guards.yield_floor" in str(verdict.why)


def test_a_shard_that_was_shared_out_is_compared_with_its_children() -> None:
    """The rows of a split shard are those before the split, so a comparison without its children would raise a false
    alarm.
    """
    parent = shard("a", 10, ShardState.SPLIT)
    child = shard("a1", 20, ShardState.SPLIT, parent=parent.shard.key)
    grandchild = shard("a2", 90, parent=child.shard.key)
    assert find_yield_collapse([parent, child, grandchild], [shard("a", 120)], GUARDS) is None
    assert find_yield_collapse([parent, child], [shard("a", 120)], GUARDS) is not None


def test_deleted_records_are_no_yield() -> None:
    """A long feed of deleted records would hide that the source shows almost no rows."""
    feed = shard("f", 1_000, shard=make_shard("s", "f", {"deleted": True}))
    assert find_yield_collapse([shard("a", 10), feed], [shard("a", 100)], GUARDS) is not None


@pytest.mark.parametrize(("absent", "is_suspect"), [(0, False), (2, False), (3, True)])
def test_more_absent_rows_than_allowed_are_suspect(absent: int, is_suspect: bool) -> None:
    """A source that hides its rows for a while must not cause their deletion."""
    assert (find_excess_absence(100, absent, SweepSettings(max_ratio=0.02)) is not None) is is_suspect


@pytest.mark.parametrize(("doubled", "warns"), [(0, False), (5, False), (6, True)])
def test_records_that_came_twice_are_a_warning(doubled: int, warns: bool) -> None:
    """Many duplicates show that pages shift while they are read, so other rows may be missing."""
    shards = [shard("a", 60, guards={"duplicate": doubled}), shard("b", 40)]
    assert (duplicate_warning(shards, GUARDS) is not None) is warns


# -- whole runs --


async def test_a_source_that_shows_half_of_its_rows_makes_the_run_suspect(tmp_path: Path) -> None:
    """If the watermark moved, later incremental runs would never fetch the missing changes."""
    async with changing(tmp_path, more="guards = { yield_floor = 0.9 }") as place:
        await place.run("first")
        place.later(60)
        since = (await place.plan()).since
        hide(place, 40)
        assert await place.run("second", FULL) is RunState.SUSPECT
        row = await place.row("second")
        assert row.notes["guards"] == {"yield_collapse": 1}
        assert "260 rows, and the last complete full run had 300" in str(row.why)
        assert (await place.plan()).since == since, "a suspect run moves no watermark"
        # After a review, the result is accepted, and no further requests are sent.
        place.write(more="guards = { yield_floor = 0.5 }")
        before = len(place.asked())
        assert await place.resume("second") is RunState.COMPLETE
        assert len(place.asked()) == before
        row = await place.row("second")
        assert (row.why, row.notes.get("guards")) == (None, None)


async def test_a_run_is_never_compared_with_a_suspect_one(tmp_path: Path) -> None:
    """A second collapsed run would look normal next to the first."""
    async with changing(tmp_path) as place:
        await place.run("first")
        hide(place, 200)
        assert await place.run("second", FULL) is RunState.SUSPECT
        assert await place.run("third", FULL) is RunState.SUSPECT


async def test_changes_are_few_and_no_collapse(tmp_path: Path) -> None:
    """An incremental run has few rows by design, and must not raise an alarm each time."""
    async with changing(tmp_path) as place:
        await place.run("first")
        place.later(60)
        assert await place.run("second", RunMode.INCREMENTAL) is RunState.COMPLETE


async def test_anybody_may_finish_a_run_again_and_the_answer_is_the_same(tmp_path: Path) -> None:
    """Several processes may finish a run at the same time, and deletes must not be counted twice."""
    async with changing(tmp_path, more=SWEEP) as place:
        await place.run("first")
        hide(place, 2)
        await place.run("second", FULL)
        await place.run("third", FULL)
        before = await place.row("third")
        await place.parts.sink.open()
        assert await finish_run(place.parts, "third") is RunState.COMPLETE
        assert await finish_run(place.parts, "third") is RunState.COMPLETE
        await place.parts.sink.close()
        after = await place.row("third")
        assert (after.notes, after.why) == (before.notes, before.why)
        assert after.notes["deletes"]["deleted"] == 2


async def test_a_run_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    """A mistyped run name must not look like a finished run."""
    async with changing(tmp_path) as place:
        await place.parts.sink.open()
        with pytest.raises(NoSuchJob, match="nobody"):
            await finish_run(place.parts, "nobody")
        await place.parts.sink.close()


async def test_who_finishes_a_run_too_early_finds_it_partial_and_does_no_harm(tmp_path: Path) -> None:
    """A sweep over a partial run would delete the rows that are not imported yet."""
    async with changing(tmp_path, more=SWEEP) as place:
        await place.run("first")
        plan = await place.plan(FULL)
        place.it.faults = Faults(error_every=2, error_status=404)
        assert await place.run("second", plan=plan) is RunState.PARTIAL
        assert "parked" in str((await place.row("second")).why)
        place.it.faults = Faults()
        assert await place.resume("second") is RunState.COMPLETE
        assert (await place.row("second")).notes["sweep"] == {"stored": 300, "absent": 0}


class LosingReplies(SqlSweeps):
    """Loses the first replies: the rows are deleted or marked present, but the caller does not know."""

    losses = 2

    async def delete(self, run: str, ids: Sequence[str], reason: str) -> int:
        count = await super().delete(run, ids, reason)
        self._lose()
        return count

    async def mark_present(self, source: str, ids: Sequence[str]) -> None:
        await super().mark_present(source, ids)
        self._lose()

    def _lose(self) -> None:
        if self.losses:
            self.losses -= 1
            raise UnknownOutcome("the reply was lost")


def lose_replies(place: Changing) -> None:
    sink = SqliteSink(str(place.folder / "data.db"), "poi")
    sink.sweeps = LosingReplies(sink.tables)
    place.parts = place.parts._replace(sink=sink, task=replace(place.parts.task, sink=sink))


async def test_a_closing_that_dies_in_its_middle_is_done_by_the_next_attempt(tmp_path: Path) -> None:
    """A worker can die after some of the rows are marked; the next attempt must finish the others."""
    async with changing(tmp_path, more=SWEEP) as place:
        await place.run("first")
        gone = hide(place, 6)
        await place.run("second", FULL)
        lose_replies(place)
        assert await place.run("third", FULL) is RunState.COMPLETE
        assert place.gone() == dict.fromkeys(gone, "swept")
        assert place.living() == place.truth()


async def test_only_the_last_shard_lets_the_source_be_asked(tmp_path: Path) -> None:
    """While another shard is still reading, the unseen rows are not yet known."""
    async with changing(tmp_path, more=SWEEP, partition=HUNDREDS) as place:
        await place.run("first")
        (victim,) = hide(place, 1)
        await place.run("second", FULL)
        before = len(place.asked())
        assert await place.run("third", FULL) is RunState.COMPLETE
        paths = place.asked()[before:]
        questions = [number for number, path in enumerate(paths) if "chargepointid" in path]
        pages = [number for number, path in enumerate(paths) if "greaterthanid" in path and "maxresults=1&" not in path]
        assert len(questions) == 2
        assert min(questions) > max(pages)
        assert place.gone() == {victim: "swept"}


async def test_a_run_that_was_parked_and_resumed_asks_the_source_all_the_same(tmp_path: Path) -> None:
    """Shards that were done before must not have used up the confirmation request of the run."""
    async with changing(tmp_path, more=SWEEP, partition=HUNDREDS) as place:
        await place.run("first")
        (victim,) = hide(place, 1)
        await place.run("second", FULL)
        plan = await place.plan(FULL)
        usual = place.it._pois
        place.it._pois = lambda query: Answer(404) if query["greaterthanid"] == "-1" else usual(query)  # type: ignore[method-assign]
        assert await place.run("third", plan=plan) is RunState.PARTIAL
        assert [row.state for row in await place.shards("third")].count(ShardState.PARKED) == 1
        place.it._pois = usual  # type: ignore[method-assign]
        assert await place.resume("third") is RunState.COMPLETE
        assert place.gone() == {victim: "swept"}


@pytest.mark.slow
async def test_a_worker_killed_in_the_middle_of_the_questions_is_followed_by_another(tmp_path: Path) -> None:
    """Half of the rows are marked when the worker dies; the next one must confirm the others, and the counters must
    agree.
    """
    async with changing(tmp_path, more=SWEEP) as place:
        await place.run("first")
        gone = hide(place, 6)
        await place.run("second", FULL)
        plan = await place.plan(FULL)
        await place.parts.sink.open()
        app, handle = import_app(place.parts, place.store)
        async with app:
            await start_planned(place.parts, handle, "third", plan, wall_clock_us())
        workers: list[subprocess.Popen[bytes]] = []
        usual = place.it._pois

        def deadly(query: Mapping[str, str]) -> Answer:
            if sum("chargepointid" in path for path in place.asked()) == QUESTIONS_BORNE:
                workers[0].kill()
            return usual(query)

        place.it._pois = deadly  # type: ignore[method-assign]
        for marked in (3, 6):
            workers.append(worker(place))
            await asyncio.to_thread(workers[-1].wait)
            assert len(place.gone()) == marked
            let_leases_lapse(place)
        assert [process.returncode for process in workers] == [-signal.SIGKILL, 0]
        assert await finish_run(place.parts, "third") is RunState.COMPLETE
        await place.parts.sink.close()
        assert place.gone() == dict.fromkeys(gone, "swept")
        assert place.living() == place.truth()
        assert (await place.row("third")).notes["deletes"]["deleted"] == 6


QUESTIONS_BORNE = 3
"""Both batches were requested, and the first of them twice; it is marked before the next request."""


def let_leases_lapse(place: Changing) -> None:
    """Expire the leases of the dead worker at once instead of waiting for them."""
    with closing(sqlite3.connect(place.store.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE jobs SET until = 0 WHERE state = 'leased'")


def worker(place: Changing) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "leaseway.cli", "import", "work", str(place.folder / "spec.toml"), "--until-empty"]
    environ = {**os.environ, "OCM_API_KEY": API_KEY}
    return subprocess.Popen([*command, "--store", place.store], env=environ, stderr=subprocess.DEVNULL)
