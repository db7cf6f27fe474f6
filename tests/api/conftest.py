"""The service over each store that it is meant for: in a file, and in PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.serving import Served, serving
from tests.postgres_tables import empty_schema

from leaseway import App
from leaseway.api.live import sse


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has much else to do, a first look takes longer than a service lets a client wait for it."""
    monkeypatch.setattr(sse, "FIRST_POLL_SECONDS", 60.0)


@pytest.fixture(params=["sqlite", "postgres"])
async def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """An empty store, of this test alone."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'work.db'}"
        return
    server = request.getfixturevalue("server")
    await empty_schema(server.url, "api")
    yield f"{server.url}?schema=api"


@pytest.fixture
async def app(store_url: str) -> App:
    """With two jobs: `add`, and `broken`, which fails."""
    app = App(store_url)

    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job(attempts=1)
    async def broken(text: str = "") -> None:
        raise ValueError(text)

    return app


@pytest.fixture
async def served(app: App) -> AsyncIterator[Served]:
    """Without authentication, over SQLite and over PostgreSQL."""
    async with serving(app) as served:
        yield served


@pytest.fixture
async def served_with_keys(app: App) -> AsyncIterator[Served]:
    """With authentication. Make keys in `served.service.world.store`."""
    async with serving(app, auth=True) as served:
        yield served
