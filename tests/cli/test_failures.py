"""Errors: one line on stderr, the right exit code, and no traceback unless requested."""

import json
import os
import subprocess
import sys

import pytest
from tests.cli.place import Place

from leaseway.cli.commands import lanes
from leaseway.domain.errors import LeasewayError, StoreBusy, StoreFull, TerminalError, UnknownKind


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def ask(*_: object) -> None:
        raise error

    monkeypatch.setattr(lanes, "ask", ask)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownKind("u"), 2),
        (StoreBusy("b"), 3),
        (StoreFull("f"), 3),
        (TerminalError("t"), 1),
        (LeasewayError("l"), 1),
    ],
)
def test_our_own_errors_have_their_exit_codes(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: LeasewayError, code: int
) -> None:
    """A script decides by the exit code: correct the call, try again, or give up."""
    raising(monkeypatch, error)
    answer = place.run("lanes")
    assert answer.code == code
    assert answer.err.startswith(f"error: {error}\n")


def test_an_unexpected_error_is_short_and_says_how_to_learn_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback hides the message from users, and its absence must not hide the way to it."""
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    answer = place.run("lanes")
    assert answer.code == 1
    assert answer.err.splitlines()[0] == "error: ZeroDivisionError: division by zero"
    assert "--traceback" in answer.err


@pytest.mark.parametrize(("argv", "variable"), [(["lanes", "--traceback"], ""), (["lanes"], "1")])
def test_a_traceback_is_shown_to_those_who_ask(
    place: Place, monkeypatch: pytest.MonkeyPatch, argv: list[str], variable: str
) -> None:
    """A bug report needs the traceback."""
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    monkeypatch.setenv("LEASEWAY_TRACEBACK", variable)
    answer = place.run(*argv)
    assert "Traceback (most recent call last)" in answer.err
    assert answer.code == 1


def test_an_error_is_json_if_json_was_asked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that parses the output must be able to parse errors, too."""
    raising(monkeypatch, StoreBusy("another process"))
    answer = place.run("lanes", "--json")
    expected = {"code": "store_busy", "message": "another process", "exit_code": 3}
    assert json.loads(answer.err) == {"error": expected}
    assert answer.out == ""
    raising(monkeypatch, ZeroDivisionError("x"))
    assert json.loads(place.run("--json", "lanes").err)["error"]["code"] == "unexpected"


def test_an_interruption_is_silent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is intended; a traceback would look like a crash."""
    raising(monkeypatch, KeyboardInterrupt())
    answer = place.run("lanes")
    assert (answer.code, answer.out, answer.err.strip()) == (130, "", "")


@pytest.mark.parametrize("jobs", [1, 1_000])
def test_a_reader_who_leaves_early_is_no_error(place: Place, jobs: int) -> None:
    """`leaseway jobs list | head -1` must work, whether the output fits into a buffer or not."""
    (place.folder / "many.jsonl").write_text('{"x": 1}\n' * jobs)
    place.ok("submit", "tasks", "add", "--many", "many.jsonl")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "leaseway.cli", "jobs", "list", "--limit", "1000", "--json"]
    # Buffered, as in a shell: the last part is written when Python exits.
    environment = place.environment(PYTHONUNBUFFERED="")
    done = subprocess.run(
        command, env=environment, cwd=place.folder, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.stderr, done.returncode) == (b"", 141)


def test_a_terminal_that_lacks_a_character_is_no_error(place: Place) -> None:
    """A terminal without UTF-8 must not turn a successful command into a failure."""
    place.submit("greet", "name=☃")
    for more in ([], ["--json"]):
        answer = place.process(
            "jobs", "show", place.json("jobs", "list")["jobs"][0]["id"], *more, PYTHONIOENCODING="ascii"
        )
        assert answer.code == 0, answer.err
    assert json.loads(answer.out)["payload"] == {"name": "☃"}
