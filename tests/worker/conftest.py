"""An app with its store in memory, and the same app with its store in SQLite; for some tests also in PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.mongodb_collections import empty_database
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
    async with App(await empty_store(request, tmp_path)) as app:
        yield app


@pytest.fixture(params=["memory", "sqlite", "postgres", "mongodb"])
async def app_anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    """Also in MongoDB, whose tests take longer."""
    async with App(await empty_store(request, tmp_path)) as app:
        yield app


async def empty_store(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "postgres":
        server = request.getfixturevalue("server").url
        await empty_schema(server, SCHEMA)
        return f"{server}?schema={SCHEMA}"
    if request.param == "mongodb":
        url: str = request.getfixturevalue("mongodb").url.replace("/leaseway", f"/{SCHEMA}")
        await empty_database(url)
        return url
    return "memory://" if request.param == "memory" else f"sqlite:///{folder}/work.db"
