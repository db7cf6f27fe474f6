"""A service with some data, for the tests of the dashboard."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page
from tests.api.running_service import Served, run_service

from leaseway import App, Limit

HTML = "<b onclick=alert(1)>bold</b>"
"""A name that tries to be markup."""


def build_app(folder: Path) -> App:
    app = App(f"sqlite:///{folder / 'work.db'}")

    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job(attempts=1)
    async def broken(text: str = "") -> None:
        raise ValueError(text)

    @app.job(limits=[Limit("rare", "1/hour")], queue="slow")
    async def rare(n: int) -> int:
        return n

    return app


@asynccontextmanager
async def open_dashboard(folder: Path, page: Page, path: str = "/", **settings: Any) -> AsyncIterator[Served]:
    """Yields with the page open at `path`."""
    async with run_service(build_app(folder), **settings) as served:
        await open_at(page, served, path)
        yield served
        # Streams end with the page, so that the service does not have to wait for them.
        await page.goto("about:blank")


async def open_at(page: Page, served: Served, path: str) -> None:
    await page.goto(f"{served.url}/#{path}")
    await page.wait_for_selector("h1")


async def submit(served: Served, kind: str, count: int = 1, **more: Any) -> None:
    item = {"kind": kind, **more}
    reply = await served.client.post("/v1/jobs/bulk", json={"items": [item] * count})
    assert {each["status"] for each in reply.json()["items"]} == {202}, reply.text
