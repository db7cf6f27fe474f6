"""The service over each supported store: SQLite and PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.running_service import Served, run_service
from tests.postgres_tables import empty_schema

from leaseway import App
from leaseway.api.live import sse


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the first store query takes longer than the service's default timeout."""
    monkeypatch.setattr(sse, "FIRST_POLL_SECONDS", 60.0)


@pytest.fixture(params=["sqlite", "postgres"])
async def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """An empty store for this test only."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'work.db'}"
        return
    server = request.getfixturevalue("server")
    await empty_schema(server.url, "api")
    yield f"{server.url}?schema=api"


@pytest.fixture
async def app(store_url: str) -> App:
    """An app with two kinds: `add`, and `broken`, which always fails."""
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
    """A service without authentication, over SQLite and over PostgreSQL."""
    async with run_service(app) as served:
        yield served


@pytest.fixture
async def served_with_keys(app: App) -> AsyncIterator[Served]:
    """A service with authentication. Create keys in `served.service.world.store`."""
    async with run_service(app, auth=True) as served:
        yield served
