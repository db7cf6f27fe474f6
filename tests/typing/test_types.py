"""A user's project under mypy --strict and pyright: mistakes in calls of submit, bind and ctx are found, and nothing is
reported in correct calls.

`user_project` is that project. A line with a mistake ends in a comment that begins with "wrong:".
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "user_project"
MISTAKES_MIN = 20
CHECK_SECONDS_MAX = 300

Lines = set[tuple[str, int]]


def marked_lines() -> Lines:
    return {
        (path.name, number)
        for path in PROJECT.glob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if "  # wrong: " in line
    }


def mypy_lines(project: Path) -> Lines:
    options = ["--strict", "--config-file=", "--cache-dir=cache", "--output=json"]
    ended = run([sys.executable, "-m", "mypy", *options, "."], project)
    found = [json.loads(line) for line in ended.splitlines() if line.startswith("{")]
    return {(Path(each["file"]).name, each["line"]) for each in found if each["severity"] == "error"}


def pyright_lines(project: Path) -> Lines:
    (project / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [sys.executable, "-m", "basedpyright", "--outputjson", f"--pythonpath={sys.executable}"]
    found = json.loads(run(command, project))["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found if each["severity"] == "error"
    }


def run(command: list[str], project: Path) -> str:
    return subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=CHECK_SECONDS_MAX, check=False
    ).stdout


@pytest.mark.timeout(CHECK_SECONDS_MAX)
@pytest.mark.parametrize("check", [mypy_lines, pyright_lines])
def test_a_checker_finds_every_mistake_and_nothing_else(check: Callable[[Path], Lines], tmp_path: Path) -> None:
    """A wrong call must show in the editor, and a correct one must never be an error there."""
    marked = marked_lines()
    assert len(marked) >= MISTAKES_MIN
    found = check(Path(shutil.copytree(PROJECT, tmp_path / "project")))
    assert sorted(marked - found) == [], "mistakes that were not found"
    assert sorted(found - marked) == [], "correct lines that were reported"
