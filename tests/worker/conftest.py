"""An app with its store in memory, and the same app with its store in SQLite; for some tests also in PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.postgres_tables import empty_schema

from leaseway import App

SCHEMA = "worker_tests"


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


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def every_app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    """For promises that every store keeps."""
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/work.db"}.get(request.param, "")
    if request.param == "postgres":
        server = request.getfixturevalue("server").url
        await empty_schema(server, SCHEMA)
        url = f"{server}?schema={SCHEMA}"
    async with App(url) as app:
        yield app
