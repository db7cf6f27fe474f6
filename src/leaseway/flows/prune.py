"""Beside the loop: finished jobs and expired keys leave the store when they are old enough, in bounded steps."""

from leaseway.domain.errors import TransientError
from leaseway.domain.pace import WorkerSettings, jittered
from leaseway.flows.world import World

EVERY_SECONDS = 300.0
STEP = 500
STEPS_MAX = 200
PAUSE_SECONDS = 0.02
"""Between two steps others may write."""


async def keep_pruning(world: World, settings: WorkerSettings) -> None:
    while True:  # until it is cancelled
        await world.clock.sleep(jittered(EVERY_SECONDS, world.chance.random()))
        try:
            await prune(world, settings.keep_us)
        except TransientError as error:
            world.events.emit("store_unavailable", doing="prune", error=error)


async def prune(world: World, keep_us: int) -> int:
    """Everything that is old enough, step by step; how many jobs."""
    total = 0
    for _ in range(STEPS_MAX):
        count = await world.store.prune(keep_us, STEP)
        total += count
        if count < STEP:
            break
        await world.clock.sleep(PAUSE_SECONDS)
    if total:
        world.events.emit("pruned", jobs=total)
    return total
