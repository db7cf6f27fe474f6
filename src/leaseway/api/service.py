"""What routes work with: an app's store and clock, the door with its keys, the rates, the live stream."""

import asyncio
import secrets
from pathlib import Path

from fastapi import Request
from msgspec.structs import replace

from leaseway.api.auth.authentication import Door
from leaseway.api.auth.jwt import jwts_of
from leaseway.api.auth.tenant_rate_limit import Limiting
from leaseway.api.imports.monitor import ImportWatch
from leaseway.api.imports.registry import Imports
from leaseway.api.live.hub import Live
from leaseway.api.metrics.work_counters import Tally
from leaseway.api.settings import ServiceSettings
from leaseway.api.submit_batcher import Gathering
from leaseway.app import App


class Service:
    """`request.app.state.service`, from the start of the server to its end."""

    def __init__(self, app: App, settings: ServiceSettings) -> None:
        self.app = app
        # Cursors of one process are worth nothing to another, unless all are given the same secret.
        self.settings = settings if settings.cursor_secret else replace(settings, cursor_secret=secrets.token_bytes(32))
        self.world = app.world
        self.tally = Tally()
        self.gathering = Gathering(self.world.store, self.world.clock, self.tally)
        self.door: Door | None = None
        """None: without authentication, everybody is LOCAL."""
        self.limiting: Limiting | None = None
        self.stopping = asyncio.Event()
        """Streams end when it is set: nobody waits for them."""
        self.live = Live(self)
        folder = settings.imports
        self.imports = None if folder is None else Imports(Path(folder), app.url, app.limits_url)
        """None: it was started without any."""
        self.import_watch: ImportWatch | None = None

    async def open(self) -> None:
        store = await self.app.store()
        self.world = self.app.world
        await self.world.limiter.open()
        self.gathering = Gathering(store, self.world.clock, self.tally)
        if self.settings.auth:
            self.door = Door(store, self.world.clock, jwts_of(self.settings, self.world.clock))
            self.limiting = Limiting(self.world.limiter, self.world.clock, self.settings, self.world.ids.worker())
            await self.limiting.open()
        if self.imports is not None:
            self.import_watch = ImportWatch(self.imports, self.world.clock, self.stopping)
            self.import_watch.open()

    async def close(self) -> None:
        self.stopping.set()
        await self.live.close()
        await self.gathering.close()
        if self.import_watch is not None:
            await self.import_watch.close()
        if self.imports is not None:
            await self.imports.close()
        if self.limiting is not None:
            await self.limiting.close()
        if self.door is not None:
            await self.door.close()
        await self.app.close()


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service
