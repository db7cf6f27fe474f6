"""Beside the worker's loop: [fire schedules], [prune jobs], [expire holds].

Every worker does this work. Each step is safe to run in many processes at once.
"""

from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime

from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import NewJob
from leaseway.domain.kind import Kind, parse_options
from leaseway.domain.schedule import Schedule, due_fires, next_fire
from leaseway.ports.clock import Ids
from leaseway.worker.environment import Environment
from leaseway.worker.submit import KEY_KEEP_US, Bound

SCHEDULE_POLL_SECONDS_MAX = 30.0
RETRY_SECONDS = 2.0
FIRE_TIME = "fire_time"
"""A scheduled function with a parameter of this name receives the time at which it was due."""

PRUNE_EVERY_SECONDS = 300.0
PRUNE_STEP = 500
PRUNE_STEPS_MAX = 200
PAUSE_SECONDS = 0.02
"""The pause between two steps, in which other processes can write."""

EXPIRE_EVERY_SECONDS = 30.0
EXPIRE_STEP = 500
EXPIRE_STEPS_MAX = 20
LEDGER_KEEP_US = 400 * 86_400 * SECOND_US
"""The ledger keeps more than a year of windows, so that spending can be compared with last year's."""


# -- schedules ------------------------------------------------------------------------------------------------------


async def fire_schedules(environment: Environment, schedules: Sequence[Schedule], kinds: Mapping[str, Kind]) -> None:
    """Submit the jobs of schedules, once per fire time, however many processes run.

    Every worker tries. The store lets one of them advance a schedule past the fire time, and the idempotency key of the
    job contains the fire time as well.
    """
    declared = False
    while True:  # until it is cancelled
        try:
            if not declared:
                await environment.store.schedules.declare(schedules)
                declared = True
            seconds = await fire_due(environment, {schedule.name for schedule in schedules}, kinds)
        except TransientError as error:
            environment.events.emit("store_unavailable", doing="cron", error=error)
            seconds = RETRY_SECONDS
        await environment.clock.sleep(seconds)


async def fire_due(environment: Environment, declared: Set[str], kinds: Mapping[str, Kind]) -> float:
    """Fire the declared schedules that are due. Returns the seconds until the next check."""
    wait = SCHEDULE_POLL_SECONDS_MAX
    for row in await environment.store.schedules.all():
        kind = kinds.get(row.schedule.kind)
        if kind is None or row.paused or row.schedule.name not in declared:
            continue
        fires = due_fires(row.schedule, row.seen, row.now)
        if fires:
            jobs = [scheduled_job(row.schedule, kind, fire, environment.ids) for fire in fires]
            if await environment.store.schedules.fire(row.schedule.name, row.seen, fires[-1], jobs):
                environment.events.emit("cron_fired", schedule=row.schedule.name, jobs=len(jobs))
        coming = next_fire(row.schedule, row.now)
        if coming is not None:
            wait = min(wait, (coming - row.now) / SECOND_US)
    return max(wait, 0.01)


def scheduled_job(schedule: Schedule, kind: Kind, fire: Instant, ids: Ids) -> NewJob:
    at = datetime.fromtimestamp(fire / SECOND_US, UTC).isoformat()
    wants_time = FIRE_TIME in kind.Arguments.__struct_fields__
    payload = kind.encode({FIRE_TIME: at} if wants_time else {})
    return Bound(kind, payload, parse_options({"key": f"cron:{schedule.name}:{at}"})).new(ids, KEY_KEEP_US)


# -- cleaning up ----------------------------------------------------------------------------------------------------


async def prune_jobs(environment: Environment, keep_us: int) -> int:
    """Delete finished jobs that are older than this, in small steps. Returns how many."""
    total = 0
    for _ in range(PRUNE_STEPS_MAX):
        count = await environment.store.operations.prune(keep_us, PRUNE_STEP)
        total += count
        if count < PRUNE_STEP:
            break
        await environment.clock.sleep(PAUSE_SECONDS)
    if total:
        environment.events.emit("pruned", jobs=total)
    return total


async def expire_holds(environment: Environment) -> None:
    """End budget holds past their deadline, and delete windows that ended more than a year ago."""
    for _ in range(EXPIRE_STEPS_MAX):
        expired = await environment.ledger.expire(EXPIRE_STEP)
        for budget, percent in expired.crossed:
            environment.events.emit("budget_reached", budget=budget, percent=percent)
        if expired.count < EXPIRE_STEP:
            break
    await environment.ledger.prune(LEDGER_KEEP_US, EXPIRE_STEP)
