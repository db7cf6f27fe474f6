"""Rows that a complete run did not see: counted over several runs, then marked present or deleted. One run alone
deletes nothing.
"""

import asyncio

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.page import Row
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.imports.sinks.port import Sink, Sweep
from leaseway.testing.clock import FakeClock
from leaseway.testing.sink_contract.fixtures import (
    HIGH,
    LOW,
    RUN,
    Witness,
    bad,
    imported,
    observed_state,
    page,
    row,
    rows,
    started,
    tombstone,
    written,
)


async def import_remembering(sink: Sink, clock: FakeClock, run: str, *some: Row, source: str = "maps") -> None:
    """A run of one page, a minute later, that stores the ids it saw."""
    clock.advance(60)
    await started(sink, LOW, run=replace(RUN, id=run, source=source, started_at=clock.now_us()))
    clock.advance(1)
    await written(sink, replace(page(some, state=ShardState.DONE, remembers=True), run=run))


async def swept(sink: Sink, clock: FakeClock, run: str, *ids: int, source: str = "maps") -> Sweep:
    await import_remembering(sink, clock, run, *rows(*ids), source=source)
    return await sink.sweeps.sweep(run)


async def test_what_was_not_seen_is_absent(sink: Sink, other: Sink, clock: FakeClock) -> None:
    """An absent row stays in the table unchanged."""
    await imported(sink, "run-0", *rows(1, 2, 3, 4))
    assert await swept(sink, clock, "run-1", 1, 3) == Sweep(stored=4, absent=2)
    assert await other.sweeps.find_absent("maps", 1, 10) == ["2", "4"]
    assert await other.sweeps.find_absent("maps", 2, 10) == []
    assert await sink.rows.count() == 4


async def test_absence_counts_in_a_row(sink: Sink, clock: FakeClock) -> None:
    """A source that omits a record for a day has not deleted it."""
    await imported(sink, "run-0", *rows(1, 2, 3))
    assert await swept(sink, clock, "run-1", 1) == Sweep(3, 2)
    assert await swept(sink, clock, "run-2", 1, 3) == Sweep(3, 1)
    assert await swept(sink, clock, "run-3", 1) == Sweep(3, 2)
    found = [await sink.sweeps.find_absent("maps", sweeps, 10) for sweeps in (1, 2, 3, 4)]
    assert found == [["2", "3"], ["2"], ["2"], []]


async def test_a_run_that_is_swept_twice_changes_nothing(sink: Sink, other: Sink, clock: FakeClock) -> None:
    """A call that is repeated after a lost reply must not count as a second run."""
    await imported(sink, "run-0", *rows(1, 2))
    first = await swept(sink, clock, "run-1", 1)
    for again in (sink, other):
        assert await again.sweeps.sweep("run-1") == first
    assert await sink.sweeps.find_absent("maps", 2, 10) == []
    await sink.runs.finish("run-1", RunState.COMPLETE, notes={"drift": {}})
    assert await sink.sweeps.sweep("run-1") == first
    assert await sink.sweeps.find_absent("maps", 2, 10) == []
    run = await sink.runs.find("run-1")
    assert run is not None
    assert run.notes == {"drift": {}, "sweep": {"stored": 2, "absent": 1}}


async def test_two_who_sweep_a_run_at_once_sweep_it_once(sink: Sink, other: Sink, clock: FakeClock) -> None:
    """Two workers finish the last two shards at the same moment, and both finish the run."""
    await imported(sink, "run-0", *rows(*range(50)))
    for number in range(1, 4):
        await import_remembering(sink, clock, f"run-{number}", *rows(1, 2))
        answers = await asyncio.gather(sink.sweeps.sweep(f"run-{number}"), other.sweeps.sweep(f"run-{number}"))
        assert list(answers) == [Sweep(50, 48)] * 2
        assert len(await sink.sweeps.find_absent("maps", number, 100)) == 48
        assert await sink.sweeps.find_absent("maps", number + 1, 100) == []


async def test_what_all_shards_have_seen_is_seen(sink: Sink, other: Sink, clock: FakeClock) -> None:
    """A record that moved from one country to another during the run was seen in one of them."""
    await imported(sink, "run-0", *rows(1, 2, 3, 4, 5))
    clock.advance(60)
    await started(sink, run=replace(RUN, started_at=clock.now_us()))
    await written(sink, page(rows(1, 2), after=2, remembers=True))
    await written(other, replace(page(rows(2, 3), after=2, remembers=True), shard=HIGH.key))
    await written(sink, page(rows(4), 2, remembers=True, state=ShardState.DONE))
    assert await sink.sweeps.sweep(RUN.id) == Sweep(5, 1)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["5"]


async def test_each_run_has_its_own_eyes(sink: Sink, clock: FakeClock) -> None:
    """Two runs may read at once, and sweeping one must not affect the other."""
    await imported(sink, "run-0", *rows(1, 2, 3))
    await import_remembering(sink, clock, "run-1", *rows(1, 2))
    await import_remembering(sink, clock, "run-2", *rows(2, 3))
    assert await sink.sweeps.sweep("run-1") == Sweep(3, 1)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["3"]
    assert await sink.sweeps.sweep("run-2") == Sweep(3, 1)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["1"]


async def test_a_late_workers_page_has_seen_nothing(sink: Sink, clock: FakeClock) -> None:
    """The page was not written, so its ids must not count as seen."""
    await imported(sink, "run-0", *rows(1, 2))
    await import_remembering(sink, clock, "run-1", *rows(1))
    assert await sink.shards.write(replace(page(rows(2), after=1, remembers=True), run="run-1")) is None
    assert await sink.sweeps.sweep("run-1") == Sweep(2, 1)


async def test_unchanged_and_older_records_are_seen(sink: Sink, clock: FakeClock) -> None:
    """Nothing was written for them, but the source has them."""
    await imported(sink, "run-0", row(1, version=2), row(2, version=2))
    await import_remembering(sink, clock, "run-1", row(1, version=2), row(2, version=1))
    assert await sink.sweeps.sweep("run-1") == Sweep(2, 0)


async def test_bad_records_are_seen(sink: Sink, clock: FakeClock) -> None:
    """A record that is bad today exists, so its stored row must not be taken for deleted."""
    await imported(sink, "run-0", *rows(1, 2, 3, 4))
    await import_remembering(sink, clock, "run-1", row(1), row(2, size="many"))
    assert await sink.sweeps.sweep("run-1") == Sweep(4, 2)
    clock.advance(60)
    await started(sink, LOW, run=replace(RUN, id="run-2", started_at=clock.now_us()))
    kept = [bad(0, external_id="3"), bad(1), bad(2, external_id="a\0b")]
    await written(sink, replace(page(rows(1, 2), bad=kept, state=ShardState.DONE, remembers=True), run="run-2"))
    assert await sink.sweeps.sweep("run-2") == Sweep(4, 1)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["4"]


async def test_a_tombstone_is_no_sign_of_life(sink: Sink, clock: FakeClock) -> None:
    """Not even a deletion that is too old to delete its row counts as seen. And a deleted row cannot be absent."""
    await imported(sink, "run-0", *rows(1, 2, 3, version=5))
    await swept(sink, clock, "run-1", 1)
    await import_remembering(sink, clock, "run-2", row(1), tombstone(2, version=6), tombstone(3, version=4))
    assert await sink.sweeps.sweep("run-2") == Sweep(2, 1)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["3"]


async def test_pages_that_do_not_remember_leave_no_trace(sink: Sink, clock: FakeClock) -> None:
    """Most imports never sweep and must not pay for it."""
    await imported(sink, "run-0", *rows(1, 2))
    clock.advance(60)
    await started(sink, LOW, run=replace(RUN, started_at=clock.now_us()))
    await written(sink, page(rows(1, 2), state=ShardState.DONE))
    assert await sink.sweeps.sweep(RUN.id) == Sweep(2, 2)


async def test_rows_that_came_during_the_run_are_no_witnesses(sink: Sink, clock: FakeClock) -> None:
    """Another run wrote the row after this run had read its page."""
    await imported(sink, "run-0", *rows(1))
    await import_remembering(sink, clock, "run-1", *rows(1))
    await imported(sink, "run-2", *rows(2))
    assert await sink.sweeps.sweep("run-1") == Sweep(stored=2, absent=0)


async def test_absentees_come_in_order_and_in_parts(sink: Sink, clock: FakeClock) -> None:
    """The order must not depend on the collation of the database, or batches would skip ids."""
    ids = ["10", "9", "B", "a", "b", "a b", "é", "Z", "日本", "_"]
    await imported(sink, "run-0", *[row(name) for name in ids])
    await swept(sink, clock, "run-1")
    found: list[str] = []
    for _ in ids:
        part = await sink.sweeps.find_absent("maps", 1, 3, found[-1] if found else "")
        if not part:
            break
        assert len(part) <= 3
        found += part
    assert found == sorted(ids)


async def test_the_forgiven_begin_anew(sink: Sink, clock: FakeClock) -> None:
    """The source returned these records when asked by id."""
    await imported(sink, "run-0", *rows(1, 2, 3))
    await swept(sink, clock, "run-1", 1)
    for _ in range(2):
        await sink.sweeps.mark_present("maps", ["2", "99"])
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["3"]
    await swept(sink, clock, "run-2", 1)
    assert [await sink.sweeps.find_absent("maps", sweeps, 10) for sweeps in (1, 2)] == [["2", "3"], ["3"]]


async def test_the_buried_are_not_absent_any_more(sink: Sink, clock: FakeClock) -> None:
    """A row that returns starts counting again."""
    await imported(sink, "run-0", *rows(1, 2, 3))
    await swept(sink, clock, "run-1", 1)
    assert await sink.sweeps.delete("run-1", ["2"], "absent") == 1
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["3"]
    assert await swept(sink, clock, "run-2", 1, 2, 3) == Sweep(3, 0)
    assert await swept(sink, clock, "run-3", 1) == Sweep(3, 2)
    assert [await sink.sweeps.find_absent("maps", sweeps, 10) for sweeps in (1, 2)] == [["2", "3"], []]


async def test_sources_of_one_table_are_swept_apart(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """A run of one source says nothing about the records of another."""
    await imported(sink, "run-0", *rows(1, 2))
    await imported(sink, "run-1", *rows(1, 2, 3), source="mail")
    assert await swept(sink, clock, "run-2", 1) == Sweep(2, 1)
    assert await swept(sink, clock, "run-3", 1, source="mail") == Sweep(3, 2)
    assert await sink.sweeps.find_absent("mail", 1, 10) == ["2", "3"]
    await sink.sweeps.mark_present("mail", ["2"])
    assert await swept(sink, clock, "run-4", 1, 2, 3, source="mail") == Sweep(3, 0)
    assert (await sink.sweeps.find_absent("maps", 1, 10), await sink.sweeps.find_absent("mail", 1, 10)) == (["2"], [])


async def test_tables_of_one_place_are_swept_apart(sink: Sink, elsewhere: Sink, clock: FakeClock) -> None:
    """Both tables may import the same source."""
    await imported(sink, "run-0", *rows(1, 2))
    await imported(elsewhere, "run-1", *rows(1, 2, 3))
    assert await swept(sink, clock, "run-2", 1) == Sweep(2, 1)
    assert await swept(elsewhere, clock, "run-3", 2) == Sweep(3, 2)
    await elsewhere.sweeps.mark_present("maps", ["1", "2"])
    assert (await sink.sweeps.find_absent("maps", 1, 10), await elsewhere.sweeps.find_absent("maps", 1, 10)) == (
        ["2"],
        ["3"],
    )
    with pytest.raises(BadValue, match="run: there is no run 'run-2'"):
        await elsewhere.sweeps.sweep("run-2")


async def test_a_sweep_touches_no_row(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """Deleting is a separate step that may be refused."""
    await imported(sink, "run-0", *rows(1, 2, 3))
    await import_remembering(sink, clock, "run-1", *rows(1))
    before = await witness.rows(), await sink.shards.find_all("run-1")
    await sink.sweeps.sweep("run-1")
    await sink.sweeps.mark_present("maps", ["2"])
    assert (await witness.rows(), await sink.shards.find_all("run-1")) == before


async def test_who_asks_for_a_run_that_is_not_there_changes_nothing(sink: Sink, witness: Witness) -> None:
    """A mistyped id must not look like a run that saw nothing."""
    await imported(sink, "run-0", *rows(1))
    before = await observed_state(sink, witness)
    for call in (sink.sweeps.sweep("run-9"), sink.sweeps.delete("run-9", ["1"], "absent")):
        with pytest.raises(BadValue, match="run: there is no run 'run-9'"):
            await call
    assert await observed_state(sink, witness) == before
    assert await sink.sweeps.find_absent("maps", 1, 10) == []


async def test_a_sweep_of_many_rows_takes_them_all(sink: Sink, clock: FakeClock) -> None:
    """More ids than one statement should contain."""
    many = range(6_000)
    await imported(sink, "run-0", *rows(*many))
    assert await swept(sink, clock, "run-1", *many[:1_000]) == Sweep(6_000, 5_000)
    absent = await sink.sweeps.find_absent("maps", 1, 6_000)
    assert absent == sorted(map(str, many[1_000:]))
    assert await sink.sweeps.delete("run-1", absent, "absent") == 5_000
    assert await sink.rows.count() == 1_000


async def test_a_row_that_another_run_has_just_changed_is_not_absent(sink: Sink, clock: FakeClock) -> None:
    """The record moved between shards while a long run read them: the run saw it in neither, but it exists."""
    await imported(sink, "run-0", *rows(1, 2, 3))
    await import_remembering(sink, clock, "run-1", *rows(1))
    moved = replace(row(2), stamp=row(2).stamp + 1, content_hash="moved")
    await imported(sink, "run-2", moved)
    assert await sink.sweeps.sweep("run-1") == Sweep(stored=3, absent=1)
    assert await sink.sweeps.find_absent("maps", 1, 10) == ["3"]


async def test_a_row_that_was_absent_and_came_back_changed_begins_anew(sink: Sink, clock: FakeClock) -> None:
    """Absence is counted over consecutive sweeps, and another run saw the row in between."""
    await imported(sink, "run-0", *rows(1, 2))
    await import_remembering(sink, clock, "run-1", *rows(1))
    assert await sink.sweeps.sweep("run-1") == Sweep(2, 1)
    await import_remembering(sink, clock, "run-2", *rows(1))
    await imported(sink, "run-3", replace(row(2), stamp=row(2).stamp + 1, content_hash="back"))
    assert await sink.sweeps.sweep("run-2") == Sweep(2, 0)
    assert await sink.sweeps.find_absent("maps", 1, 10) == []
