"""The run tables have a version: a newer build upgrades them in place, and an older build refuses them.

Version 1 is the first. `test_the_next_version_upgrades_tables_with_runs_in_them` shows how version 2 will be proved:
with an `upgrade_2.sql`, against tables that version 1 made and that hold an unfinished run.
"""

from pathlib import Path

import pytest
from tests.imports.sql_sink_fixtures import PLACES, Place, empty_place

from leaseway.domain.errors import StoreRefused
from leaseway.imports.domain.page import WriteCounts
from leaseway.imports.sinks import run_tables
from leaseway.testing.sink_contract.fixtures import page, rows, shard, started, written

UPGRADE = "ALTER TABLE leaseway_runs ADD COLUMN note text;"


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return await empty_place(request, tmp_path)


async def test_new_run_tables_have_the_first_version(place: Place) -> None:
    """Without a stored version, the next build could not tell what to upgrade."""
    for _ in range(2):
        sink = place.sink(table="poi", columns={})
        await sink.open()
        await sink.close()
    assert [tuple(line) for line in await place.execute("SELECT version FROM leaseway_import_version")] == [(1,)]


async def test_run_tables_of_a_newer_build_are_refused(place: Place) -> None:
    """An old worker that writes to tables it does not know could destroy a run."""
    sink = place.sink(table="poi", columns={})
    await sink.open()
    await sink.close()
    await place.execute("UPDATE leaseway_import_version SET version = 2")
    with pytest.raises(StoreRefused, match="have version 2, and this build of leaseway knows versions up to 1"):
        await place.sink(table="poi", columns={}).open()


async def test_the_next_version_upgrades_tables_with_runs_in_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that an older build started continues after the upgrade, at its cursor and with its counters."""
    before = place.sink(table="poi", columns={})
    await before.open()
    await started(before)
    await written(before, page(rows(1, 2), after=2))
    await before.close()
    known = run_tables.statements
    monkeypatch.setattr(run_tables, "statements", lambda dialect: {**known(dialect), "upgrade_2": UPGRADE})
    for _ in range(2):  # the second time, nothing is left to do
        after = place.sink(table="poi", columns={})
        await after.open()
        await after.close()
    await after.open()
    assert [tuple(line) for line in await place.execute("SELECT version FROM leaseway_import_version")] == [(2,)]
    assert [tuple(line) for line in await place.execute("SELECT note FROM leaseway_runs")] == [(None,)]
    assert (await shard(after)).cursor == {"after": 2}
    assert await after.shards.write(page(rows(3), 2, 3)) == WriteCounts(inserted=1)
    assert (await shard(after)).rows == 3
    await after.close()
