"""Books of an earlier version are brought up to date when they are opened, and their runs go on."""

from pathlib import Path

import pytest
from tests.imports.sink_earlier import statements
from tests.imports.sink_places import PLACES, Columns, Place, PostgresPlace, SqlitePlace, empty_place, empty_postgres

from leaseway.domain.errors import StoreRefused
from leaseway.imports.domain.page import ColumnType, WriteCounts
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState
from leaseway.imports.sinks.port import PageWrite, Sweep
from leaseway.imports.sinks.run_tables import TABLES
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.sink_contract.actors import row, tombstone

TITLE: Columns = {"title": ColumnType.TEXT}
KEY = "maps/all/0"


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place = await empty_place(request, tmp_path)
    if not isinstance(place, SqlitePlace | PostgresPlace):
        pytest.skip("this sink has no earlier version")
    return await earlier(place)


async def earlier(place: Place) -> Place:
    for statement in statements(isinstance(place, PostgresPlace)):
        await place.execute(statement)
    return place


async def test_a_run_of_an_earlier_version_goes_on(place: Place) -> None:
    """Who upgrades in the middle of an import loses nothing of it."""
    sink = place.sink(table="poi", columns=TITLE)
    await sink.open()
    plain = RunRow(id="run-1", source="maps", spec_hash="hash-1", started_at=17, watermark=16)
    assert await sink.runs(mode=RunMode.FULL) == [plain]
    assert await sink.open_shards("run-1") == 1
    begun = await sink.begin("run-1", KEY, 4)
    assert begun is not None
    assert (begun.cursor, begun.rows, begun.guards, begun.profile) == ({"after": 1}, 2, {"heavy": 1}, {})
    some = [row(1, stamp=5), row(2, stamp=5), row(3), tombstone(4)]
    page = PageWrite(
        run="run-1", shard=KEY, fence=4, before={"after": 1}, after={"after": 2}, rows=some, remembers=True,
        profile={"$.id": {"integer": 4}},
    )  # fmt: skip
    assert await sink.write(page) == WriteCounts(inserted=2, updated=1, unchanged=1)
    assert await sink.spend("run-1", 5)
    await sink.set_budget("run-1", 1)
    assert not await sink.spend("run-1", 5)
    await sink.finish_run("run-1", RunState.COMPLETE, notes={"drift": {}})
    assert await sink.sweep("run-1") == Sweep(3, 0)
    await sink.close()


async def test_books_that_were_brought_up_to_date_are_as_new_ones(place: Place) -> None:
    """Else something would work in new installations only."""
    sink = place.sink(table="poi", columns=TITLE)
    for _ in range(2):
        await sink.open()
        await sink.close()
    grown = await shape(place)
    for name in (*TABLES, "poi"):
        await place.execute(f"DROP TABLE {name}")
    await sink.open()
    await sink.close()
    assert grown == await shape(place)
    assert len(grown) > 50


async def test_a_table_of_another_shape_leaves_earlier_books_as_they_were(place: Place) -> None:
    """What is refused changes nothing: the version before can go on with it."""
    before = await shape(place)
    sink = place.sink(table="poi", columns={"title": ColumnType.INTEGER})
    with pytest.raises(StoreRefused, match="column 'title' is"):
        await sink.open()
    await sink.close()
    assert await shape(place) == before


async def test_who_may_not_change_earlier_books_is_told_whom_to_ask(server: PostgresServer) -> None:
    """The import's own role may only write; the owner of the tables opens them once."""
    place = await empty_postgres(server.url)
    await earlier(place)
    await place.execute("DROP ROLE IF EXISTS importer")
    await place.execute("CREATE ROLE importer LOGIN")
    await place.execute("GRANT USAGE ON SCHEMA public TO importer")
    await place.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO importer")
    sink = PostgresPlace(place.url.replace("postgres@", "importer@")).sink(table="poi", columns=TITLE)
    with pytest.raises(StoreRefused, match="ask the owner"):
        await sink.open()
    await sink.close()
    await place.execute("DROP OWNED BY importer")
    await place.execute("DROP ROLE importer")


async def shape(place: Place) -> set[tuple[object, ...]]:
    """Every column with its type and its rules, and every index."""
    if isinstance(place, PostgresPlace):
        columns = await place.execute(
            "SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name"
            "  FROM information_schema.columns WHERE table_schema = 'public'"
        )
        indexes = await place.execute("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    else:
        columns = await place.execute(
            'SELECT tables.name, found.name, upper(found.type), found."notnull", found.dflt_value, found.pk'
            "  FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS found WHERE tables.type = 'table'"
        )
        indexes = await place.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index'")
    return {tuple(line) for line in (*columns, *indexes)}
