"""Which tables a sink accepts: its own, and others that have room for its rows."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.imports.sql_sink_fixtures import PLACES, Columns, Place, PostgresPlace, empty_place, empty_postgres
from tests.open_connections import open_connections

from leaseway.domain.errors import BadValue, KeyConflict, StoreRefused
from leaseway.imports.domain.page import ColumnType, WriteCounts
from leaseway.imports.sinks.port import Sink, Sweep
from leaseway.imports.sinks.postgres.sink import PostgresSink
from leaseway.imports.sinks.run_tables import TABLES
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.sink_contract.fixtures import LOW, RUN, bad, imported, page, row, rows, started, written

TITLE: Columns = {"title": ColumnType.TEXT}


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return await empty_place(request, tmp_path)


@asynccontextmanager
async def opened(place: Place, table: str = "poi", columns: Columns = TITLE) -> AsyncIterator[Sink]:
    sink = place.sink(table=table, columns=columns)
    try:
        await sink.open()
        yield sink
    finally:
        await sink.close()


def table(place: Place, changes: dict[str, str | None] | None = None, key: str = "source, external_id") -> str:
    """A user's table: the required columns with the given changes. None omits a column."""
    is_postgres = isinstance(place, PostgresPlace)
    integer, document = ("bigint", "jsonb") if is_postgres else ("INTEGER", "TEXT")
    columns: dict[str, str | None] = {
        "source": "text NOT NULL",
        "external_id": "text NOT NULL",
        "stamp": integer,
        "content_hash": "text",
        "document": document,
        "deleted_at": integer,
        "deleted_reason": "text",
        "run": "text",
        "first_seen": integer,
        "updated_at": integer,
        "title": "text",
        **(changes or {}),
    }
    lines = [f"{name} {kind}" for name, kind in columns.items() if kind is not None]
    return f"CREATE TABLE poi ({', '.join(lines)}{f', UNIQUE ({key})' if key else ''})"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("leaseway-")]


async def test_a_sink_that_was_refused_leaves_nothing_open(place: Place) -> None:
    """A service retries at every poll, and each time one more connection would stay open."""
    await place.execute(table(place, {"document": None}))
    before = threads()
    with pytest.raises(StoreRefused):
        await place.sink(table="poi", columns=TITLE).open()
    await asyncio.sleep(0)  # one turn of the event loop, in which the transport closes
    assert threads() == before
    assert open_connections(asyncio.get_running_loop()) == []


async def test_a_table_with_more_columns_is_taken(place: Place) -> None:
    """Users add their own columns, and triggers that fill them."""
    await place.execute(table(place, {"note": "text", "rank": "integer NOT NULL DEFAULT 7"}))
    async with opened(place) as sink:
        await started(sink)
        assert await sink.shards.write(page([row(1, title="x")], after=1)) == WriteCounts(inserted=1)
        assert await sink.shards.write(page([row(1, 1, title="y")], 1, 2)) == WriteCounts(updated=1)
    ((title, rank),) = await place.execute("SELECT title, rank FROM poi")
    assert (title, rank) == ("y", 7)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"title": None}, r"has no column 'title'; add it \(ALTER TABLE .*\"poi\" ADD COLUMN \"title\" (TEXT|text)\)"),
        ({"content_hash": None}, r"has no column 'content_hash'"),
        ({"stamp": "text"}, r"column 'stamp' is (TEXT|text), and (INTEGER|bigint) is required"),
        ({"title": "integer"}, r"column 'title' is (INTEGER|integer), and (TEXT|text) is required; .*another table"),
        ({"rank": "integer NOT NULL"}, r"column 'rank' requires a value.*default"),
    ],
)
async def test_a_table_of_another_shape_is_refused(place: Place, changes: dict[str, str | None], problem: str) -> None:
    """The error must come before the first request, with the column and the correction."""
    await place.execute(table(place, changes))
    with pytest.raises(StoreRefused, match=problem):
        async with opened(place):
            pass


@pytest.mark.parametrize("key", ["", "external_id", "source, external_id, run"])
async def test_a_table_without_the_key_is_refused(place: Place, key: str) -> None:
    """Rows would be duplicated, or the rows of two sources would be merged."""
    await place.execute(table(place, key=key))
    with pytest.raises(StoreRefused, match=r"source and external_id are not unique together.*CREATE UNIQUE INDEX"):
        async with opened(place):
            pass


async def test_a_view_is_refused(place: Place) -> None:
    """Rows cannot be written to a view."""
    await place.execute("CREATE VIEW poi AS SELECT 1 AS title")
    with pytest.raises(StoreRefused, match=r"is a view, not a table|is not a table"):
        async with opened(place):
            pass


async def test_a_refused_table_leaves_nothing_behind(place: Place) -> None:
    """A mistyped name must not create run tables beside another program's table."""
    await place.execute(table(place, {"title": None}))
    with pytest.raises(StoreRefused):
        async with opened(place):
            pass
    names = "pg_tables WHERE schemaname = 'public'" if isinstance(place, PostgresPlace) else "sqlite_schema WHERE 1=1"
    column = "tablename" if isinstance(place, PostgresPlace) else "name"
    assert await place.execute(f"SELECT {column} FROM {names} AND {column} LIKE 'leaseway%'") == []


@pytest.mark.parametrize("name", ['a"b; DROP TABLE x', "SELECT", "größe", "x" * 63, "a b", "o'n"])
async def test_any_name_can_be_used(place: Place, name: str) -> None:
    """Special characters in a name must be quoted, and never be executed as SQL."""

    def values(value: str) -> dict[str, Any]:
        return {name: value}

    async with opened(place, table=name, columns={name: ColumnType.TEXT}) as sink:
        await started(sink)
        await written(sink, page([row(1, **values("x"))], after=1))
        await written(sink, page([row(1, 1, **values("y"))], 1, 2))
        assert await sink.rows.count() == 1
    quoted = name.replace('"', '""')
    ((value,),) = await place.execute(f'SELECT "{quoted}" FROM "{quoted}"')
    assert value == "y"
    async with opened(place, table=name, columns={name: ColumnType.TEXT}) as sink:
        assert await sink.rows.count() == 1


@pytest.mark.parametrize(
    ("name", "columns", "problem"),
    [
        ("", {}, "table: must be 1 to 63 bytes"),
        ("x" * 64, {}, "table: must be 1 to 63 bytes"),
        ("a\0b", {}, "table: must be 1 to 63 bytes"),
        ("leaseway_runs", {}, "table: 'leaseway_runs': names that begin with leaseway_"),
        ("poi", {"Source": "text"}, "columns.Source: the table already has a column with this name"),
        ("poi", {"deleted_reason": "text"}, "columns.deleted_reason: the table already has a column with this name"),
        ("poi", {"a": "text", "A": "text"}, "columns.A: the table already has a column with this name"),
        ("poi", {"a": "number"}, "columns.a: must be one of text, integer, real, boolean, timestamp, json"),
        ("poi", {"": "text"}, r"columns\.: must be 1 to 63 bytes"),
    ],
)
async def test_impossible_names_are_refused(place: Place, name: str, columns: Columns, problem: str) -> None:
    """A user must learn which field of the spec to change."""
    with pytest.raises(BadValue, match=problem):
        place.sink(table=name, columns=columns)


async def test_two_tables_of_one_database_do_not_mix(place: Place) -> None:
    """Each table has its own runs and its own quarantine: a replayed row must not be written to the other table."""
    async with opened(place) as poi, opened(place, table="operators") as operators:
        await started(poi)
        await written(poi, page(rows(1), after=1, bad=[bad(0)]))
        ((number, _, _),) = await poi.quarantine.find_all()
        assert (
            await operators.runs.find_all(),
            await operators.quarantine.find_all(),
            await operators.rows.count(),
        ) == ([], [], 0)
        assert not await operators.quarantine.release(number, row(9))
        assert await operators.shards.begin(RUN.id, LOW.key, 5) is None
        assert await operators.shards.write(page(rows(2), 1, 2, fence=5)) is None
        with pytest.raises(KeyConflict, match="run-1: belongs to table poi, not operators"):
            await operators.runs.start(RUN, [LOW])


async def test_a_sweep_keeps_no_ids_of_what_was_seen(place: Place) -> None:
    """A quarter of a million ids with every run would soon take more space than the rows."""
    async with opened(place) as sink:
        await started(sink)
        await written(sink, page(rows(1, 2, 3), after=1, remembers=True))
        assert [count for (count,) in await place.execute("SELECT count(*) FROM leaseway_seen")] == [3]
        await sink.sweeps.sweep(RUN.id)
        assert [count for (count,) in await place.execute("SELECT count(*) FROM leaseway_seen")] == [0]


async def test_a_table_in_another_schema(server: PostgresServer) -> None:
    """The schema may be part of the table's name or of the URL, and the run tables must be in the same schema."""
    place = await empty_postgres(server.url)
    await place.execute("DROP SCHEMA IF EXISTS geo CASCADE")
    with pytest.raises(StoreRefused, match="schema geo does not exist; create it"):
        async with opened(place, table="geo.poi"):
            pass
    await place.execute("CREATE SCHEMA geo")
    async with opened(place, table="geo.poi") as sink:
        await started(sink)
        await written(sink, page(rows(1), after=1))
    async with opened(PostgresPlace(f"{place.url}?schema=geo")) as sink:
        assert [run.id for run in await sink.runs.find_all()] == [RUN.id]
        assert await sink.rows.count() == 1
    tables = await place.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'geo' ORDER BY 1")
    assert [name for (name,) in tables] == [*sorted(TABLES), "poi"]


async def test_a_table_whose_ids_have_a_language_of_their_own(server: PostgresServer) -> None:
    """Ids are compared byte by byte; columns with different collations could not be compared at all."""
    place = await empty_postgres(server.url)
    await place.execute(table(place, {"external_id": 'text COLLATE "POSIX" NOT NULL'}))
    async with opened(place) as sink:
        await imported(sink, "run-1", *rows(1, 2))
        await started(sink, LOW, run=replace(RUN, id="run-2", started_at=2**60))
        await written(sink, replace(page(rows(1), after=1, remembers=True), run="run-2"))
        assert await sink.sweeps.sweep("run-2") == Sweep(2, 1)
        assert await sink.sweeps.find_absent("maps", 1, 10) == ["2"]
    # The packaged server has no other collation, so the order alone would not show a difference.
    found = await place.execute(
        "SELECT collation_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name = 'leaseway_absent' AND column_name = 'external_id'"
    )
    assert [name for (name,) in found] == ["C"]


async def test_a_pooler_that_lends_connections_for_a_transaction(server: PostgresServer) -> None:
    """The next client of the connection must find neither temporary tables nor settings."""
    place = PostgresPlace(f"{(await empty_postgres(server.url)).url}?pooler=transaction")
    async with opened(place) as sink:
        await started(sink)
        assert await sink.shards.write(page(rows(1, 2), after=2)) == WriteCounts(inserted=2)
        assert await sink.shards.write(page(rows(2, 3), 2, 3)) == WriteCounts(inserted=1, unchanged=1)
        assert isinstance(sink, PostgresSink)
        async with sink.connections.borrow() as connection:
            assert await connection.fetchval("SELECT to_regclass('pg_temp.leaseway_page')") is None
            assert await connection.fetchval("SHOW enable_seqscan") == "on"


async def test_a_place_for_reasons_of_another_type_is_refused(place: Place) -> None:
    """The column belongs to the user and holds something else."""
    await place.execute(table(place, {"deleted_reason": "integer"}))
    with pytest.raises(
        StoreRefused, match=r"column 'deleted_reason' is (INTEGER|integer), and (TEXT|text) is required"
    ):
        async with opened(place):
            pass


async def test_who_may_only_write_can_import(server: PostgresServer) -> None:
    """The database owner creates the tables once; the role of the import must need no rights beyond rows."""
    place = await empty_postgres(server.url)
    async with opened(place):
        pass
    await place.execute("DROP ROLE IF EXISTS importer")
    await place.execute("CREATE ROLE importer LOGIN")
    await place.execute("GRANT USAGE ON SCHEMA public TO importer")
    await place.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO importer")
    async with opened(PostgresPlace(place.url.replace("postgres@", "importer@"))) as sink:
        await started(sink)
        assert await sink.shards.write(page(rows(1), after=1, bad=[bad(0)])) == WriteCounts(inserted=1, quarantined=1)
    await place.execute("DROP OWNED BY importer")
    await place.execute("DROP ROLE importer")
