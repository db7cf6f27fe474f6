"""The URL of an empty store for each test of the service: SQLite and PostgreSQL.

A module whose subject is stored data also runs on MongoDB, with the fixture of `every_store`.
"""

from pathlib import Path

import pytest
from tests.mongodb_collections import empty_database
from tests.postgres_tables import empty_schema

STORES = ("sqlite", "postgres")


async def empty_store(store: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of an empty store. Tests of one process share a server, one after the other."""
    if store == "sqlite":
        return f"sqlite:///{folder / 'work.db'}"
    if store == "mongodb":
        url: str = request.getfixturevalue("mongodb").url.replace("/leaseway", "/api")
        await empty_database(url)
        return url
    server = request.getfixturevalue("server")
    await empty_schema(server.url, "api")
    return f"{server.url}?schema=api"


@pytest.fixture(params=STORES)
async def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return await empty_store(request.param, request, tmp_path)
