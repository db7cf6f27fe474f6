"""Rows that are deleted at the source: marked when it is certain, and never before."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import asyncpg
import httpx2
import pytest
from msgspec.structs import replace
from tests.imports.changing_source import MINUTE_US, NOON, Changing, changing

from leaseway.imports.domain.partition import format_instant, make_shard
from leaseway.imports.domain.run_state import RunMode, RunState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.spec.reader import read_spec
from leaseway.testing.fake_open_charge_map import API_KEY, Faults, fake_api
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.provider import Answer

FLAG = 'deletes = { flag = { params = { submissionstatustypeid = "1000,1001,1002,1020" } } }'
SWEEP = 'deletes = { sweep = { confirm = { param = "chargepointid", batch = 5 }, after = 2, max_ratio = 0.02 } }'
ALONE = "deletes = { sweep = { after = 2, max_ratio = 0.02 } }"
FULL = RunMode.FULL

Query = Mapping[str, str]

THINGS = """
version = 1
source = {{ name = "ocm", file = "things.jsonl" }}
sink = {{ url = "sqlite:///{folder}/data.db", table = "poi" }}
[resource]
key = "id"
deletes = {{ sweep = {{ after = 2 }} }}
"""
CLIENT = """
version = 1
[source]
name = "ocm"
kind = "ocm"
base_url = "{url}"
auth = {{ env = "OCM_API_KEY" }}
limits = ["1000/second"]
[resource]
incremental = {{ overlap = "15m" }}
deletes = {{ flag = {{ params = {{}} }}, sweep = {{}} }}
[sink]
url = "sqlite:///data.db"
table = "poi"
"""


@pytest.fixture
async def swept(tmp_path: Path) -> AsyncIterator[Changing]:
    """An import after one full run, an hour ago."""
    async with changing(tmp_path, more=SWEEP) as place:
        assert await place.run("first") is RunState.COMPLETE
        place.later(60)
        yield place


def hide(place: Changing, count: int, first: int = 10) -> list[int]:
    """Remove rows so that no list contains them, without any notice."""
    chosen = sorted(place.truth())[first : first + count]
    for id in chosen:
        place.it.table.put(replace(place.it.table.truth[id], status=210))
    return chosen


# -- the feed --


async def test_a_record_that_the_source_flags_is_marked_and_kept(tmp_path: Path) -> None:
    """Some sources report deletes only through a flag, and a restored record must become visible again."""
    async with changing(tmp_path, more=FLAG) as place:
        await place.run("first")
        assert all("submissionstatustypeid" not in path for path in place.asked()), "nothing was there to be deleted"
        place.later(60)
        victim = min(place.truth())
        row = replace(place.it.table.truth[victim], submission=1002, modified=place.now)
        place.it.table.put(row)
        assert await place.run("second") is RunState.COMPLETE
        assert place.gone() == {victim: "flagged"}
        assert (await place.row("second")).notes["deletes"] == {"flagged": 1}
        # The record is listed again, so it becomes visible again.
        place.later(60)
        place.it.table.put(replace(row, submission=200, modified=place.now))
        assert await place.run("third") is RunState.COMPLETE
        assert place.gone() == {}
        assert place.living() == place.truth()


async def test_a_full_run_reads_the_feed_from_the_last_watermark_on(tmp_path: Path) -> None:
    """A full run sets a watermark, so records deleted before it would never be requested again."""
    async with changing(tmp_path, more=FLAG) as place:
        await place.run("first")
        place.later(60)
        victim = min(place.truth())
        place.it.table.put(replace(place.it.table.truth[victim], submission=1002, modified=place.now))
        place.later(60)
        assert await place.run("second", FULL) is RunState.COMPLETE
        assert place.gone() == {victim: "flagged"}
        (feed,) = [row for row in await place.shards("second") if "deleted" in row.shard.predicate]
        assert feed.shard.predicate["window"] == [format_instant(NOON - 15 * MINUTE_US), None]


# -- the sweep --


async def test_a_vanished_row_is_marked_after_two_sweeps_and_a_question(swept: Changing) -> None:
    """One absence can be a fault of the source, and a wrong delete destroys trust in the data."""
    gone = hide(swept, 3)
    assert await swept.run("second", FULL) is RunState.COMPLETE
    assert swept.gone() == {}, "one absence is no proof"
    assert (await swept.row("second")).notes["sweep"] == {"stored": 300, "absent": 3}
    before = len(swept.asked())
    assert await swept.run("third", FULL) is RunState.COMPLETE
    assert swept.gone() == dict.fromkeys(gone, "swept")
    assert swept.living() == swept.truth()
    questions = [path for path in swept.asked()[before:] if "chargepointid" in path]
    assert len(questions) == 2, "asked for twice, the second time later"
    deletes = (await swept.row("third")).notes["deletes"]
    assert (deletes["deleted"], deletes["waiting"]) == (3, 0)


async def test_changes_alone_never_count_as_a_sweep(swept: Changing) -> None:
    """An incremental run sees few rows, so a sweep after it would delete almost everything."""
    hide(swept, 3)
    for name in ("second", "third", "fourth"):
        swept.later(60)
        assert await swept.run(name, RunMode.INCREMENTAL) is RunState.COMPLETE
    assert swept.gone() == {}
    assert "sweep" not in (await swept.row("fourth")).notes


async def test_a_row_that_was_absent_for_a_moment_in_every_sweep_is_not_deleted(swept: Changing) -> None:
    """The mirror deletes rows and inserts them again 300 ms later. In the worst case it does so while two runs read,
    and at the first confirmation, too; only the second confirmation finds the row.
    """
    victim = sorted(swept.truth())[20]
    usual, questions = swept.it._pois, []

    def moving(query: Query) -> Answer:
        answer = usual(query)
        if "chargepointid" in query:
            questions.append(json.loads(answer.body))
            swept.later(0.01)  # otherwise the source's clock does not move
        return answer

    swept.it._pois = moving  # type: ignore[method-assign]
    for name in ("second", "third"):
        swept.it.table.refresh([victim], 0.3)
        assert await swept.run(name, FULL) is RunState.COMPLETE
        assert (await swept.row(name)).notes["sweep"]["absent"] == 1
    assert [victim in [record["ID"] for record in answer] for answer in questions] == [False, True]
    assert swept.gone() == {}
    assert (await swept.row("third")).notes["deletes"] == {"present": 1, "requests": 3, "waiting": 0}


async def test_a_row_that_comes_back_is_a_row_again(swept: Changing) -> None:
    """A tombstone that stays would hide a row that the source lists again."""
    (victim,) = hide(swept, 1)
    for name in ("second", "third"):
        await swept.run(name, FULL)
    assert swept.gone() == {victim: "swept"}
    swept.later(60)
    swept.it.table.publish([victim])
    assert await swept.run("fourth", RunMode.INCREMENTAL) is RunState.COMPLETE
    assert swept.gone() == {}
    assert swept.living() == swept.truth()


async def test_many_absent_rows_make_the_run_suspect_and_nothing_is_deleted(swept: Changing) -> None:
    """A source that shows half of its rows has a fault; it did not lose the other half."""
    hide(swept, 7)
    since = (await swept.plan()).since
    for name in ("second", "third", "fourth"):
        assert await swept.run(name, FULL) is RunState.SUSPECT
        row = await swept.row(name)
        assert row.notes["guards"] == {"sweep_ratio": 1}
        assert "7 of 300 rows are absent" in str(row.why)
    assert swept.gone() == {}
    assert (await swept.plan()).since == since, "a suspect run moves no watermark"
    # These runs do not count as sweeps: with a larger ratio allowed, two more full runs have to miss the rows.
    swept.write(more=SWEEP.replace("0.02", "0.05"))
    assert await swept.run("fifth", FULL) is RunState.COMPLETE
    assert swept.gone() == {}
    assert await swept.run("sixth", FULL) is RunState.COMPLETE
    assert len(swept.gone()) == 7


def answering(place: Changing, change: Callable[[str], str]) -> Callable[[], None]:
    """Make the source receive other ids than those in the request, until the returned function is called."""
    usual = place.it._pois

    def pois(query: Query) -> Answer:
        ids = query.get("chargepointid")
        return usual(query if ids is None else {**query, "chargepointid": change(ids)})

    def mend() -> None:
        place.it._pois = usual  # type: ignore[method-assign]

    place.it._pois = pois  # type: ignore[method-assign]
    return mend


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda ids: "1", id="nothing, as when its database is away"),
        pytest.param(lambda ids: ids.split(",")[0], id="the first alone"),
        pytest.param(lambda ids: ids.split(",")[-1], id="the last alone"),
    ],
)
async def test_an_answer_without_the_records_that_must_be_there_deletes_nothing(
    swept: Changing, change: Callable[[str], str]
) -> None:
    """A source that answers with an empty list during an outage must not empty the table."""
    gone = hide(swept, 1)
    await swept.run("second", FULL)
    mend = answering(swept, change)
    assert await swept.run("third", FULL) is RunState.COMPLETE
    assert swept.gone() == {}
    assert (await swept.row("third")).notes["deletes"]["waiting"] == 1
    # A resumed run asks once more.
    mend()
    assert await swept.resume("third") is RunState.COMPLETE
    assert list(swept.gone()) == gone


async def test_an_answer_that_was_cut_deletes_nothing(swept: Changing) -> None:
    """The source sends at most three records and does not say so, although all six are present again."""
    swept.write(more=SWEEP.replace("batch = 5", "batch = 10"))
    away = sorted(swept.truth())[10:16]
    usual = swept.it._pois

    def cut(query: Query) -> Answer:
        if "chargepointid" not in query:
            return usual(query)
        swept.later(1)  # the rows are present again
        return usual({**query, "maxresults": "3"})

    swept.it._pois = cut  # type: ignore[method-assign]
    for name in ("second", "third"):
        swept.it.table.refresh(away, 30)
        assert await swept.run(name, FULL) is RunState.COMPLETE
    assert (await swept.row("third")).notes["sweep"]["absent"] == 6
    assert (await swept.row("third")).notes["deletes"] == {"present": 6, "requests": 7, "waiting": 0}
    assert swept.gone() == {}


async def test_a_source_that_takes_one_id_at_a_time_is_asked_one_by_one(swept: Changing) -> None:
    """A list of ids that the source does not understand would make present rows look absent."""
    swept.write(more=SWEEP.replace("batch = 5", "batch = 1"))
    gone = hide(swept, 2)
    for name in ("second", "third"):
        assert await swept.run(name, FULL) is RunState.COMPLETE
    assert list(swept.gone()) == gone
    assert all("%2C" not in path for path in swept.asked() if "chargepointid" in path)


async def test_a_source_that_ignores_the_question_deletes_nothing(swept: Changing) -> None:
    """The source answers with its first records, whatever ids are requested."""
    swept.write(more=SWEEP.replace("chargepointid", "whatever"))
    hide(swept, 1)
    await swept.run("second", FULL)
    assert await swept.run("third", FULL) is RunState.COMPLETE
    assert swept.gone() == {}


async def test_a_row_of_a_parked_shard_is_not_absent(swept: Changing) -> None:
    """A partial run has not seen all records, so it must not sweep."""
    hide(swept, 1)
    plan = await swept.plan(FULL)
    swept.it.faults = Faults(error_every=2, error_status=404)
    assert await swept.run("second", plan=plan) is RunState.PARTIAL
    assert "sweep" not in (await swept.row("second")).notes


async def test_without_a_way_to_ask_two_sweeps_are_enough(tmp_path: Path) -> None:
    """Many sources cannot be asked for single ids, and their deleted rows must still disappear."""
    async with changing(tmp_path, more=ALONE) as place:
        await place.run("first")
        gone = hide(place, 2)
        assert await place.run("second", FULL) is RunState.COMPLETE
        assert place.gone() == {}
        assert await place.run("third", FULL) is RunState.COMPLETE
        assert place.gone() == dict.fromkeys(gone, "swept")


async def test_a_record_in_quarantine_is_not_gone(tmp_path: Path) -> None:
    """The record was sent and could not become a row, so its existing row must stay."""
    more = f"{ALONE}\nquality = {{ NumberOfPoints = {{ range = [0, 100] }} }}"
    async with changing(tmp_path, more=more) as place:
        await place.run("first")
        victim = place.it.table.truth[sorted(place.truth())[3]]
        place.it.table.put(replace(victim, points=1_000))
        for name in ("second", "third", "fourth"):
            assert await place.run(name, FULL) is RunState.COMPLETE
        assert sum(row.quarantined for row in await place.shards("fourth")) == 1
        assert place.gone() == {}


async def test_a_run_that_began_without_a_sweep_does_not_end_with_one(tmp_path: Path) -> None:
    """The run recorded no seen ids, so all rows would look absent."""
    async with changing(tmp_path) as place:
        await place.run("first")
        plan = await place.plan(FULL)
        await place.run("second", plan=plan)
        place.write(more=ALONE)
        assert await place.resume("second") is RunState.COMPLETE
        assert "sweep" not in (await place.row("second")).notes


async def test_another_database_forgets_in_the_same_way(tmp_path: Path, server: PostgresServer) -> None:
    """Deletes are SQL of each sink, so a mistake in one would go unnoticed in the other."""
    schema = f"deletes_{tmp_path.name.replace('-', '_')}"
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"CREATE SCHEMA {schema}")
    try:
        async with changing(tmp_path, more=SWEEP, sink=f"{server.url}?schema={schema}") as place:
            await place.run("first")
            gone = hide(place, 3)
            for name in ("second", "third"):
                assert await place.run(name, FULL) is RunState.COMPLETE
            found = await connection.fetch(f"SELECT external_id, deleted_reason FROM {schema}.poi WHERE deleted_at > 0")
            assert {int(id): reason for id, reason in found} == dict.fromkeys(gone, "swept")
            assert (await place.row("third")).notes["deletes"] == {"deleted": 3, "requests": 3, "waiting": 0}
            place.it.table.publish(gone)
            place.later(60)
            assert await place.run("fourth", RunMode.INCREMENTAL) is RunState.COMPLETE
            assert await connection.fetchval(f"SELECT count(*) FROM {schema}.poi WHERE deleted_at IS NULL") == 300
    finally:
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
        await connection.close()


async def test_what_is_no_longer_in_a_file_is_gone(tmp_path: Path) -> None:
    """A file cannot be asked for single ids, so two exports without the record must be enough."""
    path, file = tmp_path / "things.toml", tmp_path / "things.jsonl"
    path.write_text(THINGS.format(folder=tmp_path), "utf-8")
    place = Changing(tmp_path)
    place.parts = load_import(path)
    for name, ids in {"first": range(100), "second": range(99), "third": range(99)}.items():
        file.write_text("".join(f'{{"id": {id}}}\n' for id in ids), "utf-8")
        assert await place.run(name) is RunState.COMPLETE
        assert place.gone() == ({99: "swept"} if name == "third" else {})


async def test_the_client_of_open_charge_map_knows_deletes_by_itself(tmp_path: Path) -> None:
    """A user of the built-in client must not have to find out how this API reports deletes."""
    path = tmp_path / "ocm.toml"
    async with fake_api(50) as it, httpx2.AsyncClient() as http:
        path.write_text(CLIENT.format(url=it.url), "utf-8")
        source = load_import(path, {"OCM_API_KEY": API_KEY}).source
        flagged, vanished, there, *_ = sorted(it.table.readable())
        it.table.put(replace(it.table.truth[flagged], submission=1020))
        it.table.put(replace(it.table.truth[vanished], status=210))
        feed = make_shard("ocm", "deleted", {"deleted": True})
        page = await source.fetch(feed, None, 100, http)
        assert [record["ID"] for record in page.records] == [flagged]
        asked = [str(flagged), str(vanished), str(there), "no number"]
        assert await source.present(asked, http) == {str(there)}
        assert source.caps.deletes == {"flag", "confirm"}


# -- the spec --

PLAIN = """
version = 1
source = { name = "s", base_url = "https://s.example" }
sink = { url = "sqlite:///d.db", table = "t" }
[resource]
key = "id"
"""
FILE = PLAIN.replace('base_url = "https://s.example"', 'file = "s.jsonl"')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{PLAIN}deletes = {{}}", "resource.deletes: is empty; set record"),
        (f"{PLAIN}deletes = {{ flag = {{ params = {{}} }} }}", "resource.deletes.flag.params: is empty"),
        (
            f'{PLAIN}deletes = {{ sweep = {{}} }}\non_bad_row = {{ policy = "skip" }}',
            "resource.deletes.sweep.confirm: is required with on_bad_row.policy = 'skip'",
        ),
        (f"{FILE}deletes = {{ flag = {{ params = {{ a = 1 }} }} }}", "resource.deletes.flag: is for a base_url"),
        (
            f'{FILE}deletes = {{ sweep = {{ confirm = {{ param = "id" }} }} }}',
            "resource.deletes.sweep.confirm: is for a base_url",
        ),
    ],
)
def test_deletes_that_cannot_work_are_refused_with_the_way_out(text: str, problem: str) -> None:
    """A setting that can never delete anything would be believed to work."""
    with pytest.raises(Exception, match=problem.replace("(", r"\(")):
        read_spec(text, "s.toml")
