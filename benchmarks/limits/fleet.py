"""Workers as the product has them: each with its own `Tokens`, on one limiter."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from leaseway.domain.limits.limit import Ask, Definition, Limit
from leaseway.domain.outcome import Deferred
from leaseway.worker.environment import World
from leaseway.worker.limiter_client import Tokens


class Worker(NamedTuple):
    """One that wants a token of each of these limits for every call."""

    tokens: Tokens
    asks: tuple[Ask, ...]

    async def call_may_leave(self) -> None:
        """Wait for a token that is good now."""
        while True:  # until the caller's time is over
            try:
                if self.tokens.is_good(await self.tokens.take(self.asks)):
                    return
            except Deferred as later:
                await asyncio.sleep((later.delay_us or 0) / 1_000_000)


def worker_of(world: World, definitions: Iterable[Definition]) -> Worker:
    known = list(definitions)
    asks = tuple(Ask(definition.name, definition.name) for definition in known)
    return Worker(Tokens(world, world.ids.worker(), known), asks)


def maps(*rates: str) -> Definition:
    return Limit("maps", *rates).definition
