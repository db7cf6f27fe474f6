"""The state that routes share: the app with its store, authentication, rate limits, imports and the live stream."""

import asyncio
import secrets
from pathlib import Path

from fastapi import Request
from msgspec.structs import replace

from leaseway.api.auth.authentication import Authenticator
from leaseway.api.auth.jwt import jwt_verifier
from leaseway.api.auth.tenant_rate_limit import TenantRateLimit
from leaseway.api.imports.monitor import ImportMonitor
from leaseway.api.imports.registry import ImportRegistry
from leaseway.api.live.hub import LiveHub
from leaseway.api.metrics.job_counters import WorkCounters
from leaseway.api.settings import ServiceSettings
from leaseway.api.submit_batcher import SubmitBatcher
from leaseway.app import App


class Service:
    """`request.app.state.service`, from the start of the server to its end."""

    def __init__(self, app: App, settings: ServiceSettings) -> None:
        self.app = app
        # Processes accept each other's cursors only if they are given the same secret.
        self.settings = settings if settings.cursor_secret else replace(settings, cursor_secret=secrets.token_bytes(32))
        self.world = app.world
        self.work_counters = WorkCounters()
        self.submitter = SubmitBatcher(self.world.store.jobs, self.world.clock, self.work_counters)
        self.authenticator: Authenticator | None = None
        """None: authentication is disabled, and every caller is LOCAL."""
        self.rate_limit: TenantRateLimit | None = None
        self.stopping = asyncio.Event()
        """Set when the service shuts down; streams end then."""
        self.live = LiveHub(self)
        folder = settings.imports
        self.imports = None if folder is None else ImportRegistry(Path(folder), app.url, app.limits_url)
        """None: the service was started without imports."""
        self.import_monitor: ImportMonitor | None = None

    async def open(self) -> None:
        store = await self.app.store()
        self.world = self.app.world
        await self.world.limiter.open()
        self.submitter = SubmitBatcher(store.jobs, self.world.clock, self.work_counters)
        if self.settings.auth:
            jwts, holder = jwt_verifier(self.settings, self.world.clock), self.world.ids.worker()
            self.authenticator = Authenticator(store, self.world.clock, jwts)
            self.rate_limit = TenantRateLimit(self.world.limiter, self.world.clock, self.settings, holder)
            await self.rate_limit.open()
        if self.imports is not None:
            self.import_monitor = ImportMonitor(self.imports, self.world.clock, self.stopping)
            self.import_monitor.open()

    async def close(self) -> None:
        self.stopping.set()
        await self.live.close()
        await self.submitter.close()
        if self.import_monitor is not None:
            await self.import_monitor.close()
        if self.imports is not None:
            await self.imports.close()
        if self.rate_limit is not None:
            await self.rate_limit.close()
        if self.authenticator is not None:
            await self.authenticator.close()
        await self.app.close()


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service
