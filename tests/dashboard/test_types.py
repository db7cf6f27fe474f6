"""The pages are plain JavaScript with types in comments, which a checker reads as strictly as mypy reads Python."""

import subprocess
from pathlib import Path

from tests.npm_packages import node

import leaseway

PROJECT = Path(leaseway.__file__).parent / "dashboard" / "jsconfig.json"
CHECK_SECONDS_MAX = 300


def test_the_types_of_the_pages_fit(typescript: Path) -> None:
    """A misspelled field in JavaScript would only show in the browser of a user."""
    command = [str(node()), str(typescript), "--noEmit", "--pretty", "false", "-p", str(PROJECT)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS_MAX, check=False)
    assert checked.stdout == ""
    assert checked.returncode == 0, checked.stderr
