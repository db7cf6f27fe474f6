"""Beside the loop: schedules submit their jobs, once per fire time, however many processes run.

Every worker tries. The store lets one of them move a schedule from the place it has seen to the next, and the job's
key carries the fire time besides.
"""

from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime

from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import NewJob
from leaseway.domain.kind import Kind
from leaseway.domain.schedule import Schedule, due_fires, next_fire
from leaseway.domain.submission import parse_options
from leaseway.domain.worker_pacing import WorkerSettings, jitter
from leaseway.ports.clock import Ids
from leaseway.worker.environment import Environment
from leaseway.worker.submit import KEY_KEEP_US, Bound

LOOK_SECONDS_MAX = 30.0
FAILED_SECONDS = 2.0
FIRE_TIME = "fire_time"
"""A scheduled function with a parameter of this name is told when it was to start."""


async def keep_firing(world: Environment, schedules: Sequence[Schedule], kinds: Mapping[str, Kind]) -> None:
    declared = False
    while True:  # until it is cancelled
        try:
            if not declared:
                await world.store.declare(schedules)
                declared = True
            seconds = await fire_due(world, {schedule.name for schedule in schedules}, kinds)
        except TransientError as error:
            world.events.emit("store_unavailable", doing="cron", error=error)
            seconds = FAILED_SECONDS
        await world.clock.sleep(seconds)


async def fire_due(world: Environment, declared: Set[str], kinds: Mapping[str, Kind]) -> float:
    """Fire what is due of our own schedules; the seconds until the next look."""
    wait = LOOK_SECONDS_MAX
    for row in await world.store.schedules():
        kind = kinds.get(row.schedule.kind)
        if kind is None or row.paused or row.schedule.name not in declared:
            continue
        fires = due_fires(row.schedule, row.seen, row.now)
        if fires:
            jobs = [scheduled_job(row.schedule, kind, fire, world.ids) for fire in fires]
            if await world.store.fire(row.schedule.name, row.seen, fires[-1], jobs):
                world.events.emit("cron_fired", schedule=row.schedule.name, jobs=len(jobs))
        coming = next_fire(row.schedule, row.now)
        if coming is not None:
            wait = min(wait, (coming - row.now) / SECOND_US)
    return max(wait, 0.01)


def scheduled_job(schedule: Schedule, kind: Kind, fire: Instant, ids: Ids) -> NewJob:
    at = datetime.fromtimestamp(fire / SECOND_US, UTC).isoformat()
    wants_time = FIRE_TIME in kind.Arguments.__struct_fields__
    payload = kind.encode({FIRE_TIME: at} if wants_time else {})
    return Bound(kind, payload, parse_options({"key": f"cron:{schedule.name}:{at}"})).new(ids, KEY_KEEP_US)


PRUNE_EVERY_SECONDS = 300.0
PRUNE_STEP = 500
PRUNE_STEPS_MAX = 200
PAUSE_SECONDS = 0.02
"""Between two steps others may write."""


async def keep_pruning(world: Environment, settings: WorkerSettings) -> None:
    while True:  # until it is cancelled
        await world.clock.sleep(jitter(PRUNE_EVERY_SECONDS, world.chance.random()))
        try:
            await prune(world, settings.keep_us)
        except TransientError as error:
            world.events.emit("store_unavailable", doing="prune", error=error)


async def prune(world: Environment, keep_us: int) -> int:
    """Everything that is old enough, step by step; how many jobs."""
    total = 0
    for _ in range(PRUNE_STEPS_MAX):
        count = await world.store.prune(keep_us, PRUNE_STEP)
        total += count
        if count < PRUNE_STEP:
            break
        await world.clock.sleep(PAUSE_SECONDS)
    if total:
        world.events.emit("pruned", jobs=total)
    return total


EXPIRE_EVERY_SECONDS = 30.0
EXPIRE_STEP = 500
EXPIRE_STEPS_MAX = 20
BOOKS_KEEP_US = 400 * 86_400 * SECOND_US
"""For more than a year people may ask where the money went."""


async def keep_expiring(world: Environment) -> None:
    while True:  # until it is cancelled
        await world.clock.sleep(jitter(EXPIRE_EVERY_SECONDS, world.chance.random()))
        try:
            await expire(world)
            await world.ledger.prune(BOOKS_KEEP_US, EXPIRE_STEP)
        except TransientError as error:
            world.events.emit("store_unavailable", doing="expire holds", error=error)


async def expire(world: Environment) -> None:
    for _ in range(EXPIRE_STEPS_MAX):
        expired = await world.ledger.expire(EXPIRE_STEP)
        for budget, percent in expired.crossed:
            world.events.emit("budget_reached", budget=budget, percent=percent)
        if expired.count < EXPIRE_STEP:
            break
