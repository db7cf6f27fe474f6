"""Beside the loop: holds whose time is over, and books that nobody needs any more.

What was only held is free again; what may have been called is charged.
"""

from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.pace import jittered
from leaseway.flows.world import World

EVERY_SECONDS = 30.0
STEP = 500
STEPS_MAX = 20
BOOKS_KEEP_US = 400 * 86_400 * SECOND_US
"""For more than a year people may ask where the money went."""


async def keep_expiring(world: World) -> None:
    while True:  # until it is cancelled
        await world.clock.sleep(jittered(EVERY_SECONDS, world.chance.random()))
        try:
            await expire(world)
            await world.ledger.prune(BOOKS_KEEP_US, STEP)
        except TransientError as error:
            world.events.emit("store_unavailable", doing="expire holds", error=error)


async def expire(world: World) -> None:
    for _ in range(STEPS_MAX):
        expired = await world.ledger.expire(STEP)
        for budget, percent in expired.crossed:
            world.events.emit("budget_reached", budget=budget, percent=percent)
        if expired.count < STEP:
            break
