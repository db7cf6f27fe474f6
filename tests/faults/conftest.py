"""Real processes, real files, real signals."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.harness import Lab, judged


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with judged(Lab(tmp_path)) as lab:
        yield lab
