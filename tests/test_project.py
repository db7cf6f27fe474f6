"""The checkout itself: a clone must not depend on the machine on which it was made."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.programs import ALLOWED, OPTIONAL

ROOT = Path(__file__).resolve().parent.parent

MACHINE_PATH = r"(^|[^\w.~-])/(root|home|Users|tmp|opt|mnt|srv|work)/"
INDEX_SETTING = r"(index[-_]url|default[-_]index|find[-_]links)[\"']?\s*="
SIMPLE_INDEX = r"https?://[^\s\"'/]+/([^\s\"']*/)?simple(\W|$)"


def search(pattern: str, root: Path = ROOT) -> list[str]:
    """Search every text file that is or could be committed, in a clone and in an unpacked archive alike."""
    expression = re.compile(pattern, re.IGNORECASE)
    return [
        f"{path.relative_to(root)}:{number}:{line}"
        for path in committable_files(root)
        for number, line in enumerate(text_lines(path), 1)
        if expression.search(line)
    ]


def committable_files(root: Path) -> Iterator[Path]:
    ignored = ignore_patterns(root)
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != ".git" and not is_ignored(f"{name}/", ignored))
        yield from (Path(folder, name) for name in sorted(files) if name != ".git" and not is_ignored(name, ignored))


def ignore_patterns(root: Path) -> list[str]:
    """The lines of .gitignore. Only names are understood, such as `build/` and `*.db`; other patterns are an error."""
    lines = (root / ".gitignore").read_text("utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    unknown = [each for each in patterns if each.startswith("!") or "/" in each.removesuffix("/") or "**" in each]
    assert not unknown, f"teach tests/test_project.py to read these lines of .gitignore: {unknown}"
    return patterns


def is_ignored(name: str, patterns: list[str]) -> bool:
    """Whether a file, or a folder whose name ends in a slash, matches a pattern."""
    return any(fnmatch(name, each) or fnmatch(name.removesuffix("/"), each) for each in patterns)


def text_lines(path: Path) -> list[str]:
    """The lines of a text file; none for a binary file, for which a null byte is the sign as in git."""
    content = path.read_bytes() if path.is_file() else b""
    return [] if b"\0" in content[:8000] else content.decode("utf-8", "replace").splitlines()


def test_the_lock_names_only_public_hosts() -> None:
    """The index setting of one machine must not end up in the lock file, which everybody uses."""
    hosts = set(re.findall(r'https?://([^/"]+)', (ROOT / "uv.lock").read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_search_finds_the_files_of_the_checkout() -> None:
    """The tests below pass if the search finds nothing, so it must be shown to find what is there."""
    assert any(line.startswith("pyproject.toml:") for line in search('^name = "leaseway"$'))
    assert any(line.startswith("docs/") for line in search("^# "))


def test_the_search_leaves_out_ignored_and_binary_files(tmp_path: Path) -> None:
    """An environment in the checkout is full of machine paths; they are not part of the project."""
    for name in ("a.txt", "b.db", ".venv/c.txt", "d/e.txt", "d/__pycache__/f.txt", ".git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one\nTwo\n")
    (tmp_path / "binary").write_bytes(b"two\0")
    (tmp_path / ".gitignore").write_text("# a comment\n.venv/\n__pycache__/\n*.db\n")
    assert search("two", tmp_path) == ["a.txt:2:Two", "d/e.txt:2:Two"]


def test_no_file_contains_a_path_of_one_machine() -> None:
    """A command or an example with such a path fails on every other machine."""
    assert search(MACHINE_PATH) == []


def test_tests_close_the_sqlite_files_that_they_open() -> None:
    """`with` commits a connection and does not close it: Python 3.13 warns of it in whatever test runs then."""
    described = "tests/sqlite_files.py:13:    `with"
    assert [line for line in search("with sqlite3[.]connect") if not line.startswith(described)] == []


def test_no_file_contains_a_package_registry() -> None:
    """Each machine has its own registry settings, and a private registry must not be published."""
    assert search(INDEX_SETTING) == []
    assert [line for line in search(SIMPLE_INDEX) if "https://pypi.org/simple" not in line] == []


def test_the_suite_can_start_only_programs_of_a_bare_machine() -> None:
    """README.md promises that python3 with venv is enough; a test that uses git or curl would break that."""
    ours, *others = os.environ["PATH"].split(os.pathsep)
    assert Path(ours) == Path(sys.executable).parent
    found = {path.name for folder in others for path in Path(folder).iterdir()}
    assert found <= ALLOWED | OPTIONAL
    assert {"sh", "cat", "sleep"} <= found


@pytest.mark.parametrize("name", ["git", "curl", "ps", "wget", "gcc", "make", "perl", "psql", "jq"])
def test_a_program_that_a_bare_machine_lacks_is_not_found(name: str) -> None:
    """The limited PATH must also hold in the processes that tests start."""
    assert shutil.which(name) is None
    shell = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, text=True, timeout=10, check=False)
    assert shell.returncode != 0
    assert shell.stdout == ""


def test_dev_help_lists_every_command() -> None:
    """Users find a command only if the help lists it."""
    labels = re.findall(r"^  ([a-z]+)(?: \||\))", (ROOT / "dev").read_text(), re.MULTILINE)
    text = run_dev("help").stdout
    assert {"check", "help", "test"} <= set(labels)
    assert re.findall(r"^  \./dev (\w+)", text, re.MULTILINE) == labels


def test_dev_rejects_an_unknown_command_and_lists_the_commands() -> None:
    """A mistyped command must fail, and the message must show the right spelling."""
    answer = run_dev("tset")
    assert answer.returncode == 2
    assert "tset" in answer.stderr
    assert "./dev test" in answer.stderr


def run_dev(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["./dev", command], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


def test_the_package_imports_nothing_from_the_repository() -> None:
    """The wheel contains src only: an import of tests, chaos or benchmarks fails for everyone who installs it."""
    own = re.compile(r"^\s*(?:from|import) (tests|chaos|benchmarks)\b", re.MULTILINE)
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert len(sources) > 100
    assert [str(path) for path in sources if own.search(path.read_text("utf-8"))] == []


def test_the_package_contains_no_campaigns() -> None:
    """Sabotage and chaos remove safeguards; code that can do so must not be installed with the product."""
    names = {path.stem for path in (ROOT / "src").rglob("*.py")}
    assert [name for name in sorted(names) if "sabotage" in name or "chaos" in name] == []
