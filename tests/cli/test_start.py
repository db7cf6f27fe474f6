"""Help, version, completion, and unknown commands."""

import ast
import json
import re
import subprocess
import sys

import pytest
from tests.cli.place import Place

from leaseway.cli.main import COMMANDS

LOADED = """
import sys
from leaseway.cli.main import main
code = main({argv!r})
print([name for name in ("rich", "msgspec", "asyncio", "sqlite3") if name in sys.modules], file=sys.stderr)
"""


def loaded_by(*argv: str) -> str:
    script = LOADED.format(argv=argv)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "leaseway" in done.stdout
    return done.stderr.strip()


@pytest.mark.parametrize("argv", [["--help"], ["--version"]])
def test_the_list_of_commands_loads_nothing_but_click(argv: list[str]) -> None:
    """The help must appear at once, and so must shell completion, which takes the same path."""
    assert loaded_by(*argv) == "[]"


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo", "bench"}))
def test_the_help_of_a_command_loads_no_driver(name: str) -> None:
    """A command is one module, and its help imports it: that must not cost the time of a database driver or of rich."""
    assert not {"rich", "sqlite3"} & set(ast.literal_eval(loaded_by(name, "--help")))


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo", "bench"}))
def test_every_command_explains_itself_in_the_same_words(place: Place, name: str) -> None:
    """The list of commands imports none of them, so its summaries are written twice and must not drift apart."""
    help_ = place.ok(name, "--help").out
    summary = COMMANDS[name].summary.removesuffix(".")
    assert "--json" in help_
    assert "--traceback" in help_
    assert re.sub(r"\s+", " ", summary.split(":")[0]) in re.sub(r"\s+", " ", help_) or name == "completion"


def test_the_version_is_told(place: Place) -> None:
    """Bug reports start with the version."""
    assert re.fullmatch(r"leaseway \d+\.\d+\.\d+\n", place.ok("--version").out)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["wrok"], "wrok"),
        (["jobs", "lst"], "lst"),
        (["lanes", "--colour"], "--colour"),
        (["jobs", "list", "--state", "lost"], "lost"),
        (["jobs", "list", "--limit", "0"], "0"),
        (["jobs", "show"], "missing argument 'ID'"),
        (["work"], "MODULE:APP"),
        (["completion", "tcsh"], "tcsh"),
    ],
)
def test_a_typing_error_is_explained_in_one_line(place: Place, argv: list[str], complaint: str) -> None:
    """A user must see the mistake and where to find help, not a page of usage."""
    answer = place.run(*argv)
    assert answer.code == 2
    error, hint = answer.err.strip().splitlines()
    assert error.startswith("error: ")
    assert complaint in error
    assert re.fullmatch(r"See: leaseway.* --help", hint)


@pytest.mark.parametrize("argv", [[], ["jobs"]])
def test_half_a_command_shows_its_help(place: Place, argv: list[str]) -> None:
    """A user who types a group without a subcommand looks for the list of subcommands."""
    answer = place.run(*argv)
    assert answer.code == 2
    assert "Commands:" in answer.err


def test_a_typing_error_is_json_if_json_was_asked_for(place: Place) -> None:
    """Parsing stops before --json is reached, and the error must be JSON all the same."""
    answer = place.run("lanes", "--colour", "--json")
    assert json.loads(answer.err)["error"]["exit_code"] == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_says_how_to_install_it(place: Place, shell: str) -> None:
    """The script is useless unless the shell loads it."""
    script = place.ok("completion", shell).out
    assert script.startswith("# ")
    assert f"leaseway completion {shell}" in script.splitlines()[0]
    assert "_LEASEWAY_COMPLETE" in script


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("leaseway jo", "jobs"), ("leaseway jobs re", "retry"), ("leaseway jobs list --sta", "--state")],
)
def test_the_shell_completes(place: Place, typed: str, expected: str) -> None:
    """Completion that raises an error breaks the user's shell prompt."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_LEASEWAY_COMPLETE": "bash_complete"}
    answer = place.process(**words)
    assert answer.code == 0, answer.err
    assert f"plain,{expected}\n" in answer.out


def test_a_command_that_is_not_installed_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is not installed must not look like a defect."""
    from leaseway.cli.lazy_groups import Lazy

    monkeypatch.setitem(COMMANDS, "demo", Lazy("leaseway.no_demo.main:command", "Gone."))
    answer = place.run("demo")
    assert answer.code == 2
    assert "has no command 'demo'" in answer.err


def test_a_command_that_is_nearly_right_is_guessed(place: Place) -> None:
    """A typing error must lead to the right command."""
    answer = place.run("sumbit")
    assert answer.code == 2
    assert "no such command 'sumbit'. Did you mean 'submit'?" in answer.err
    assert "Did you mean" not in place.run("zzz").err
