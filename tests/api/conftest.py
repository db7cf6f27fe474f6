"""The service over SQLite and PostgreSQL, and over MongoDB where a module asks for it."""

from collections.abc import AsyncIterator

import pytest
from tests.api.running_service import Served, run_service
from tests.api.store_urls import store_url as store_url

from leaseway import App
from leaseway.api.live import delivery


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the first store query takes longer than the service's default timeout."""
    monkeypatch.setattr(delivery, "FIRST_POLL_SECONDS", 60.0)


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
    """A service without authentication."""
    async with run_service(app) as served:
        yield served


@pytest.fixture
async def served_with_keys(app: App) -> AsyncIterator[Served]:
    """A service with authentication. Create keys in `served.service.world.store`."""
    async with run_service(app, auth=True) as served:
        yield served
