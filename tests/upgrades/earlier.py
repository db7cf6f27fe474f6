"""The code of earlier versions of the schema, from the history of this checkout.

Version n is the last commit that had n migrations, each of them as it is in the last commit of all: what was changed
before anybody had it was no version.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.archives import extract

from leaseway.stores.postgres import migrate

ROOT = Path(__file__).resolve().parents[2]
STORE = "src/leaseway/stores/postgres"
MIGRATIONS = f"{STORE}/sql/migrations"
NEEDED = ("src", "tests", "pyproject.toml")


class Earlier(NamedTuple):
    version: int
    commit: str


@cache
def earlier_versions() -> tuple[Earlier, ...]:
    """The newest first; none where there is no history."""
    head, newest = folders("HEAD"), len(migrate.versions())
    changes = git("log", "--first-parent", "--format=%H", "--", MIGRATIONS).decode().split()
    last_before_each = [f"{change}^" for change in changes]
    found: dict[int, str] = {}
    for commit in ("HEAD", *last_before_each):  # the first, if today's migration is not committed yet
        there = folders(commit)
        if there and there.items() <= head.items() and len(there) < newest:
            found.setdefault(len(there), commit)
    return tuple(Earlier(version, git("rev-parse", commit).decode().strip()) for version, commit in found.items())


def folders(commit: str) -> dict[str, str]:
    """The name of each migration in a commit, and git's name of all that is in it."""
    lines = git("ls-tree", commit, f"{MIGRATIONS}/").decode().splitlines()
    return {name: tree for _, _, tree, name in (line.split(maxsplit=3) for line in lines)}


def git(*arguments: str) -> bytes:
    """Its answer; nothing where git, the history or a commit before the first one is missing."""
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


class Tree:
    """An earlier version, unpacked."""

    def __init__(self, earlier: Earlier, folder: Path) -> None:
        self.version = earlier.version
        self.folder = folder
        archive = folder / "tree.tar"
        archive.write_bytes(git("archive", earlier.commit, *NEEDED))
        extract(archive, folder)

    def get_todays_schema(self) -> None:
        """Its code and its statements stay; the schemas that it makes are today's."""
        shutil.rmtree(self.folder / MIGRATIONS)
        shutil.copytree(ROOT / MIGRATIONS, self.folder / MIGRATIONS)
        path = self.folder / STORE / "migrate.py"
        text, count = re.subn(r"^NEEDS = .*$", f"NEEDS = {migrate.NEEDS}", path.read_text(), flags=re.MULTILINE)
        assert count == 1, f"{path} does not say what its versions need"
        path.write_text(text)
