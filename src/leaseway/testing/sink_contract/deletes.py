"""Deleted records are kept, marked, and restored by a page that contains them."""

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.page import WriteCounts
from leaseway.imports.sinks.port import Sink
from leaseway.testing.clock import FakeClock
from leaseway.testing.sink_contract.fixtures import LOW, RUN, Witness, imported, page, row, rows, started, tombstone


async def test_a_tombstone_marks_the_row_that_is_there(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """Other tables may refer to the row, so it must stay, with its last content: a tombstone is often a key and a flag.

    A sink that stores versions may have the content in the version before.
    """
    await imported(sink, "run-1", row(1, title="old"), row(2))
    first_seen = clock.now_us()
    clock.advance(60)
    assert await imported(sink, "run-2", replace(tombstone(1, version=1), values={"title": "new"})) == WriteCounts(
        updated=1
    )
    found = (await witness.rows())["1"]
    assert (found["deleted_at"], found["deleted_reason"], found["run"]) == (clock.now_us(), "flagged", "run-2")
    assert (found["first_seen"], found["updated_at"]) == (first_seen, clock.now_us())
    assert (found["title"], found["document"]) in [("old", {"id": 1, "version": 0}), (None, None)]
    assert await sink.rows.count() == 1


async def test_a_tombstone_of_an_unknown_record_is_kept(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """A page that was read before the deletion may arrive later and must not restore the record."""
    assert await imported(sink, "run-1", tombstone(1, version=1), row(2)) == WriteCounts(inserted=2)
    found = (await witness.rows())["1"]
    assert (found["deleted_at"], found["deleted_reason"]) == (clock.now_us(), "flagged")
    assert await sink.rows.count() == 1
    assert await imported(sink, "run-2", row(1)) == WriteCounts(stale=1)
    assert await sink.rows.count() == 1


async def test_a_tombstone_that_comes_again_changes_nothing(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """The feed of deleted records repeats records within the overlap of two runs."""
    await imported(sink, "run-1", tombstone(1), row(2))
    before = await witness.rows()
    clock.advance(60)
    assert await imported(sink, "run-2", tombstone(1)) == WriteCounts(unchanged=1)
    assert await witness.rows() == before


async def test_a_tombstone_without_other_news_counts(sink: Sink, witness: Witness) -> None:
    """Some sources delete a record without a new stamp and without a changed field."""
    await imported(sink, "run-1", row(1))
    assert await imported(sink, "run-2", tombstone(1)) == WriteCounts(updated=1)
    assert await sink.rows.count() == 0


async def test_a_row_is_restored_by_its_old_content(sink: Sink, witness: Witness) -> None:
    """After a deletion that the source took back, the content is the same, and only the mark must go."""
    await imported(sink, "run-1", row(1, title="old"))
    await imported(sink, "run-2", tombstone(1))
    assert await imported(sink, "run-3", row(1, title="old")) == WriteCounts(updated=1)
    found = (await witness.rows())["1"]
    assert (found["deleted_at"], found["title"], await sink.rows.count()) == (None, "old", 1)


async def test_an_old_tombstone_does_not_mark_a_newer_row(sink: Sink, witness: Witness) -> None:
    """The record was restored after that deletion."""
    await imported(sink, "run-1", row(1, version=5))
    before = await witness.rows()
    assert await imported(sink, "run-2", tombstone(1, version=4)) == WriteCounts(stale=1)
    assert await witness.rows() == before


@pytest.mark.parametrize("version", [1, 2])
async def test_a_record_that_lives_again_comes_back(sink: Sink, witness: Witness, version: int) -> None:
    """The newer page wins, with a newer stamp or the same one."""
    await imported(sink, "run-1", tombstone(1, version=1))
    assert await imported(sink, "run-2", row(1, version=version)) == WriteCounts(updated=1)
    found = (await witness.rows())["1"]
    assert (found["deleted_at"], found["deleted_reason"]) == (None, None)
    assert await sink.rows.count() == 1


async def test_rows_are_buried_with_a_reason(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """It must be possible to find out later why a row is gone, and which run deleted it."""
    await imported(sink, "run-1", *rows(1, 2, 3))
    await sink.runs.start(replace(RUN, id="run-2"), [LOW])
    clock.advance(60)
    assert await sink.sweeps.delete("run-2", ["1", "3", "9"], "absent\0") == 2
    found = await witness.rows()
    assert sorted(found) == ["1", "2", "3"]
    for number in ("1", "3"):
        marks = [found[number][name] for name in ("deleted_at", "deleted_reason", "run", "updated_at")]
        assert marks == [clock.now_us(), "absent\ufffd", "run-2", clock.now_us()]
    assert found["2"]["deleted_at"] is None
    assert await sink.rows.count() == 1


async def test_rows_are_buried_once(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """A call that is repeated after a lost reply must not change the time of the deletion."""
    await imported(sink, "run-1", *rows(1, 2))
    assert await sink.sweeps.delete("run-1", ["1"], "absent") == 1
    before = await witness.rows()
    clock.advance(60)
    assert await sink.sweeps.delete("run-1", ["1"], "again") == 0
    assert await sink.sweeps.delete("run-1", [], "nobody") == 0
    assert await witness.rows() == before


async def test_a_buried_row_that_comes_back_is_there_again(sink: Sink, witness: Witness) -> None:
    """The record existed all the time, so even an unchanged row must be restored."""
    await imported(sink, "run-1", *rows(1, 2))
    await sink.sweeps.delete("run-1", ["1"], "absent")
    assert await imported(sink, "run-2", *rows(1, 2)) == WriteCounts(updated=1, unchanged=1)
    found = (await witness.rows())["1"]
    assert (found["deleted_at"], found["deleted_reason"], await sink.rows.count()) == (None, None, 2)


async def test_only_rows_of_the_runs_source_are_buried(sink: Sink) -> None:
    """Id 7 of one source is not id 7 of another."""
    await imported(sink, "run-1", row(7))
    await imported(sink, "run-2", row(7), source="mail")
    assert await sink.sweeps.delete("run-1", ["7"], "absent") == 1
    assert await sink.rows.count() == 1
    assert await imported(sink, "run-3", row(7), source="mail") == WriteCounts(unchanged=1)


async def test_only_rows_of_the_runs_table_are_buried(sink: Sink, elsewhere: Sink) -> None:
    """Two tables share their run tables."""
    await imported(sink, "run-1", row(7))
    await imported(elsewhere, "run-2", row(7))
    with pytest.raises(BadValue, match="run: there is no run 'run-1'"):
        await elsewhere.sweeps.delete("run-1", ["7"], "absent")
    assert await elsewhere.sweeps.delete("run-2", ["7"], "absent") == 1
    assert (await sink.rows.count(), await elsewhere.rows.count()) == (1, 0)


async def test_ids_that_no_table_can_hold_are_in_none(sink: Sink) -> None:
    """Such ids must not fail the statement for the others."""
    await imported(sink, "run-1", row(1), row("é"))
    assert await sink.sweeps.delete("run-1", ["a\0b", "a\ud83d", "x" * 3_000, "é", "1"], "absent") == 2
    await sink.sweeps.mark_present("maps", ["a\0b", "a\ud83d"])


async def test_a_row_that_became_a_tombstone_in_quarantine_is_marked(sink: Sink, witness: Witness) -> None:
    """A repaired record is treated like any other."""
    await started(sink)
    await sink.shards.write(page([row(1), replace(row(2), values={"size": "many"})], after=1))
    ((number, _, _),) = await sink.quarantine.find_all()
    assert await sink.quarantine.release(number, tombstone(2))
    assert ((await witness.rows())["2"]["deleted_reason"], await sink.rows.count()) == ("flagged", 1)
