"""The checkout itself: what a stranger clones must not depend on the machine it was made on."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MACHINE_PATH = r"(^|[^[:alnum:]._~-])/(root|home|Users|tmp|opt|mnt|srv|work)/"
INDEX_SETTING = r"(index[-_]url|default[-_]index|find[-_]links)[\"']?[[:space:]]*="
SIMPLE_INDEX = r"https?://[^[:space:]\"'/]+/([^[:space:]\"']*/)?simple([^[:alnum:]]|$)"


def grep(pattern: str, *pathspecs: str) -> list[str]:
    """Search every file that is or could be committed, in a clone and in an unpacked archive alike."""
    command = ["git", "grep", "--no-index", "--exclude-standard", "-nIiE", "-e", pattern, "--", *pathspecs]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    return found.stdout.splitlines()


def test_the_lock_names_only_public_hosts() -> None:
    """An index setting of one machine must not be written into everybody's lock file."""
    hosts = set(re.findall(r'https?://([^/"]+)', (ROOT / "uv.lock").read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_search_sees_the_files_of_the_checkout() -> None:
    """The two tests below pass on an empty answer, so the search must be known to find what is there."""
    assert any(line.startswith("pyproject.toml:") for line in grep('^name = "leaseway"$', "."))


def test_no_file_names_a_path_of_one_machine() -> None:
    """A path that exists on one machine only breaks the command or the example for everybody else."""
    assert grep(MACHINE_PATH, ".") == []


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is each machine's own setting; a private registry is not for publication."""
    assert grep(INDEX_SETTING, ".") == []
    assert [line for line in grep(SIMPLE_INDEX, ".") if "https://pypi.org/simple" not in line] == []


def test_dev_help_lists_every_command() -> None:
    """A command that the help does not name is one that nobody finds."""
    labels = re.findall(r"^  ([a-z]+)(?: \||\))", (ROOT / "dev").read_text(), re.MULTILINE)
    text = subprocess.run(["./dev", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"check", "help", "test"} <= set(labels)
    assert re.findall(r"^  \./dev (\w+)", text, re.MULTILINE) == labels


def test_dev_refuses_an_unknown_command_and_says_what_there_is() -> None:
    """A typing error must neither pass for success nor leave the reader without the list."""
    answer = subprocess.run(["./dev", "tset"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "tset" in answer.stderr
    assert "./dev test" in answer.stderr
