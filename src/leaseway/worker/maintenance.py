"""Beside the worker's loop: [fire schedules], [prune jobs], [expire holds, bring forward what they freed], [sample the
backlog, merge the history].

`@app.cron` declares a schedule with `make_schedule`. Every worker does this work. Each step is safe to run in many
processes at once.
"""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import NamedTuple

from leaseway.domain.encryption import NO_KEYS, Encryption
from leaseway.domain.errors import BadValue, LeasewayError, TransientError, UsageError
from leaseway.domain.history.rows import (
    BACKLOG,
    HISTORY_PAGE,
    KEEP_US,
    LENGTH_US,
    MERGED,
    READY,
    ROWS_MAX,
    SAMPLES,
    SCHEDULED,
    SETTLED_AFTER_US,
    HistoryCell,
    HistoryLevel,
    HistoryRow,
    escaped,
    merge_rows,
    start_of,
)
from leaseway.domain.history.timeline import HistoryRange, Timeline, TimelineBuilder
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import NewJob
from leaseway.domain.kind import Kind, parse_options
from leaseway.domain.lane import Flow, LaneCount
from leaseway.domain.schedule import Missed, Schedule, check_schedule, due_fires, next_fire
from leaseway.domain.validators import check_name
from leaseway.ports.clock import Ids
from leaseway.ports.history import HistoryStore
from leaseway.worker import definitions
from leaseway.worker.blobs.sweep import sweep
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

SWEEP_SHARE = 1 / 12
"""A sweep lists all blobs, so it follows a pruning about once an hour; not at once in all workers."""
EXPIRE_EVERY_SECONDS = 30.0
EXPIRE_STEP = 500
EXPIRE_STEPS_MAX = 20
LEDGER_KEEP_US = 400 * 86_400 * SECOND_US
"""The ledger keeps more than a year of windows, so that spending can be compared with last year's."""

HISTORY_EVERY_SECONDS = 60.0
MERGED_MINUTES = 15
"""How far back minutes are merged. Older rows that were not merged are read as they are."""
PERIODS_READ = {HistoryLevel.MINUTE: 4, HistoryLevel.HOUR: 12, HistoryLevel.DAY: 12}
"""How many periods are read at a time. Rows of the last minutes are not merged yet."""
PERIODS_MAX = 24
"""The most hours or days that one step adds."""
PRUNE_ROWS = 5_000
MERGED_ROWS_MAX = 100_000
"""The most rows of a minute that are merged in one transaction; of more, those of each tenant are merged apart."""


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
            encryption = environment.encryption
            jobs = [scheduled_job(row.schedule, kind, fire, environment.ids, encryption) for fire in fires]
            if await environment.store.schedules.fire(row.schedule.name, row.seen, fires[-1], jobs):
                environment.events.emit("cron_fired", schedule=row.schedule.name, jobs=len(jobs))
        coming = next_fire(row.schedule, row.now)
        if coming is not None:
            wait = min(wait, (coming - row.now) / SECOND_US)
    return max(wait, 0.01)


def scheduled_job(schedule: Schedule, kind: Kind, fire: Instant, ids: Ids, encryption: Encryption = NO_KEYS) -> NewJob:
    at = datetime.fromtimestamp(fire / SECOND_US, UTC).isoformat()
    wants_time = FIRE_TIME in kind.Arguments.__struct_fields__
    payload = kind.encode({FIRE_TIME: at} if wants_time else {})
    return Bound(kind, payload, parse_options({"key": f"cron:{schedule.name}:{at}"})).new(
        ids, KEY_KEEP_US, encryption=encryption
    )


def make_schedule(kind: Kind, name: str, expression: str, tz: str, missed: str, ids: Ids) -> Schedule:
    """A schedule whose job can be submitted without arguments."""
    if missed not in [policy.value for policy in Missed]:
        raise BadValue(f"cron {name}: missed", f"must be latest, all or skip (is {missed!r})")
    schedule = Schedule(name=check_name("name", name), kind=kind.name, cron=expression, tz=tz, missed=Missed(missed))
    check_schedule(schedule)
    required = required_parameters(kind)
    missing = [field for field in kind.Arguments.__struct_fields__ if field != FIRE_TIME and field in required]
    if missing:
        raise UsageError(f"cron {name}: the job's argument {missing[0]!r} has no value; give it a default")
    scheduled_job(schedule, kind, 0, ids)  # a job that cannot be built now could not be built at a fire time
    return schedule


def required_parameters(kind: Kind) -> list[str]:
    parameters = inspect.signature(kind.function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]


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
    if environment.blobs.is_on and environment.chance.random() < SWEEP_SHARE:
        await sweep_blobs(environment)
    return total


async def sweep_blobs(environment: Environment) -> None:
    """A bucket that refuses its list must not end workers, which may need none of its blobs."""
    try:
        await sweep(environment.blobs, environment.store, environment.clock.wall_us())
    except LeasewayError as error:
        environment.events.emit("store_unavailable", doing="sweep blobs", error=error)


async def maintain_budgets(environment: Environment) -> None:
    """End budget holds past their deadline, bring forward jobs that fit into an earlier window by now, and delete
    windows that ended more than a year ago."""
    for _ in range(EXPIRE_STEPS_MAX):
        expired = await environment.ledger.expire(EXPIRE_STEP)
        for budget, percent in expired.crossed:
            environment.events.emit("budget_reached", budget=budget, percent=percent)
        if expired.count < EXPIRE_STEP:
            break
    await bring_forward(environment)
    await environment.ledger.prune(LEDGER_KEEP_US, EXPIRE_STEP)


async def bring_forward(environment: Environment) -> None:
    """Calls that cost less than was held for them, and code that declares a higher budget, make room for jobs that wait
    for a later window. Looks at the next jobs of each budget only; those behind them follow when these have run."""
    if environment.store.inspection is None:
        return  # a service, which brings jobs forward itself: it does not show a worker the holds of other jobs
    for definition, _ in await environment.ledger.definitions.all():
        if definition.waits and not definition.paused:
            store, ledger = environment.store, environment.ledger
            count = await definitions.bring_forward(store, ledger, definition.name, pages_max=1)
            if count:
                environment.events.emit("brought_forward", budget=definition.name, jobs=count)


# -- the history ----------------------------------------------------------------------------------------------------


async def maintain_history(environment: Environment) -> None:
    """One worker does it per minute: the first that stores its backlog. Workers over HTTP leave it to those
    that reach the database."""
    history, store = environment.store.history, environment.store
    if history is None or store.inspection is None:
        return
    now = await store.reads.now()
    minute = start_of(now, HistoryLevel.MINUTE)
    first = await history.rows(HistoryLevel.MINUTE, minute, minute + 1, after=BACKLOG, limit=1)
    if first and first[0].id.startswith(BACKLOG):
        return
    await history.record(sample_backlog(await store.reads.lanes(), minute))
    await merge_minutes(history, minute)
    for level in (HistoryLevel.HOUR, HistoryLevel.DAY):
        await roll_up(history, now, level)
    for level in HistoryLevel:
        await history.prune(level, now - KEEP_US[level], PRUNE_ROWS)


def sample_backlog(lanes: Sequence[LaneCount], minute: Instant) -> list[HistoryRow]:
    """Also if nothing waits: a minute without samples is a minute in which no worker ran."""
    ready, scheduled = defaultdict[Flow, int](int), defaultdict[Flow, int](int)
    for lane in lanes:
        ready[lane.queue, lane.tenant] += lane.ready
        scheduled[lane.queue, lane.tenant] += lane.scheduled
    largest = sorted(ready, key=lambda flow: -ready[flow] - scheduled[flow])[: ROWS_MAX - 1]
    counts = {flow: {READY: ready[flow], SCHEDULED: scheduled[flow], SAMPLES: 1} for flow in largest}
    return [
        HistoryRow(
            id="/".join((BACKLOG, str(minute), escaped(tenant), escaped(queue))), at=minute, tenant=tenant, queue=queue,
            cell=HistoryCell(each),
        )
        for (queue, tenant), each in (counts or {("", ""): {SAMPLES: 1}}).items()
    ]  # fmt: skip


async def merge_minutes(history: HistoryStore, minute: Instant) -> None:
    length = LENGTH_US[HistoryLevel.MINUTE]
    for number in range(MERGED_MINUTES, 1, -1):
        at = minute - number * length
        if at + length + SETTLED_AFTER_US > minute + length:
            break
        found = await read_minute(history, at)
        if found.is_complete:
            await replace_merged(history, found)
            continue
        # A merged row takes the place of all rows with its key, so a part of them must not be merged.
        for tenant in sorted(found.tenants):
            own = await read_minute(history, at, tenant)
            if own.is_complete:
                await replace_merged(history, own)


class MinuteRows(NamedTuple):
    """The rows of a minute, merged."""

    ids: list[str]
    """Of the rows that were read."""
    tenants: set[str]
    """Of rows that were not merged yet."""
    merged: list[HistoryRow]
    is_complete: bool
    """False: there are more rows than are merged at a time."""


async def read_minute(history: HistoryStore, at: Instant, tenant: str | None = None) -> MinuteRows:
    """Each page is merged before the next one is read: to merge 100,000 rows at once takes a second, in which the
    worker does nothing else."""
    found = MinuteRows([], set(), [], is_complete=True)
    async for rows in read_pages(history, HistoryLevel.MINUTE, at, at + 1, tenant):
        found.ids.extend(row.id for row in rows)
        found.tenants.update(row.tenant for row in rows if not row.id.startswith(MERGED))
        merged = merge_rows([*found.merged, *rows], HistoryLevel.MINUTE)
        found = found._replace(merged=merged, is_complete=len(found.ids) <= MERGED_ROWS_MAX)
        if not found.is_complete:
            break
    return found


async def replace_merged(history: HistoryStore, found: MinuteRows) -> None:
    if set(found.ids) != {row.id for row in found.merged}:
        await history.replace(found.ids, found.merged)


async def roll_up(history: HistoryStore, now: Instant, level: HistoryLevel) -> None:
    """Add the periods that have ended. The ids of their rows follow from their keys, so that each is added once."""
    finer, length = HistoryLevel(level - 1), LENGTH_US[level]
    since = await find_end(history, level, now - KEEP_US[finer], now)
    first = await history.rows(finer, since, now, limit=1)
    at = start_of(first[0].at, level) if first else now
    for _ in range(PERIODS_MAX):
        if at + length + 2 * SETTLED_AFTER_US > now:
            return
        merged: list[HistoryRow] = []
        async for rows in read_level(history, finer, at, at + length):
            merged = merge_rows([*merged, *rows], level)
        await history.record(merged)
        at += length


async def find_end(history: HistoryStore, level: HistoryLevel, oldest: Instant, now: Instant) -> Instant:
    """The end of the last period that has been added. Looks back from now, because of a month there are more rows than
    one read returns."""
    first = await history.rows(level, oldest, now, limit=1)
    at = start_of(now, level)
    while first and at >= first[0].at:
        if await history.rows(level, at, at + LENGTH_US[level], limit=1):
            return at + LENGTH_US[level]
        at -= LENGTH_US[level]
    return oldest


async def read_timeline(
    history: HistoryStore,
    span: HistoryRange,
    tenant: str | None = None,
    chooses: Callable[[HistoryRow], bool] = lambda row: True,
) -> Timeline:
    """What happened in a range, read in steps and added up in a thread: between two steps, others get their turn."""
    builder = TimelineBuilder(span)
    async for rows in read_history(history, span.level, span.since, span.until, tenant):
        await asyncio.to_thread(builder.add, [row for row in rows if chooses(row)])
    return await asyncio.to_thread(builder.finish)


async def read_history(
    history: HistoryStore, level: HistoryLevel, since: Instant, until: Instant, tenant: str | None = None
) -> AsyncIterator[list[HistoryRow]]:
    """The rows of a range, in steps. Periods that have not been rolled up yet are read from the finer level."""
    rest = since
    async for rows in read_level(history, level, since, until, tenant):
        yield rows
        rest = rows[-1].at + LENGTH_US[level]
    if level is not HistoryLevel.MINUTE:
        async for rows in read_history(history, HistoryLevel(level - 1), rest, until, tenant):
            yield rows


async def read_level(
    history: HistoryStore, level: HistoryLevel, since: Instant, until: Instant, tenant: str | None = None
) -> AsyncIterator[list[HistoryRow]]:
    """The rows of one level, some periods at a time."""
    while first := await history.rows(level, since, until, tenant=tenant, limit=1):  # ends: each step begins later
        since = first[0].at + PERIODS_READ[level] * LENGTH_US[level]
        async for rows in read_pages(history, level, first[0].at, min(since, until), tenant):
            yield rows


async def read_pages(
    history: HistoryStore, level: HistoryLevel, since: Instant, until: Instant, tenant: str | None = None
) -> AsyncIterator[list[HistoryRow]]:
    """All rows, however many there are: a thousand tenants with a hundred kinds have 100,000 in a merged minute."""
    after = ""
    # Ends: each page is behind the last one.
    while rows := await history.rows(level, since, until, tenant=tenant, after=after, limit=HISTORY_PAGE):
        yield rows
        since, after = rows[-1].at, rows[-1].id
        if len(rows) < HISTORY_PAGE:
            return
