"""Bad rows are listed, replayed with a corrected spec, or discarded; never lost."""

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.imports.cli_fixtures import STAMPED, Desk, at_desk, things
from tests.sqlite_files import open_sqlite

from leaseway.imports.domain.page import BadRow
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunRow, RunState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.sinks.port import PageWrite
from leaseway.system import wall_clock_us
from leaseway.testing.postgres import PostgresServer

LENIENT = "on_bad_row = { max_ratio = 1.0 }"
OLD, NEW = 'size = { path = "size", type = "integer" }', 'size = { path = "measure", type = "integer" }'


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return at_desk(tmp_path, monkeypatch, capsys)


def bad(count: int, first: int = 101, **fields: Any) -> list[dict[str, Any]]:
    """Records with an invalid `size` and a valid `measure`."""
    return [{"id": number, "size": "large", "measure": 7, **fields} for number in range(first, first + count)]


def rows(desk: Desk) -> dict[str, Any]:
    with open_sqlite(desk.folder / "data.db") as file:
        return dict(file.execute("SELECT external_id, size FROM things"))


def test_bad_rows_are_listed_with_what_is_wrong_with_them(desk: Desk) -> None:
    """A bad row can only be corrected if its id and its problem are known."""
    desk.imported("one", [*things(30), *bad(2), "no JSON at all"])
    text = desk.ok("quarantine", "list", "things.toml").out
    assert "size: must be an integer (is 'large')" in text
    assert desk.ok("quarantine", "things.toml").out == text, "the short form lists as well"
    told = desk.ok("quarantine", "list", "things.toml", "--json").json
    assert [(each["run"], each["external_id"], each["code"]) for each in told] == [
        ("one", "101", "bad_type"),
        ("one", "102", "bad_type"),
        ("one", None, "bad_type"),
    ]
    assert desk.ok("quarantine", "list", "things.toml", "--run", "one", "--json").json == told


def test_a_run_that_left_records_out_says_where_they_are(desk: Desk) -> None:
    """The run is complete, so without this line nothing shows that records were left out."""
    desk.imported("one", [*things(30), *bad(2)])
    told = desk.ok("status", "things.toml").out
    assert "2 records in quarantine; list them with: leaseway import quarantine things.toml" in told
    desk.imported("two", things(30))
    assert "quarantine;" not in desk.ok("status", "things.toml").out


def test_an_empty_quarantine_is_said_to_be_empty(desk: Desk) -> None:
    """Empty output alone could also mean that the command looked in the wrong place."""
    desk.imported("one", things(3))
    for words in (("list",), ("replay",)):
        told = desk.ok("quarantine", *words, "things.toml")
        assert "the quarantine is empty" in told.err
        assert told.out == ""


def test_a_mended_spec_makes_rows_of_what_was_bad(desk: Desk) -> None:
    """Without a replay, one wrong column type would cost a second import of everything."""
    desk.imported("one", [*things(30), *bad(3)])
    assert set(rows(desk)) == {str(number) for number in range(1, 31)}
    unmended = desk.ok("quarantine", "replay", "things.toml")
    assert "0 rows written, 3 records kept in quarantine" in unmended.out
    assert "bad_type 3: the first, number 1: size: must be an integer" in unmended.out
    desk.write_spec(old=OLD, new=NEW)
    mended = desk.ok("quarantine", "replay", "things.toml", "--json").json
    assert (mended["written"], mended["quarantined"], mended["missing"]) == (3, 0, [])
    assert {number: rows(desk)[number] for number in ("101", "102", "103")} == {"101": 7, "102": 7, "103": 7}
    assert desk.ok("quarantine", "list", "things.toml", "--json").json == []


def test_a_server_is_looked_at_and_mended_as_a_file_is(desk: Desk, server: PostgresServer) -> None:
    """These commands are written once for all sinks, so a difference between SQLite and PostgreSQL is a defect."""
    schema = f"desk_{desk.folder.name.replace('-', '_')}"
    asyncio.run(server_does(server, f"CREATE SCHEMA {schema}"))
    url = f"{server.url}?schema={schema}"
    try:
        desk.write_spec(old="sqlite:///data.db", new=url)
        assert "no runs yet" in desk.run("status", "things.toml").err
        desk.imported("one", [*things(30), *bad(3)])
        desk.imported("two", [*things(31), *bad(3)])
        told = desk.ok("diff", "things.toml", "--json").json
        assert (told["rows"]["added"], told["rows"]["samples"]["added"]) == (1, ["31"])
        assert desk.ok("report", "things.toml", "--run", "one", "--json").json["inserted"] == 30
        desk.spec.write_text(desk.spec.read_text("utf-8").replace(OLD, NEW), "utf-8")
        mended = desk.ok("quarantine", "replay", "things.toml", "--run", "two", "--json").json
        assert (mended["written"], mended["quarantined"]) == (3, 0)
        assert len(desk.ok("quarantine", "list", "things.toml", "--json").json) == 3
    finally:
        asyncio.run(server_does(server, f"DROP SCHEMA {schema} CASCADE"))


async def server_does(server: PostgresServer, statement: str) -> None:
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def test_a_replay_passes_over_those_that_stay_and_reaches_all_others(desk: Desk) -> None:
    """The sink lists the oldest first: 250 hopeless records must neither hide the good ones nor be tried for ever."""
    desk.write_spec(LENIENT)
    hopeless = ["no JSON at all"] * 250
    assert desk.imported("one", [*things(1), *hopeless, *bad(2)]) is RunState.COMPLETE
    assert len(desk.ok("quarantine", "list", "things.toml", "--json").json) == 252
    desk.write_spec(LENIENT, old=OLD, new=NEW)
    told = desk.ok("quarantine", "replay", "things.toml", "--json").json
    assert (told["written"], told["quarantined"]) == (2, 250)
    assert len({each["number"] for each in told["by_code"]["bad_type"]}) == 250
    assert len(desk.ok("quarantine", "list", "things.toml", "--json").json) == 250


def test_a_list_for_people_is_short_and_says_that_there_is_more(desk: Desk) -> None:
    """A cut list that looks complete would hide bad rows."""
    desk.write_spec(LENIENT)
    desk.imported("one", [*things(1), *bad(120)])
    told = desk.ok("quarantine", "list", "things.toml")
    assert len(told.out.splitlines()) == 101
    assert "and more" in told.err


def test_an_old_document_without_a_stamp_does_not_replace_a_newer_row(desk: Desk) -> None:
    """The second run has written the current record, and without a stamp nothing shows that the quarantined one is
    older.
    """
    desk.imported("one", [*things(30), *bad(1)])
    desk.imported("two", [*things(30), {"id": 101, "size": 9, "measure": 9}])
    desk.write_spec(old=OLD, new=NEW)
    told = desk.ok("quarantine", "replay", "things.toml", "--json").json
    assert (told["written"], list(told["by_code"])) == (0, ["no_stamp"])
    assert rows(desk)["101"] == 9


def test_with_stamps_the_sink_decides_which_document_is_newer(desk: Desk) -> None:
    """A replayed old document must not overwrite a newer row."""
    old, new = "2026-01-01T00:00Z", "2026-01-02T00:00Z"
    desk.write_spec(STAMPED)
    desk.imported("one", [*things(30, changed=old), *bad(2, changed=old)])
    desk.imported("two", [*things(30, changed=old), {"id": 101, "size": 9, "measure": 9, "changed": new}])
    desk.write_spec(STAMPED, old=OLD, new=NEW)
    told = desk.ok("quarantine", "replay", "things.toml", "--json").json
    assert (told["written"], told["quarantined"]) == (2, 0)
    assert (rows(desk)["101"], rows(desk)["102"]) == (9, 7)


def test_a_record_that_came_twice_in_a_page_is_not_chosen_by_chance(desk: Desk) -> None:
    """Without a stamp, the newer of two records is unknown, and a guess could destroy the right one."""
    desk.imported("one", [*things(30), {"id": 30, "size": 31}])
    told = desk.ok("quarantine", "replay", "things.toml", "--json").json
    assert (told["written"], list(told["by_code"])) == (0, ["no_stamp"])
    assert rows(desk)["30"] == 30


def test_a_stamp_from_the_far_future_stays_bad(desk: Desk) -> None:
    """It would keep every later change of its record out of the table."""
    desk.write_spec(STAMPED)
    desk.imported("one", [*things(30, changed="2026-01-01T00:00Z"), *bad(1, changed="9000-01-01T00:00Z")])
    desk.write_spec(STAMPED, old=OLD, new=NEW)
    told = desk.ok("quarantine", "replay", "things.toml", "--json").json
    assert (told["written"], list(told["by_code"])) == (0, ["bad_stamp"])


def test_a_record_of_the_feed_of_deleted_ones_stays_deleted(desk: Desk) -> None:
    """Only the shard knows that the record is deleted; replayed as a normal row, it would appear in the table again."""

    async def deleted() -> None:
        parts = load_import(desk.spec)
        await parts.sink.open()
        shard = make_shard("things", "deleted", {"deleted": True})
        run = RunRow(id="two", source="things", spec_hash="", started_at=wall_clock_us())
        await parts.sink.runs.start(run, [shard])
        await parts.sink.shards.begin("two", shard.key, 1)
        record = json.dumps(bad(1, first=3)[0])
        kept = BadRow(position=0, external_id="3", code="bad_type", problem="size", document=record)
        await parts.sink.shards.write(
            PageWrite(run="two", shard=shard.key, fence=1, before=None, after=None, bad=[kept])
        )
        await parts.sink.close()

    desk.imported("one", things(3))
    asyncio.run(deleted())
    desk.write_spec(old=OLD, new=NEW)
    assert desk.ok("quarantine", "replay", "things.toml", "--json").json["written"] == 1
    with open_sqlite(desk.folder / "data.db") as file:
        assert file.execute("SELECT external_id FROM things WHERE deleted_at IS NOT NULL").fetchall() == [("3",)]


def test_what_is_hopeless_can_be_discarded_by_its_number(desk: Desk) -> None:
    """Records that can never become rows would otherwise hide the ones that need attention."""
    desk.imported("one", [*things(30), *bad(3)])
    told = desk.ok("quarantine", "replay", "things.toml", "--discard", "1", "--discard", "3")
    assert "2 records discarded" in told.out
    left = desk.ok("quarantine", "list", "things.toml", "--json").json
    assert [each["number"] for each in left] == [2]
    assert len(rows(desk)) == 30


def test_a_wrong_number_discards_nothing(desk: Desk) -> None:
    """If one number is mistyped, the others may be wrong, too."""
    desk.imported("one", [*things(30), *bad(3)])
    told = desk.run("quarantine", "replay", "things.toml", "--discard", "1", "--discard", "77")
    assert told.code == 2
    assert "number 77: not in the quarantine of things; nothing was discarded" in told.err
    assert len(desk.ok("quarantine", "list", "things.toml", "--json").json) == 3


def test_the_quarantine_of_another_source_is_left_alone(desk: Desk) -> None:
    """Two sources may share a table, and the spec of one says nothing about the records of the other."""
    desk.imported("one", [*things(30), *bad(3)])
    desk.write_spec(old='name = "things"', new='name = "others"')
    desk.imported("two", things(3))
    others = desk.spec.read_text("utf-8").replace(OLD, NEW)
    desk.spec.write_text(others, "utf-8")
    assert desk.ok("quarantine", "list", "things.toml", "--json").json == []
    assert desk.ok("quarantine", "replay", "things.toml", "--json").json["written"] == 0
    assert desk.run("quarantine", "replay", "things.toml", "--discard", "1").code == 2
