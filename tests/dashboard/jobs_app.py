"""An app with jobs that succeed, jobs that fail, and shards of an import."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page
from tests.api.running_service import Served, run_service

from leaseway import App

MARKUP = '<img src=x onerror="document.title=1">'
"""A payload that tries to be HTML."""


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'work.db'}"


def build_jobs_app(store_url: str) -> App:
    app = App(store_url)

    @app.job
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.job(attempts=1)
    async def broken(text: str = "") -> None:
        raise TimeoutError("nobody answered") if text == "late" else ValueError(text)

    @app.job(name="import:ocm", queue="imports:ocm", attempts=1)
    async def shard(run: str, shard: str) -> dict[str, Any]:
        if "bad" in shard:
            raise ValueError(f"{run}: the source refused it")
        return {"state": "done", "pages": 2, "rows": 70, "children": [], "why": None}

    return app


@asynccontextmanager
async def serve_jobs_app(folder: Path, page: Page) -> AsyncIterator[Served]:
    async with run_service(build_jobs_app(sqlite_url(folder))) as served:
        yield served
        # Streams end with the page, so that the service does not have to wait for them.
        await page.goto("about:blank")


async def submit_job(served: Served, kind: str, queue: str | None = None, **arguments: object) -> str:
    """The id of the job."""
    body = {"kind": kind, "arguments": arguments, **({"queue": queue} if queue else {})}
    answer = await served.client.post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])
