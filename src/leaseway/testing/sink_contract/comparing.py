"""Changes between two instants: added, changed, removed."""

from leaseway.domain.ids import Instant
from leaseway.imports.sinks.port import Changes, Sink
from leaseway.testing.clock import FakeClock
from leaseway.testing.sink_contract.actors import imported, row, rows, tombstone

NOTHING = Changes(0, 0, 0, {"added": (), "changed": (), "removed": ()})


async def seen(sink: Sink, source: str, after: Instant, until: Instant, samples: int = 10) -> Changes:
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
    assert await seen(sink, "maps", first, second) == Changes(
        2, 1, 2, {"added": ("10", "9"), "changed": ("2",), "removed": ("3", "4")}
    )
    assert await seen(sink, "maps", first - 1, first) == Changes(
        5, 0, 0, {"added": ("1", "2", "3", "4", "5"), "changed": (), "removed": ()}
    )


async def test_the_first_instant_is_not_in_and_the_last_one_is(sink: Sink, clock: FakeClock) -> None:
    """Adjacent windows must not count a change twice."""
    await imported(sink, "run-1", *rows(1, 2))
    at = clock.now_us()
    assert (await seen(sink, "maps", at - 1, at)).added == 2
    assert await seen(sink, "maps", at, at + 1) == NOTHING
    clock.advance(60)
    later = clock.now_us()
    await imported(sink, "run-2", row(1, version=1), tombstone(2, version=1))
    assert await seen(sink, "maps", at, later - 1) == NOTHING
    assert await seen(sink, "maps", later, later + 1) == NOTHING
    found = await seen(sink, "maps", later - 1, later)
    assert (found.added, found.changed, found.removed) == (0, 1, 1)


async def test_what_was_written_again_unchanged_is_no_change(sink: Sink, clock: FakeClock) -> None:
    """A full run over unchanged data must show no difference."""
    await imported(sink, "run-1", *rows(1, 2), row(3, version=2))
    before = clock.now_us()
    clock.advance(60)
    await imported(sink, "run-2", *rows(1, 2), row(3, version=1))
    assert await seen(sink, "maps", before, clock.now_us()) == NOTHING


async def test_a_row_that_came_back_has_changed(sink: Sink, clock: FakeClock) -> None:
    """The table contains the row without a deletion mark, so it counts as changed."""
    await imported(sink, "run-1", *rows(1, 2))
    before = clock.now_us()
    clock.advance(60)
    await sink.sweeps.delete("run-1", ["1", "2"], "absent")
    clock.advance(60)
    await imported(sink, "run-2", row(1))
    assert await seen(sink, "maps", before, clock.now_us()) == Changes(
        0, 1, 1, {"added": (), "changed": ("1",), "removed": ("2",)}
    )


async def test_some_samples_are_enough(sink: Sink, clock: FakeClock) -> None:
    """A first import adds everything, and a quarter of a million ids would be useless."""
    await imported(sink, "run-1", *[row(name) for name in ("b", "B", "10", "é", "9")])
    at = clock.now_us()
    found = await seen(sink, "maps", at - 1, at, samples=3)
    assert (found.added, found.samples["added"]) == (5, ("10", "9", "B"))
    assert (await seen(sink, "maps", at - 1, at, samples=0)).samples["added"] == ()


async def test_other_sources_and_tables_are_compared_apart(sink: Sink, elsewhere: Sink, clock: FakeClock) -> None:
    """A comparison covers one source in one table."""
    await imported(sink, "run-1", *rows(1, 2))
    await imported(sink, "run-2", *rows(1), source="mail")
    await imported(elsewhere, "run-3", *rows(1, 2, 3))
    at = clock.now_us()
    asked = [(sink, "maps"), (sink, "mail"), (elsewhere, "maps"), (elsewhere, "mail")]
    assert [(await seen(where, source, at - 1, at)).added for where, source in asked] == [2, 1, 3, 0]
