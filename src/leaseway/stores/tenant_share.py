"""The tenant for which a service calls its store, so that one tenant cannot use all connections of a pool."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

CALLING_TENANT: ContextVar[str | None] = ContextVar("leaseway_calling_tenant", default=None)
"""None: a worker, an operator, or work that serves several tenants. Such calls have no share."""


@contextmanager
def calls_for(tenant: str | None) -> Iterator[None]:
    """Calls in this block are made for the tenant. None: for all of them, for example to fill a cache."""
    token = CALLING_TENANT.set(tenant)
    try:
        yield
    finally:
        CALLING_TENANT.reset(token)


class TenantShares:
    """How many connections of one event loop the calls of each tenant use."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def turn(self, tenant: str | None) -> AsyncIterator[None]:
        """Wait for a place of the tenant. None: without a bound."""
        if tenant is None:
            yield
            return
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    async def acquire(self, tenant: str) -> None:
        self._users[tenant] = self._users.get(tenant, 0) + 1
        try:
            await self._slots.setdefault(tenant, asyncio.Semaphore(self.most)).acquire()
        except BaseException:
            self._leave(tenant)
            raise

    def release(self, tenant: str) -> None:
        self._slots[tenant].release()
        self._leave(tenant)

    def is_used_up(self, tenant: str) -> bool:
        return tenant in self._slots and self._slots[tenant].locked()

    def _leave(self, tenant: str) -> None:
        self._users[tenant] -= 1
        if not self._users[tenant]:
            del self._users[tenant], self._slots[tenant]
