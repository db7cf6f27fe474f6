"""A new row against the stored one, and changes between two instants.

Newer rows replace the stored one, older rows do not, and equal rows are not written.
"""

from typing import Any

from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.imports.domain.page import WriteCounts
from leaseway.imports.domain.run_state import ShardState
from leaseway.imports.sinks.port import Changes, Sink
from leaseway.testing.clock import FakeClock
from leaseway.testing.sink_contract.fixtures import (
    RUN,
    STAMP,
    Witness,
    imported,
    page,
    row,
    rows,
    shard,
    started,
    tombstone,
    written,
)


async def test_a_new_row_is_stored_whole(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """The whole document is stored, because fields that are not projected today may be needed later."""
    values: dict[str, Any] = {
        "title": "Größe 🚗",
        "size": 10**15,
        "latitude": 40.5,
        "is open": True,
        "seen_at": STAMP,
        'the "tags"': '["a","b"]',
    }
    await imported(sink, RUN.id, row(1, **values))
    ((external_id, found),) = (await witness.rows()).items()
    assert external_id == "1"
    assert found == {
        "source": "maps",
        "external_id": "1",
        "stamp": STAMP,
        "content_hash": "hash-0",
        "document": {"id": 1, "version": 0},
        "deleted_at": None,
        "deleted_reason": None,
        "run": RUN.id,
        "first_seen": clock.now_us(),
        "updated_at": clock.now_us(),
        **values,
        'the "tags"': ["a", "b"],
    }


async def test_a_newer_row_replaces_the_older_one(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """The time when the row was first seen must be kept."""
    await imported(sink, "run-1", row(1, title="old", size=1))
    first_seen = clock.now_us()
    clock.advance(60)
    assert await imported(sink, "run-2", row(1, version=1, title="new")) == WriteCounts(updated=1)
    (found,) = (await witness.rows()).values()
    assert (found["title"], found["size"], found["content_hash"], found["run"]) == ("new", None, "hash-1", "run-2")
    assert (found["stamp"], found["first_seen"], found["updated_at"]) == (
        STAMP + SECOND_US,
        first_seen,
        clock.now_us(),
    )


async def test_an_older_row_never_replaces_a_newer_one(sink: Sink, witness: Witness) -> None:
    """A lagging replica returns old rows, and so does a late page of a full run."""
    await imported(sink, "run-1", row(1, version=5))
    before = await witness.rows()
    assert await imported(sink, "run-2", row(1, version=4)) == WriteCounts(stale=1)
    assert await witness.rows() == before


async def test_an_equal_row_is_not_written_again(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """A second import of unchanged data costs no writes, and `updated_at` tells when the row really changed."""
    await imported(sink, "run-1", *rows(1, 2, 3))
    before = await witness.rows()
    clock.advance(60)
    assert await imported(sink, "run-2", *rows(1, 2, 3)) == WriteCounts(unchanged=3)
    assert await witness.rows() == before


async def test_two_versions_with_one_stamp_are_told_apart_by_their_content(sink: Sink, witness: Witness) -> None:
    """Some sources have stamps in minutes: the later page of the same minute wins."""
    await imported(sink, "run-1", row(1, version=1, stamp=STAMP))
    assert await imported(sink, "run-2", row(1, version=2, stamp=STAMP)) == WriteCounts(updated=1)
    assert (await witness.rows())["1"]["content_hash"] == "hash-2"


async def test_a_deleted_row_that_comes_back_is_there_again(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """The deletion was wrong, so even an unchanged row must be restored."""
    await imported(sink, "run-1", *rows(1, 2))
    await witness.delete("1", clock.now_us())
    assert await sink.rows.count() == 1
    assert await imported(sink, "run-2", *rows(1, 2)) == WriteCounts(updated=1, unchanged=1)
    assert await sink.rows.count() == 2
    assert (await witness.rows())["1"]["deleted_at"] is None


async def test_a_deleted_row_does_not_come_back_as_it_once_was(sink: Sink, clock: FakeClock, witness: Witness) -> None:
    """The old page was read before the deletion."""
    await imported(sink, "run-1", row(1, version=5))
    await witness.delete("1", clock.now_us())
    assert await imported(sink, "run-2", row(1, version=4)) == WriteCounts(stale=1)
    assert await sink.rows.count() == 0


async def test_every_row_of_a_page_is_counted_once(sink: Sink) -> None:
    """Inserted, updated, unchanged and stale must add up to the rows of the page."""
    await imported(sink, "run-0", row(1, 5), row(2, 5), row(3, 5))
    await started(sink)
    mixed = [row(1, 5), row(2, 6), row(3, 4), row(4), row(5)]
    assert await sink.shards.write(page(mixed, state=ShardState.DONE)) == WriteCounts(2, 1, 1, 1, 0)
    found = await shard(sink)
    assert (found.rows, found.inserted, found.updated, found.unchanged, found.stale) == (5, 2, 1, 1, 1)


async def test_sources_do_not_share_ids(sink: Sink, witness: Witness) -> None:
    """Id 7 of one source is not id 7 of another."""
    await imported(sink, "run-1", row(7))
    assert await imported(sink, "run-2", row(7, version=1), source="mail") == WriteCounts(inserted=1)
    assert await sink.rows.count() == 2


async def test_a_big_page_is_a_page_like_any_other(sink: Sink, witness: Witness) -> None:
    """Some sources return everything in one page."""
    await started(sink)
    many = [row(number, title="x" * 200) for number in range(6_000)]
    assert await written(sink, page(many, after=1)) == WriteCounts(inserted=6_000)
    assert await written(sink, page(many, 1, 2)) == WriteCounts(unchanged=6_000)
    assert await sink.rows.count() == 6_000


async def test_a_big_document_is_kept_whole(sink: Sink, witness: Witness) -> None:
    """Records of three megabytes are rare but occur."""
    text = "né" * 1_000_000
    await imported(sink, RUN.id, replace(row(1), document=f'{{"text":"{text}"}}'))
    assert (await witness.rows())["1"]["document"] == {"text": text}


NOTHING = Changes(0, 0, 0, {"added": (), "changed": (), "removed": ()})


async def changes_in(sink: Sink, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
    """With samples as tuples, whatever type the sink returns."""
    found = await sink.rows.changes(source, after, until, samples)
    kinds = ("added", "changed", "removed")
    return Changes(
        found.added, found.changed, found.removed, {kind: tuple(found.samples.get(kind, ())) for kind in kinds}
    )


async def test_each_row_is_told_by_what_became_of_it(sink: Sink, clock: FakeClock) -> None:
    """`import diff` is based on this."""
    await imported(sink, "run-1", *rows(1, 2, 3, 4, 5))
    first = clock.now_us()
    clock.advance(60)
    await imported(sink, "run-2", row(1), row(2, version=1), tombstone(3, version=1), row(10), row(9))
    await sink.sweeps.delete("run-2", ["4"], "absent")
    second = clock.now_us()
    assert await changes_in(sink, "maps", first, second) == Changes(
        2, 1, 2, {"added": ("10", "9"), "changed": ("2",), "removed": ("3", "4")}
    )
    assert await changes_in(sink, "maps", first - 1, first) == Changes(
        5, 0, 0, {"added": ("1", "2", "3", "4", "5"), "changed": (), "removed": ()}
    )


async def test_the_first_instant_is_not_in_and_the_last_one_is(sink: Sink, clock: FakeClock) -> None:
    """Adjacent windows must not count a change twice."""
    await imported(sink, "run-1", *rows(1, 2))
    at = clock.now_us()
    assert (await changes_in(sink, "maps", at - 1, at)).added == 2
    assert await changes_in(sink, "maps", at, at + 1) == NOTHING
    clock.advance(60)
    later = clock.now_us()
    await imported(sink, "run-2", row(1, version=1), tombstone(2, version=1))
    assert await changes_in(sink, "maps", at, later - 1) == NOTHING
    assert await changes_in(sink, "maps", later, later + 1) == NOTHING
    found = await changes_in(sink, "maps", later - 1, later)
    assert (found.added, found.changed, found.removed) == (0, 1, 1)


async def test_what_was_written_again_unchanged_is_no_change(sink: Sink, clock: FakeClock) -> None:
    """A full run over unchanged data must show no difference."""
    await imported(sink, "run-1", *rows(1, 2), row(3, version=2))
    before = clock.now_us()
    clock.advance(60)
    await imported(sink, "run-2", *rows(1, 2), row(3, version=1))
    assert await changes_in(sink, "maps", before, clock.now_us()) == NOTHING


async def test_a_row_that_came_back_has_changed(sink: Sink, clock: FakeClock) -> None:
    """The table contains the row without a deletion mark, so it counts as changed."""
    await imported(sink, "run-1", *rows(1, 2))
    before = clock.now_us()
    clock.advance(60)
    await sink.sweeps.delete("run-1", ["1", "2"], "absent")
    clock.advance(60)
    await imported(sink, "run-2", row(1))
    assert await changes_in(sink, "maps", before, clock.now_us()) == Changes(
        0, 1, 1, {"added": (), "changed": ("1",), "removed": ("2",)}
    )


async def test_some_samples_are_enough(sink: Sink, clock: FakeClock) -> None:
    """A first import adds everything, and a quarter of a million ids would be useless."""
    await imported(sink, "run-1", *[row(name) for name in ("b", "B", "10", "é", "9")])
    at = clock.now_us()
    found = await changes_in(sink, "maps", at - 1, at, samples=3)
    assert (found.added, found.samples["added"]) == (5, ("10", "9", "B"))
    assert (await changes_in(sink, "maps", at - 1, at, samples=0)).samples["added"] == ()


async def test_other_sources_and_tables_are_compared_apart(sink: Sink, elsewhere: Sink, clock: FakeClock) -> None:
    """A comparison covers one source in one table."""
    await imported(sink, "run-1", *rows(1, 2))
    await imported(sink, "run-2", *rows(1), source="mail")
    await imported(elsewhere, "run-3", *rows(1, 2, 3))
    at = clock.now_us()
    asked = [(sink, "maps"), (sink, "mail"), (elsewhere, "maps"), (elsewhere, "mail")]
    assert [(await changes_in(where, source, at - 1, at)).added for where, source in asked] == [2, 1, 3, 0]


async def test_a_run_may_replace_newer_rows(sink: Sink, witness: Witness) -> None:
    """After the source was restored from a backup its stamps are older, and without this they never come over."""
    await imported(sink, "run-1", row(1, version=5), row(2, version=5), row(3))
    await started(sink, run=replace(RUN, id="run-2"))
    older = replace(page([row(1, version=4), row(2, version=5)], after=1), run="run-2", overwrites=True)
    assert await written(sink, older) == WriteCounts(updated=1, unchanged=1)
    found = await witness.rows()
    assert (found["1"]["document"]["version"], found["1"]["stamp"]) == (4, row(1, version=4).stamp)
