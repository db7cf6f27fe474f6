"""What `report`, `diff` and `status` print about runs, and what they answer when there are none."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from tests.imports.apps import import_app
from tests.imports.cli_fixtures import STAMPED, Desk, at_desk, things

from leaseway.cli.commands.imports.formatting import describe_held
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import SECOND_US, Token, WorkerId
from leaseway.imports.domain.drift import Drift, TypeChange, compare_profiles, merge_profiles
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us
from leaseway.testing.job_store_contract.fixtures import retry


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return at_desk(tmp_path, monkeypatch, capsys)


def test_a_report_adds_up_and_says_what_became_of_each_record(desk: Desk) -> None:
    """A report whose figures do not add up proves nothing about lost records."""
    assert desk.imported("one", [*things(30), {"id": 99, "size": "large"}]) is RunState.COMPLETE
    told = desk.ok("report", "things.toml", "--json").json
    assert (told["run"], told["state"], told["exit_code"], told["mode"]) == ("one", "complete", 0, "full")
    assert (told["rows"], told["inserted"], told["quarantined"]) == (30, 30, 1)
    for name in ("pages", "rows", "inserted", "quarantined", "requests", "bytes"):
        assert told[name] == sum(shard[name] for shard in told["by_shard"]), name
    assert told["changes"] | {"samples": None} == {"added": 30, "changed": 0, "removed": 0, "samples": None}
    text = desk.ok("report", "things.toml").out
    assert "run one of things: complete" in text
    assert "30 inserted" in text
    assert "30 rows added, 0 changed, 0 removed" in text


def test_a_report_of_a_partial_run_says_why_and_what_to_type(desk: Desk) -> None:
    """A user must learn the cause and the next command without reading logs."""
    assert desk.imported("one", [{"name": "no key"}] * 20) is RunState.PARTIAL
    told = desk.ok("report", "things.toml", "--json").json
    (parked,) = told["parked"]
    assert (told["exit_code"], told["guards"]) == (1, {"bad_rows": 1})
    assert "resource.key" in parked["why"]
    text = desk.ok("report", "things.toml").out
    assert "parked: 1 shard\n" in text
    assert "no record of a page has 'id'" in text
    assert "continue with: leaseway import resume things.toml\n" in text


def test_a_field_that_came_or_went_is_a_drift(desk: Desk) -> None:
    """The run is complete, so only the report can show that the source's format changed."""
    desk.imported("one", things(20, colour="red", weight=3))
    desk.imported("two", things(20, colour=7, height=2))
    told = desk.ok("report", "things.toml", "--json").json
    assert told["compared_with"] == "one"
    changed = {"path": "colour", "before": ["text"], "after": ["integer"]}
    assert told["drift"] == {"new": ["height"], "vanished": ["weight"], "changed": [changed]}
    text = desk.ok("report", "things.toml").out
    assert "new paths       height" in text
    assert "colour: text, now integer" in text
    earlier = desk.ok("report", "things.toml", "--run", "one", "--json").json
    assert (earlier["compared_with"], earlier["drift"]) == (None, None)


def test_what_a_sample_may_miss_by_chance_is_no_drift() -> None:
    """A field of one document in fifty is absent from one sample in three; a warning every night would be ignored."""
    often, rare = {"id": {"integer": 50}, "seldom": {"text": 1}}, {"id": {"integer": 50}}
    assert compare_profiles(often, rare) == compare_profiles(rare, often) == Drift()
    always = {"id": {"integer": 50}, "seldom": {"text": 45}}
    assert compare_profiles(always, rare) == Drift(vanished=("seldom",))
    assert compare_profiles(rare, always) == Drift(new=("seldom",))


def test_a_list_of_many_items_does_not_make_the_sample_larger() -> None:
    """Ten documents with fifty tags each are ten documents; a larger count would make a common field look rare."""
    before = {"id": {"integer": 10}, "name": {"text": 10}, "tags[*]": {"text": 500}}
    after = {"name": {"text": 10}, "tags[*]": {"text": 10}}
    assert compare_profiles(before, after) == Drift(vanished=("id",))


def test_a_type_that_is_rare_among_many_is_no_change_of_type() -> None:
    """A warning for every odd record would be ignored when the source really changes."""
    before, after = {"a": {"text": 1_000}}, {"a": {"text": 999, "null": 1}}
    assert compare_profiles(before, after) == Drift()
    assert compare_profiles(before, {"a": {"null": 1_000}}) == Drift(changed=(TypeChange("a", ("text",), ("null",)),))


def test_without_a_profile_nothing_is_said_about_drift() -> None:
    """A comparison with an empty profile would report every field as new."""
    assert compare_profiles({}, {"a": {"text": 1}}) is None
    assert compare_profiles({"a": {"text": 1}}, {}) is None
    assert merge_profiles([{"a": {"text": 1}}, {"a": {"text": 2, "null": 1}}]) == {"a": {"text": 3, "null": 1}}


# -- diff --


def test_a_diff_names_the_rows_that_changed_between_the_last_two_runs(desk: Desk) -> None:
    """Counts alone do not show whether the right rows changed."""
    desk.write_spec(STAMPED)
    desk.imported("zero", things(2, changed="2026-01-01T00:00Z"))
    desk.imported("one", things(20, changed="2026-01-01T00:00Z"))
    later = {"id": 3, "size": 300, "changed": "2026-01-02T00:00Z"}
    known = things(22, changed="2026-01-01T00:00Z")
    desk.imported("two", [*known[:2], later, *known[3:]])
    told = desk.ok("diff", "things.toml", "--json").json
    assert (told["before"]["run"], told["after"]["run"]) == ("one", "two")
    assert (told["rows"]["added"], told["rows"]["changed"], told["rows"]["removed"]) == (2, 1, 0)
    assert {kind: sorted(ids) for kind, ids in told["rows"]["samples"].items() if ids} == {
        "added": ["21", "22"],
        "changed": ["3"],
    }
    (shard,) = told["shards"]["changed"]
    assert (shard["before"]["rows"], shard["after"]["rows"]) == (20, 22)
    text = desk.ok("diff", "things.toml").out
    assert "2 added: 21, 22\n" in text
    assert "1 changed: 3\n" in text


def test_two_runs_can_be_named_in_any_order(desk: Desk) -> None:
    """A diff in reverse order would report added rows as removed."""
    for run in ("one", "two", "three"):
        desk.imported(run, things(3))
    for words in (("one",), ("one", "three"), ("three", "one")):
        told = desk.ok("diff", "things.toml", *words, "--json").json
        assert (told["before"]["run"], told["after"]["run"]) == ("one", "three"), words
    assert "the same in both" in desk.ok("diff", "things.toml", "one", "three").out


def test_a_diff_needs_two_runs(desk: Desk) -> None:
    """A diff of a run with itself is always empty and would look like good news."""
    desk.imported("one", things(3))
    alone = desk.run("diff", "things.toml")
    assert alone.code == 2
    assert "only one run, one" in alone.err
    desk.imported("two")
    itself = desk.run("diff", "things.toml", "two")
    assert itself.code == 2
    assert "compared with itself" in itself.err
    unknown = desk.run("diff", "things.toml", "one", "three")
    assert unknown.code == 2
    assert "no run three; its latest runs: two, one" in unknown.err


# -- status --


def test_a_look_at_runs_needs_no_key(desk: Desk) -> None:
    """Reading a report on another machine, or years later, must not require the secret."""
    desk.imported("one", things(3))
    desk.spec.write_text(
        desk.spec.read_text("utf-8").replace(
            'file = "things.jsonl"', 'base_url = "http://127.0.0.1:9"\nauth = { header = "X", env = "NO_SUCH_KEY" }'
        ),
        "utf-8",
    )
    for words in (["status"], ["report"], ["quarantine", "list"], ["quarantine"], ["status", "--watch"]):
        desk.ok(*words, "things.toml")
    refused = desk.run("plan", "things.toml")
    assert refused.code == 2
    assert "NO_SUCH_KEY" in refused.err


def test_status_counts_in_good_english(desk: Desk) -> None:
    """Text such as "1 shards" makes the reader doubt the figure."""
    desk.imported("one", things(1))
    text = desk.ok("status", "things.toml").out
    assert "\n1 shard: 1 done\n" in text
    assert "1 page, 1 row, 1 inserted" in text


def test_status_shows_what_parked_a_shard(desk: Desk) -> None:
    """A parked shard stays parked until its cause is corrected."""
    desk.imported("one", [{"name": "no key"}] * 20)
    text = desk.ok("status", "things.toml").out
    assert "parked: all: resource.key: no record of a page has 'id'" in text
    assert "continue with: leaseway import resume things.toml" in text


def test_status_shows_a_shard_that_was_given_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job is a dead letter, while the run tables still show the shard as running."""
    monkeypatch.setattr("leaseway.imports.run.shard_jobs.ATTEMPTS", 1)
    desk.write_spec(old='file = "things.jsonl"', new='base_url = "http://127.0.0.1:9"')
    assert desk.imported("one", shards=[make_shard("things", "all", {})]) is RunState.PARTIAL
    text = desk.ok("status", "things.toml").out
    assert "all: failed after 1 of 1 attempts: " in text
    told = desk.ok("status", "things.toml", "--json").json
    assert told["by_shard"][0]["given_up"].startswith("failed after 1 of 1")
    assert "Cannot connect to host 127.0.0.1:9" in told["by_shard"][0]["given_up"]


def test_status_says_that_nobody_is_at_work(desk: Desk) -> None:
    """After all workers are killed, the run tables say `running` until the run is resumed."""
    desk.write(things(3))
    asyncio.run(begun(desk))
    text = desk.ok("status", "things.toml").out
    assert "things: running after" in text
    assert "no worker is running it now; continue with: leaseway import resume things.toml" in text
    asyncio.run(taken(desk))
    assert "no worker is running" not in desk.ok("status", "things.toml").out


def test_status_says_that_shards_wait_for_their_next_attempt(desk: Desk) -> None:
    """Between two attempts no worker holds a lease. The advice to resume would be wrong: a worker waits as well."""
    desk.write(things(3))
    asyncio.run(begun(desk))
    asyncio.run(taken(desk, delay_us=90 * SECOND_US))
    text = desk.ok("status", "things.toml").out
    assert "no worker is running it now" not in text
    waiting = (
        r"waiting for the next attempt: 1 shard, the first in \S+( \S+)?; if no worker is running, continue with: "
    )
    assert re.search(waiting, " ".join(text.split())), text


def test_resume_says_whose_leases_it_waits_for(desk: Desk) -> None:
    """After `kill -9` of a worker nothing moves for up to a lease; without a reason, that looks like a hang."""
    desk.write(things(3))
    asyncio.run(begun(desk))
    asyncio.run(taken(desk))
    told = asyncio.run(held(desk))
    assert re.fullmatch(
        r"1 shard leased by other workers; if these were killed, their leases expire within 1\d(\.\d)? s", told
    ), told


async def begun(desk: Desk) -> None:
    parts = load_import(desk.spec)
    await parts.sink.open()
    app, handle = import_app(parts, "sqlite:///jobs.db")
    async with app:
        await start_planned(parts, handle, "one", await plan_with_history(parts), wall_clock_us())
    await parts.sink.close()


async def taken(desk: Desk, delay_us: int | None = None) -> None:
    """A worker leases the shard and does not return to it for a while, or returns it for another attempt."""
    parts = load_import(desk.spec)
    app, _ = import_app(parts, "sqlite:///jobs.db")
    async with app:
        wants = Wants((parts.queue,), 1, Token("token"))
        store = await app.store()
        answer = await store.jobs.exchange(Exchange(WorkerId("worker"), wants=wants))
        assert answer.leases
        if delay_us is not None:
            again = tuple(retry(lease, delay_us=delay_us) for lease in answer.leases)
            await store.jobs.exchange(Exchange(WorkerId("worker"), again))


async def held(desk: Desk) -> str:
    parts = load_import(desk.spec)
    app, _ = import_app(parts, "sqlite:///jobs.db")
    async with app:
        return await describe_held(await app.store(), parts.spec.source.name) or ""


# -- missing sinks and runs --

LOOKS = [("status",), ("report",), ("diff",), ("quarantine", "list"), ("quarantine", "replay")]


@pytest.mark.parametrize("words", LOOKS)
def test_a_look_at_a_sink_that_is_not_there_makes_none(desk: Desk, words: tuple[str, ...]) -> None:
    """An empty file in the wrong folder would look like an import that has lost its runs."""
    told = desk.run(*words, "things.toml")
    assert told.code == 2
    assert "leaseway import run things.toml" in told.err
    assert not (desk.folder / "data.db").exists()


def test_a_look_at_a_folder_of_files_that_is_not_there_makes_none(desk: Desk) -> None:
    """A read-only command that creates a folder would hide a mistyped path."""
    desk.write_spec(old="sqlite:///data.db", new="parquet:///places")
    assert desk.run("status", "things.toml").code == 2
    desk.ok("plan", "things.toml")
    assert not (desk.folder / "places").exists()
    desk.imported("one", things(3))
    assert "3 rows added" in desk.ok("report", "things.toml").out


@pytest.mark.parametrize("words", LOOKS[:3])
def test_a_source_without_runs_says_how_to_begin(desk: Desk, words: tuple[str, ...]) -> None:
    """A new user must learn the command that starts the first run."""
    desk.imported("one", things(3))
    desk.write_spec(old='name = "things"', new='name = "others"')
    told = desk.run(*words, "things.toml")
    assert told.code == 2
    assert "others has no runs yet; start one with: leaseway import run things.toml" in told.err


def test_an_unknown_run_lists_the_known_ones(desk: Desk) -> None:
    """Run names are generated, so a user cannot guess them."""
    desk.imported("one", things(3))
    desk.imported("two")
    for words in (("status",), ("report",), ("quarantine", "list"), ("quarantine", "replay"), ("resume",)):
        told = desk.run(*words, "things.toml", "--run", "three")
        assert told.code == 2, words
        assert "no run three; its latest runs: two, one" in told.err, words


def test_the_run_of_another_source_is_not_shown_as_ours(desk: Desk) -> None:
    """Two sources may share a sink, and figures of the wrong source would mislead the user."""
    desk.imported("one", things(3))
    desk.write_spec(old='name = "things"', new='name = "others"')
    desk.imported("two")
    told = desk.run("report", "things.toml", "--run", "one")
    assert told.code == 2
    assert "others has no run one; its latest runs: two" in told.err


@pytest.mark.parametrize("words", [("plan",), ("run",), ("resume",), ("status",), ("report",), ("work",)])
def test_a_spec_that_is_not_there_is_an_error_of_one_line(desk: Desk, words: tuple[str, ...]) -> None:
    """A mistyped file name is the most common error, and a traceback would hide it."""
    told = desk.run(*words, "thongs.toml")
    assert told.code == 2
    assert "no spec thongs.toml" in told.err
    assert desk.run(*words, ".").code == 2


def test_an_error_is_json_where_json_was_asked_for(desk: Desk) -> None:
    """A script that parses the output must be able to parse errors, too."""
    told = desk.run("report", "things.toml", "--json")
    assert json.loads(told.err)["error"]["exit_code"] == 2
