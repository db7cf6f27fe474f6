"""The code of an earlier version passes its own suite on the schema of today: what it uses is there, and does what it
did."""

import os
import re
import subprocess
import sys

import pytest
from tests.upgrades.earlier import Tree, earlier_versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EVERYTHING = "LEASEWAY_UPGRADES" in os.environ
"""Set by `./dev upgrades`: the suites of all earlier versions, whole. Otherwise the promises of the last one."""
SUITES = (
    ["tests/stores", "tests/limits", "tests/budgets"]
    if EVERYTHING
    else ["tests/stores/test_contract.py", "tests/stores/test_state_machine.py"]
)


def test_the_code_of_an_earlier_version_keeps_its_promises_on_todays_schema(tree: Tree) -> None:
    if not EVERYTHING and tree.version < earlier_versions()[0].version:
        pytest.skip("./dev upgrades runs it: the one before today's stands for all")
    tree.get_todays_schema()
    answer = suite_of(tree)
    assert answer.returncode == 0, f"version {tree.version} on today's schema:\n{answer.stdout[-8000:]}"
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert passed is not None
    assert int(passed[1]) > 100, "that was hardly its suite"


def suite_of(tree: Tree) -> subprocess.CompletedProcess[str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-k", "postgres", "-p", "no:cacheprovider", *SUITES]
    return subprocess.run(
        command,
        cwd=tree.folder,
        env={**ours, "PYTHONPATH": str(tree.folder / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
