"""plan ─► [shard jobs] ─► page ─► upsert and cursor in one transaction ─► end of the run

A run is a set of shards in the sink plus one job per shard in the job store. The sink decides which shards are open.
Jobs can be recreated at any time: idempotency keys expire, jobs can be discarded, and a job store can be emptied or
replaced.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from leaseway.domain.errors import UsageError
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import Job, State, Submitted
from leaseway.domain.limits.limit import Limit, LimitUse
from leaseway.domain.outcome import Backoff, Fail
from leaseway.domain.validators import NAME_LENGTH_MAX
from leaseway.imports.assembly import ImportParts, queue_name
from leaseway.imports.domain.run_state import RunState, ShardState
from leaseway.imports.run.finish_run import ConfirmClient, can_confirm, finish_run, is_swept
from leaseway.imports.shard_job.import_shard import import_shard
from leaseway.ports.store import Store
from leaseway.system import ALPHABET, SystemClock
from leaseway.worker.context import Context
from leaseway.worker.submit import Bound

LEASE_SECONDS = 15.0
BACKOFF = Backoff(first_seconds=1, seconds_max=60)
ATTEMPTS = 50
"""Every worker crash uses one attempt. A shard continues at its cursor, so a retry repeats one page at most."""
FINISH_ATTEMPTS = 3
"""Rows that could not be confirmed as deleted are checked again after the next full run."""
UNFINISHED = (ShardState.WAITING, ShardState.RUNNING, ShardState.PARKED)
SUCCESSORS_MAX = 50
FAILED_PAGES_MAX = 100
ID_TIME_LENGTH = 10
"""The leading characters of a job id encode the millisecond of its submission."""
FENCE_BITS = 20


class ImportHost(Protocol):
    """The part of an app that imports use."""

    def job(
        self,
        /,
        *,
        name: str,
        queue: str,
        attempts: int,
        lease: float,
        backoff: Backoff,
        limits: Sequence[Limit | LimitUse],
    ) -> Callable[[Callable[..., Any]], Any]: ...
    async def submit_many(self, jobs: Iterable[Bound]) -> list[Submitted]: ...
    async def store(self) -> Store: ...


class ImportJobs(NamedTuple):
    """The job kinds of one import, registered with an app."""

    app: ImportHost
    bind_shard: Callable[..., Bound]
    bind_finish: Callable[..., Bound] | None = None
    """The job that confirms deletes with the source. None if the source cannot be asked for single records."""


def register_jobs(app: ImportHost, parts: ImportParts, lease_seconds: float = LEASE_SECONDS) -> ImportJobs:
    name, limits = f"import:{parts.spec.source.name}", [parts.source.limit] if parts.source.limit else []

    @app.job(name=name, queue=parts.queue, attempts=ATTEMPTS, backoff=BACKOFF, lease=lease_seconds, limits=limits)
    async def import_one_shard(ctx: Context, run: str, shard: str) -> dict[str, Any]:
        task = replace(parts.task, sweeps=await is_swept(parts, run))
        done = await import_shard(ctx, SystemClock(), task, run, shard, shard_fence(ctx.id, ctx.fence))
        if done.state == ShardState.PARKED:
            raise Fail(done.why or "parked", code="parked")  # a failed job can be retried, a completed one cannot
        for child in done.children:
            ctx.submit(jobs.bind_shard(run=run, shard=child, key=job_key(run, child)))
        if jobs.bind_finish is not None and await needs_confirmation(parts, run):
            ctx.submit(jobs.bind_finish(run=run, key=f"{run}:finish"))
        answer: dict[str, Any] = msgspec.to_builtins(done)
        return answer

    finish = register_finish_job(app, parts, lease_seconds) if can_confirm(parts) else None
    jobs = ImportJobs(app, import_one_shard.bind, finish)
    return jobs


def register_finish_job(app: ImportHost, parts: ImportParts, lease_seconds: float) -> Callable[..., Bound]:
    """Confirm deletes in a job, so that its requests respect the source's limits and a crash is retried."""
    name, limits = f"import:{parts.spec.source.name}:finish", [parts.source.limit] if parts.source.limit else []

    @app.job(
        name=name, queue=parts.queue, attempts=FINISH_ATTEMPTS, backoff=BACKOFF, lease=lease_seconds, limits=limits
    )
    async def finish(ctx: Context, run: str) -> dict[str, Any]:
        state = await finish_run(parts, run, ConfirmClient(ctx.http, SystemClock()))
        if state is not RunState.COMPLETE:
            raise Fail(f"run {run} is {state}: nothing was deleted", code=state.value)  # `resume` retries it
        return {"state": state.value}

    bind: Callable[..., Bound] = finish.bind
    return bind


# -- submitting -------------------------------------------------------------------------------------------------------


async def submit_open_shards(parts: ImportParts, jobs: ImportJobs, run: str) -> int:
    """Ensure that every unfinished or parked shard has a pending job, and return how many there are.

    If all shards have ended, ensure the job that confirms deletes instead.
    """
    await parts.sink.runs.finish(run, RunState.RUNNING)
    keys = [row.shard.key for row in await parts.sink.shards.find_all(run) if row.state in UNFINISHED]
    calls = {job_key(run, key): partial(jobs.bind_shard, run=run, shard=key) for key in keys}
    if not calls and jobs.bind_finish is not None and await needs_confirmation(parts, run):
        calls = {f"{run}:finish": partial(jobs.bind_finish, run=run)}
    await ensure_jobs(jobs.app, run, calls)
    return len(keys)


async def needs_confirmation(parts: ImportParts, run: str) -> bool:
    """Whether every shard has ended and the source can be asked for the rows that the run did not see."""
    if not can_confirm(parts) or await parts.sink.shards.count_open(run) or not await is_swept(parts, run):
        return False
    return all(row.state not in UNFINISHED for row in await parts.sink.shards.find_all(run))


async def ensure_jobs(app: ImportHost, run: str, calls: Mapping[str, Callable[..., Bound]]) -> None:
    """Ensure one pending or leased job per idempotency key.

    Failed jobs are retried. A done or discarded job cannot be, so it gets a successor whose key contains the id of the
    old job: repeating the call finds the same successor.
    """
    for _ in range(SUCCESSORS_MAX):
        answers = await app.submit_many([call(key=key) for key, call in calls.items()])
        known = [answer.id for answer in answers if answer.replayed]
        if not known:
            return
        ended = set(known) - await retry_failed(await app.store(), known)
        pairs = zip(answers, calls.values(), strict=True)
        calls = {f"{run}:after:{answer.id}": call for answer, call in pairs if answer.id in ended}
    raise UsageError(
        f"run {run}: its jobs were discarded or lost {SUCCESSORS_MAX} times; start a new run with another name"
    )


async def retry_failed(store: Store, jobs: Sequence[JobId]) -> set[JobId]:
    """Retry the failed jobs among these, and return those that are now pending or leased."""
    open_ids: set[JobId] = set()
    for start in range(0, len(jobs), PAGE_MAX):
        batch = tuple(jobs[start : start + PAGE_MAX])
        await store.operations.retry(JobFilter(ids=batch), len(batch))
        is_open = JobFilter(ids=batch, states=(State.PENDING, State.LEASED))
        open_ids |= {job.id for job in await store.reads.jobs(is_open, limit=PAGE_MAX)}
    return open_ids


def job_key(run: str, shard: str) -> str:
    """The idempotency key of a shard's job. Shard keys can be longer than a job key, so long ones are hashed."""
    key = f"{run}:{shard}"
    return key if len(key) <= NAME_LENGTH_MAX else f"{run}:{hashlib.sha256(shard.encode()).hexdigest()[:32]}"


def shard_fence(job: JobId, fence: int) -> int:
    """A fence that grows across all jobs of a shard, even jobs in different stores.

    A job's own fence starts at 1. Job ids sort by submission time, so the time goes into the high bits: the job that
    was submitted last wins.
    """
    millisecond = 0
    for letter in job[:ID_TIME_LENGTH]:
        millisecond = millisecond * len(ALPHABET) + max(ALPHABET.find(letter), 0)
    return (millisecond << FENCE_BITS) + min(fence, (1 << FENCE_BITS) - 1)


# -- failed jobs ------------------------------------------------------------------------------------------------------
# A job that fails for good leaves its shard open in the sink, so only the job store knows about it.


async def failed_shard_jobs(
    store: Store, source: str, run: str, keys: Collection[str], states: tuple[State, ...] = (State.FAILED,)
) -> dict[str, Job]:
    """The most recent failed job of each of these shards, by shard key."""
    which = JobFilter(states=states, queue=queue_name(source))
    found: dict[str, Job] = {}
    before = None
    for _ in range(FAILED_PAGES_MAX):
        jobs = await store.reads.jobs(which, before=before, limit=PAGE_MAX)
        for job in jobs:
            key = shard_in_payload(job, run)
            if key in keys:
                found.setdefault(str(key), job)
        if len(jobs) < PAGE_MAX:
            break
        before = jobs[-1].id
    return found


def shard_in_payload(job: Job, run: str) -> str | None:
    try:
        payload = msgspec.json.decode(job.payload)
    except msgspec.DecodeError:
        return None
    return payload.get("shard") if isinstance(payload, dict) and payload.get("run") == run else None


async def is_stalled(store: Store, source: str) -> bool:
    """Whether no job of the source is pending or leased while some failed or were cancelled. Reads counters only."""
    lanes = [lane for lane in await store.reads.lanes() if lane.queue == queue_name(source)]
    has_open = any(lane.ready or lane.scheduled or lane.leased for lane in lanes)
    return not has_open and any(lane.failed or lane.cancelled for lane in lanes)


async def have_all_failed(store: Store, source: str, run: str, keys: Collection[str]) -> bool:
    """Whether each of these shards has a failed or cancelled job.

    A shard without a job in this store was submitted to another store, or is about to be submitted.
    """
    states = (State.FAILED, State.CANCELLED)
    return len(await failed_shard_jobs(store, source, run, keys, states)) == len(keys)
