"""A proxy that stops after a number of requests, so that a worker can be killed at a known moment.

worker ─► proxy ─► server. The proxy changes nothing, and counts what passes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import ClientSession, web

UNCHANGED = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
"""Headers that belong to one connection; the host is passed apart, because servers write links with it."""


class GatedProxy:
    def __init__(self, upstream: str, session: ClientSession) -> None:
        self.url = ""
        self.requests = 0
        self._upstream, self._session = upstream, session
        self._gate_at: int | None = None
        self._answers_first = False
        self._reached, self._opened = asyncio.Event(), asyncio.Event()

    def close_after(self, requests: int, *, answers_first: bool) -> None:
        """Hold the request with this number from now on. `answers_first`: pass its reply, and hold the next ones."""
        self._gate_at, self._answers_first = self.requests + requests, answers_first
        self._reached, self._opened = asyncio.Event(), asyncio.Event()

    def is_reached(self) -> bool:
        return self._reached.is_set()

    def open(self) -> None:
        self._gate_at = None
        self._opened.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        number, gate = self.requests, self._gate_at
        if gate is not None and (number > gate or (number == gate and not self._answers_first)):
            self._reached.set()
            await self._opened.wait()
            return web.Response(status=503)  # its client has been killed
        reply = await self._forward(request)
        if number == gate:
            await reply.prepare(request)
            await reply.write_eof()
            self._reached.set()
        return reply

    async def _forward(self, request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in UNCHANGED}
        url = f"{self._upstream}{request.raw_path}"
        async with self._session.request(
            request.method, url, headers={**headers, "Host": request.host}, data=await request.read(),
            allow_redirects=False,
        ) as found:  # fmt: skip
            kept = {name: value for name, value in found.headers.items() if name.lower() not in UNCHANGED}
            return web.Response(status=found.status, headers=kept, body=await found.read())


@asynccontextmanager
async def gated_proxy(upstream: str, port: int = 0) -> AsyncIterator[GatedProxy]:
    async with ClientSession(auto_decompress=False) as session:
        it = GatedProxy(upstream, session)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", it.handle)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        it.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield it
        finally:
            it.open()
            await runner.cleanup()
