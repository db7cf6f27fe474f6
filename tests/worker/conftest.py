"""An app with its store in memory, and the same app with its store in SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leaseway import App


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db"


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with App(url) as app:
        yield app


@pytest.fixture
async def file_app(tmp_path: Path) -> AsyncIterator[App]:
    """For tests that manipulate the database file."""
    async with App(f"sqlite:///{tmp_path}/work.db") as app:
        yield app
