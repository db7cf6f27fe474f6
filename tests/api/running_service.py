"""A running service for tests: a real server on a free loopback port, and a client for it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2
from fastapi import FastAPI

from leaseway import App
from leaseway.api.app import build_app
from leaseway.api.server import Server, bind_socket, socket_url
from leaseway.api.service import Service
from leaseway.api.settings import ServiceSettings

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""The tests use plain HTTP; loading the system's CA certificates for each client would take longer than many tests."""


class Served(NamedTuple):
    url: str
    """http://127.0.0.1:port"""
    app: App
    api: FastAPI
    service: Service
    client: httpx2.AsyncClient
    """A client without a credential."""

    def with_key(self, key: str) -> httpx2.AsyncClient:
        """Return another client. Close it: `async with served.with_key(key) as client`."""
        return client_of(self.url, {"Authorization": f"Bearer {key}"})

    async def settle(self, **settings: Any) -> None:
        """Run the pending jobs with a worker in this process."""
        await self.app.run_worker(until_empty=True, **settings)


@asynccontextmanager
async def run_service(app: App, **settings: Any) -> AsyncIterator[Served]:
    """Start a service, with `auth=False` by default."""
    listening = bind_socket("127.0.0.1", 0)
    api = build_app(app, ServiceSettings(**{"auth": False, "port": listening.getsockname()[1], **settings}))
    server = Server(api, timeout_graceful_shutdown=5)
    running = asyncio.get_running_loop().create_task(server.serve([listening]))
    url = socket_url(listening)
    try:
        while not server.started and not running.done():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.002)
        assert server.started, "it ended before it had begun"
        async with client_of(url) as client:
            yield Served(url, app, api, api.state.service, client)
    finally:
        server.should_exit = True
        await running


def client_of(url: str, headers: dict[str, str] | None = None) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False, verify=NO_TLS)
