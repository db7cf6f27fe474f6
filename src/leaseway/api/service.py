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
from leaseway.api.live.job_waits import JobWaits
from leaseway.api.metering import Metering
from leaseway.api.metrics import WorkCounters
from leaseway.api.request_body import BodyRoom
from leaseway.api.settings import ServiceSettings
from leaseway.api.submit_batcher import SubmitBatcher
from leaseway.api.tenant_quotas import TenantQuotas
from leaseway.app import App
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import Role
from leaseway.scaling.pools import PoolMonitor, parse_pools
from leaseway.stores.tenant_share import TenantShares
from leaseway.worker.environment import cancel_and_wait, jitter
from leaseway.worker.maintenance import EXPIRE_EVERY_SECONDS, bring_forward


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
        self.rate_limits: list[TenantRateLimit] = []
        """At most one of them applies to a caller."""
        self.quotas = TenantQuotas(self.world.store, self.world.clock, settings.quotas)
        self.metering = Metering(lambda: self.world)
        self.body_room = BodyRoom()
        self.searches = TenantShares(1)
        self.stopping = asyncio.Event()
        """Set when the service shuts down; streams end then."""
        self.job_waits = JobWaits(self.world.store, self.world.clock, self.stopping)
        self.live = LiveHub(self)
        folder = settings.imports
        self.imports = None if folder is None else ImportRegistry(Path(folder), app.url, app.limits_url)
        """None: the service was started without imports."""
        self.import_monitor: ImportMonitor | None = None
        self._bringing_forward: asyncio.Task[None] | None = None
        pools = settings.pools or parse_pools((), app.queues())
        self.pools = {pool.name: PoolMonitor(pool, lambda: self.world) for pool in pools}

    async def open(self) -> None:
        store = await self.app.store()
        self.world = self.app.world
        await self.world.limiter.open()
        self.submitter = SubmitBatcher(store.jobs, self.world.clock, self.work_counters)
        self.job_waits = JobWaits(store, self.world.clock, self.stopping)
        self.quotas = TenantQuotas(store, self.world.clock, self.settings.quotas)
        if self.settings.auth:
            jwts, holder = jwt_verifier(self.settings, self.world.clock), self.world.ids.worker()
            self.authenticator = Authenticator(store, self.world.clock, jwts)
            self.rate_limits = [
                TenantRateLimit(self.world.limiter, self.world.clock, self.settings, holder, role)
                for role in (Role.TENANT, Role.WORKER)
            ]
            for rate_limit in self.rate_limits:
                await rate_limit.open()
        if self.imports is not None:
            self.import_monitor = ImportMonitor(self.imports, self.world.clock, self.stopping)
            self.import_monitor.open()
        # This service owns the task and cancels it when it closes.
        self._bringing_forward = asyncio.get_running_loop().create_task(self._bring_forward())

    async def _bring_forward(self) -> None:
        """Workers over HTTP do not see the holds of other jobs, so the service brings forward the jobs that fit into an
        earlier window of their budget by now."""
        clock, chance = self.world.clock, self.world.chance
        while True:  # until it is cancelled
            await clock.sleep(jitter(EXPIRE_EVERY_SECONDS, chance.random()))
            try:
                await bring_forward(self.world)
            except LeasewayError as error:
                self.world.events.emit("store_unavailable", doing="budgets", error=error)

    async def close(self) -> None:
        self.stopping.set()
        await cancel_and_wait(self._bringing_forward)
        await self.job_waits.close()
        await self.live.close()
        await self.submitter.close()
        if self.import_monitor is not None:
            await self.import_monitor.close()
        if self.imports is not None:
            await self.imports.close()
        for rate_limit in self.rate_limits:
            await rate_limit.close()
        if self.authenticator is not None:
            await self.authenticator.close()
        await self.app.close()


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service
