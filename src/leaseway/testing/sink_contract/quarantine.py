"""Bad rows are stored, and can be discarded or released as repaired rows."""

import pytest
from msgspec.structs import replace

from leaseway.domain.errors import BadValue
from leaseway.imports.domain.page import BadRow
from leaseway.imports.sinks.port import Sink
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
    shard,
    started,
    written,
)


async def test_bad_rows_are_kept_as_they_came(sink: Sink) -> None:
    """Repairing a spec requires the record and its position."""
    await started(sink)
    odd = BadRow(position=3, external_id="17", code="bad_type", problem="size: must be 1", document='{"size":"\\u0000"')
    await written(sink, page(rows(1), after=1, bad=[odd, bad(9)]))
    await written(sink, replace(page(bad=[bad(1)], after=1), shard=HIGH.key))
    found = await sink.quarantine.find_all()
    assert [(key, one) for _, key, one in found] == [(LOW.key, odd), (LOW.key, bad(9)), (HIGH.key, bad(1))]
    numbers = [number for number, _, _ in found]
    assert numbers == sorted(set(numbers))


async def test_bad_rows_can_be_asked_for_by_run(sink: Sink) -> None:
    """Bad rows of earlier runs are handled separately."""
    for number in (1, 2):
        run = replace(RUN, id=f"run-{number}")
        await started(sink, LOW, run=run)
        await written(sink, replace(page(after=1, bad=[bad(number), bad(7)]), run=run.id))
    assert [one.position for _, _, one in await sink.quarantine.find_all("run-2")] == [2, 7]
    assert [one.position for _, _, one in await sink.quarantine.find_all(limit=3)] == [1, 7, 2]


async def test_a_bad_row_can_be_dropped(sink: Sink, witness: Witness) -> None:
    """An operator decided that the record is not needed."""
    await started(sink)
    await written(sink, page(rows(1), after=1, bad=[bad(0), bad(1)]))
    first, second = await sink.quarantine.find_all()
    assert await sink.quarantine.release(first[0], None)
    assert await sink.quarantine.find_all() == [second]
    assert sorted(await witness.rows()) == ["1"]


async def test_a_bad_row_that_became_good_is_written(sink: Sink, witness: Witness) -> None:
    """The row belongs to the source and run that fetched it; the counters of its page do not change."""
    await started(sink)
    await written(sink, page(rows(1), after=1, bad=[bad(0)]))
    before = await shard(sink)
    ((number, _, _),) = await sink.quarantine.find_all()
    assert await sink.quarantine.release(number, row(2, title="repaired"))
    assert await sink.quarantine.find_all() == []
    found = (await witness.rows())["2"]
    assert (found["source"], found["run"], found["title"]) == ("maps", RUN.id, "repaired")
    assert await shard(sink) == before


async def test_a_bad_row_is_released_once(sink: Sink, witness: Witness) -> None:
    """Two operators may release the same row at once."""
    await started(sink)
    await written(sink, page(after=1, bad=[bad(0)]))
    ((number, _, _),) = await sink.quarantine.find_all()
    assert await sink.quarantine.release(number, row(2))
    before = await observed_state(sink, witness)
    assert not await sink.quarantine.release(number, row(3))
    assert not await sink.quarantine.release(number + 1_000, None)
    assert await observed_state(sink, witness) == before


async def test_an_old_bad_row_replaces_nothing_newer(sink: Sink, witness: Witness) -> None:
    """The source has corrected the record since, and another run has imported it."""
    await started(sink)
    await written(sink, page(after=1, bad=[bad(0)]))
    await imported(sink, "run-2", row(2, version=5))
    before = await witness.rows()
    ((number, _, _),) = await sink.quarantine.find_all()
    assert await sink.quarantine.release(number, row(2, version=4))
    assert (await witness.rows(), await sink.quarantine.find_all()) == (before, [])


async def test_a_row_that_is_still_bad_stays_in_quarantine(sink: Sink, witness: Witness) -> None:
    """The caller must learn why."""
    await started(sink)
    await written(sink, page(after=1, bad=[bad(0)]))
    ((number, _, _),) = before = await sink.quarantine.find_all()
    with pytest.raises(BadValue, match="row: size: must be an integer"):
        await sink.quarantine.release(number, row(2, size="many"))
    assert await sink.quarantine.find_all() == before
    assert await witness.rows() == {}
