"""Fixtures for tests with real processes, files and signals."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.harness import Lab, checked


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with checked(Lab(tmp_path)) as lab:
        yield lab
