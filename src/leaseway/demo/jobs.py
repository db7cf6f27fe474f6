"""The demo's app: what a user of leaseway would write."""

from pathlib import Path
from typing import Any

from leaseway.app import App, JobHandle
from leaseway.demo.client import Client
from leaseway.flows.context import Context

LEASE_SECONDS = 2.0
"""Short, so that nobody waits long for the work of a dead worker."""


def store_url(file: Path) -> str:
    return f"sqlite:///{file}"


def app_at(file: Path, client: Client | None = None) -> tuple[App, JobHandle[..., Any]]:
    """The app with its one job. Who only submits needs no client."""
    app = App(store_url(file))

    @app.job(lease=LEASE_SECONDS, attempts=10, backoff=0.2)
    async def charge(ctx: Context, order: int) -> None:
        assert client is not None, "a worker needs the provider's port"
        await client.charge(order, ctx.call_key())

    return app, charge
