"""leaseway submit: the arguments become a job, or an error that says what to type instead."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.place import Place

from leaseway.cli.commands import submit
from leaseway.stores.sqlite.jobs import SqliteJobs


def stored(place: Place) -> list[Any]:
    return [job["payload"] for job in place.json("jobs", "list")["jobs"]] if place.database.exists() else []


# -- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["multiply", "x=1"], "there is no job named 'multiply'; this app has: add"),
        (["add"], "missing required argument x"),
        (["add", "x=one"], "add: x: expected int, got str"),
        (["add", "x=1.5"], "add: x: expected int, got float"),
        (["add", "x=1", "z=2"], "unknown argument z"),
        (["add", "x"], "x: is not an argument; write NAME=VALUE"),
        (["add", "=1"], "=1: is not an argument"),
        (["add", "x=1", "x=2"], "x: is given twice"),
        (["add", "x=1", "--json-args", '{"x": 2}'], "x: is given twice"),
        (["add", "--json-args", "{x: 1}"], "--json-args: is not JSON"),
        (["add", "--json-args", "[1]"], "--json-args: must be one JSON object"),
        (["measure", "length=NaN"], "measure: length: expected float, got str"),
        (["measure", "--json-args", '{"length": NaN}'], "--json-args: is not JSON"),
        (["greet", "name=5"], "a value that is valid JSON is read as JSON; for text write name='\"…\"'"),
        (["greet", f"name={'x' * 300_000}"], "262,144 are allowed"),
        (["greet", "name=a\\u0000b", "--json-args", '{"name": "a\\u0000b"}'], "name: is given twice"),
        (["greet", "--json-args", '{"name": "a\\u0000b"}'], "NUL"),
        (["add", "x=1", "--delay", "-5"], "delay: must be between 0"),
        (["add", "x=1", "--delay", "soon"], "'soon' is not a duration"),
        (["add", "x=1", "--delay", "nan"], "'nan' is not a duration"),
        (["add", "x=1", "--delay", "1h", "--run-at", "2030-01-01"], "delay: cannot be given together with run_at"),
        (["add", "x=1", "--run-at", "9999-12-31T23:59:59-14:00"], "run_at: must be in the years 1970 to 9999"),
        (["add", "x=1", "--run-at", "tomorrow"], "'tomorrow' is not a point in time"),
        (["add", "x=1", "--run-at", "2030-02-31T08:00"], "is not a point in time"),
        (["add", "x=1", "--run-at", "0001-01-01T00:00"], "is not a point in time"),
        (["add", "x=1", "--attempts", "0"], "attempts: must be between 1"),
        (["add", "x=1", "--attempts", "many"], "'many' is not a valid integer"),
        (["add", "x=1", "--priority", "5000"], "priority: must be between"),
        (["add", "x=1", "--timeout", "0"], "timeout: must be between"),
        (["add", "x=1", "--key", ""], "key: must be 1 to 200 printable characters"),
        (["add", "x=1", "--tenant", "a\tb"], "tenant: must be 1 to 200 printable characters"),
        (["add", "x=1", "--cursor", f'"{"x" * 300_000}"'], "cursor: is 300,002 bytes"),
        (["add", "x=1", "--hurry"], "--hurry"),
        (["add", "x=1", "--many", "-"], "do not pass others"),
        (["add", "--key", "k", "--many", "-"], "one key cannot identify many jobs"),
        (["add", "--many", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["add", "--many", "."], ".: cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_stored(place: Place, argv: list[str], complaint: str) -> None:
    """The user can correct it now; a worker at night cannot."""
    answer = place.run("submit", "tasks:app", *argv)
    assert answer.code == 2
    assert complaint in answer.err
    assert stored(place) == []


def test_a_key_that_was_used_for_something_else_is_refused(place: Place) -> None:
    """The other job would otherwise be taken for this one, and this one would never run."""
    place.submit("add", "x=1", "--key", "k")
    answer = place.run("submit", "tasks", "add", "x=2", "--key", "k")
    assert answer.code == 2
    assert "use a new key for a new job" in answer.err


# -- what fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "payload"),
    [
        (["add", "x=1"], {"x": 1}),
        (["add", "x=1", "y=-2"], {"x": 1, "y": -2}),
        (["add", "y=3", "--json-args", '{"x": 2}'], {"x": 2, "y": 3}),
        (["greet", "name=Zoë ☃"], {"name": "Zoë ☃"}),
        (["greet", "name=a=b"], {"name": "a=b"}),
        (["greet", "name="], {"name": ""}),
        (["greet", 'name="5"'], {"name": "5"}),
        (["greet", "name={broken"], {"name": "{broken"}),
        (["measure", "length=1e3"], {"length": 1000.0}),
    ],
)
def test_a_value_is_json_if_it_can_be_and_text_otherwise(place: Place, argv: list[str], payload: Any) -> None:
    """The types of arguments depend on this rule."""
    place.ok("submit", "tasks", *argv)
    assert stored(place) == [payload]


def test_every_option_reaches_the_job(place: Place) -> None:
    """An option that is accepted and ignored is worse than one that does not exist."""
    options = ["--key", "k", "--tenant", "acme", "--queue", "q", "--priority", "7", "--run-at", "2030-01-02T03:04:05Z"]
    options += ["--attempts", "3", "--timeout", "2m", "--shard-key", "s", "--cursor", '{"page": 2}']
    job = place.json("jobs", "show", place.submit("add", "x=1", *options))
    told = ("tenant", "queue", "priority", "attempts_max", "timeout_seconds", "shard_key", "cursor", "run_at")
    expected = ("acme", "q", 7, 3, 120.0, "s", {"page": 2}, "2030-01-02T03:04:05.000000Z")
    assert tuple(job[name] for name in told) == expected


def test_a_delay_may_have_a_unit(place: Place) -> None:
    """Users write 5m, and seconds would be a silent factor of 60."""
    job = place.json("jobs", "show", place.submit("add", "x=1", "--delay", "1.5h"))
    assert place.sql("SELECT run_at - created_at FROM jobs") == [(5_400_000_000,)]
    assert job["state"] == "pending"


def test_a_repeated_key_names_the_first_job_and_says_so(place: Place) -> None:
    """A script that runs twice must not submit twice, and the output must say why no job is new."""
    first = place.ok("submit", "tasks", "add", "x=1", "--key", "k").out
    second = place.ok("submit", "tasks", "add", "x=1", "--key", "k").out
    assert first.split()[0] == second.split()[0]
    assert "submitted" in first
    assert "exists" in second
    assert place.json("submit", "tasks", "add", "x=1", "--key", "k")["replayed"] is True


# -- many -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "BATCH", 10)


def lines(path: Path, *texts: str) -> str:
    path.write_text("\n".join(texts) + "\n")
    return str(path)


def good(count: int) -> list[str]:
    return [json.dumps({"x": number}) for number in range(count)]


@pytest.mark.usefixtures("small_batches")
def test_many_are_stored_in_the_order_of_their_lines(place: Place, tmp_path: Path) -> None:
    """The order of submission decides which job runs first."""
    file = lines(tmp_path / "many.jsonl", *good(25))
    assert place.ok("submit", "tasks", "add", "--many", file, "--tenant", "acme").out == "submitted 25 jobs\n"
    jobs = place.json("jobs", "list", "--tenant", "acme")["jobs"]
    assert [job["payload"]["x"] for job in reversed(jobs)] == list(range(25))


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("{x: 1}", "line 25: arguments: is not JSON"),
        ('{"x": "one"}', "line 25: add: x: expected int, got str"),
        ("[1]", "line 25: arguments: must be one JSON object"),
        ('{"x": 1, "z": 1}', "line 25: add: "),
        (json.dumps({"x": 1, "y": "x" * 300_000}), "line 25: add"),
    ],
)
@pytest.mark.usefixtures("small_batches")
def test_a_bad_line_is_named_and_what_is_stored_is_told(place: Place, tmp_path: Path, bad: str, complaint: str) -> None:
    """Repeating the whole file would do work twice; repeating too little would lose jobs."""
    file = lines(tmp_path / "many.jsonl", *good(24), bad, *good(10))
    answer = place.run("submit", "tasks", "add", "--many", file)
    assert answer.code == 2
    assert complaint in answer.err
    assert "20 jobs stored, up to line 20; later lines are not" in answer.err
    assert "tail -n +21" in answer.err
    assert len(stored(place)) == 20


def test_a_bad_first_line_stores_nothing_and_says_so(place: Place, tmp_path: Path) -> None:
    """The user must know that the whole file can be submitted again."""
    answer = place.run("submit", "tasks", "add", "--many", lines(tmp_path / "many.jsonl", "x", *good(3)))
    assert answer.code == 2
    assert "nothing was stored" in answer.err
    assert stored(place) == []


@pytest.mark.usefixtures("small_batches")
def test_a_store_that_fails_in_the_middle_is_told_with_what_is_stored(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply was lost: the last batch is in doubt, the ones before it are stored."""
    from leaseway.domain.errors import UnknownOutcome

    calls = 0
    submit = SqliteJobs.submit

    async def failing(self: SqliteJobs, jobs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise UnknownOutcome("the reply was lost")
        return await submit(self, jobs)

    monkeypatch.setattr(SqliteJobs, "submit", failing)
    monkeypatch.setattr("leaseway.worker.submit.PAUSE_SECONDS", 0)
    answer = place.run("submit", "tasks", "add", "--many", lines(tmp_path / "many.jsonl", *good(35)))
    assert answer.code == 3
    assert "20 jobs stored, up to line 20" in answer.err
    assert "Lines 21 to 30 may be stored as well" in answer.err


def test_bytes_that_are_no_text_are_named_by_their_line(place: Place, tmp_path: Path) -> None:
    """In a file of a million lines the user needs the line number."""
    (tmp_path / "many.jsonl").write_bytes(b'{"x": 1}\n\xff\xfe\n')
    answer = place.run("submit", "tasks", "add", "--many", "many.jsonl")
    assert answer.code == 2
    assert "line 2: is not UTF-8 text" in answer.err


def test_blank_lines_and_a_byte_order_mark_are_no_arguments(place: Place, tmp_path: Path) -> None:
    """Editors add both, and neither is a mistake."""
    (tmp_path / "many.jsonl").write_bytes(b'\xef\xbb\xbf{"x": 1}\r\n\r\n{"x": 2}')
    place.ok("submit", "tasks", "add", "--many", "many.jsonl")
    assert sorted(payload["x"] for payload in stored(place)) == [1, 2]


@pytest.mark.usefixtures("small_batches")
def test_programs_get_a_line_for_each_job_and_a_sum(place: Place, tmp_path: Path) -> None:
    """A program that submits in bulk needs the ids."""
    file = lines(tmp_path / "many.jsonl", *good(12))
    *told, total = map(json.loads, place.ok("submit", "tasks", "add", "--many", file, "--json").out.splitlines())
    assert [each["line"] for each in told] == list(range(1, 13))
    assert {each["id"] for each in told} == {job["id"] for job in place.json("jobs", "list")["jobs"]}
    assert total == {"stored": 12, "replayed": 0, "last_line": 12}


def test_many_may_come_through_a_pipe(place: Place) -> None:
    """Bulk submissions are usually generated by another program."""
    answer = place.process("submit", "tasks", "add", "--many", "-", stdin="\n".join(good(3)))
    assert answer.code == 0, answer.err
    assert len(stored(place)) == 3
