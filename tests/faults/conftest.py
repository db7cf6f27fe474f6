"""Real processes, real files, real signals."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A laboratory whose store must be sound when the test is over, whatever the test was about."""
    lab = Lab(tmp_path)
    try:
        yield lab
    finally:
        lab.close()
        for process in lab.processes:
            if said := process.said():
                print(f"--- process {process.pid} (exit {process.exit_code}) said:\n{said[-4000:]}")
    lab.judge()
