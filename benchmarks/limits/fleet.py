"""Workers as in production: each with its own `LimiterClient`, on one limiter."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from leaseway.domain.limits.limit import Limit, LimitDefinition, PermitRequest
from leaseway.domain.outcome import Deferred
from leaseway.worker.environment import Environment
from leaseway.worker.limiter_client import LimiterClient


class Worker(NamedTuple):
    """A worker that needs a permit of each of these limits for every call."""

    tokens: LimiterClient
    asks: tuple[PermitRequest, ...]

    async def call_may_leave(self) -> None:
        """Wait for a permit that is valid now."""
        while True:  # until the caller's time is over
            try:
                if self.tokens.is_valid(await self.tokens.take(self.asks)):
                    return
            except Deferred as later:
                await asyncio.sleep((later.delay_us or 0) / 1_000_000)


def worker_of(world: Environment, definitions: Iterable[LimitDefinition]) -> Worker:
    known = list(definitions)
    asks = tuple(PermitRequest(definition.name, definition.name) for definition in known)
    return Worker(LimiterClient(world, world.ids.worker(), known), asks)


def maps(*rates: str) -> LimitDefinition:
    return Limit("maps", *rates).definition
