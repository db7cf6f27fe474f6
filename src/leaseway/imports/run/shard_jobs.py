"""plan ─► [shard jobs] ─► page ─► upsert and cursor in one transaction ─► end of the run

A run is a set of shards in the sink plus one job per shard in the job store. The sink decides which shards are open.
Jobs can be recreated at any time: idempotency keys expire, jobs can be discarded, and a job store can be emptied or
replaced.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from leaseway.domain.errors import LeaseLost, UsageError
from leaseway.domain.ids import ALPHABET, FENCE_EPOCH, ID_TIME_LENGTH, JobId
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import Job, State, Submitted
from leaseway.domain.limits.limit import Limit, LimitUse
from leaseway.domain.outcome import Backoff, Fail
from leaseway.domain.redact import Redactor
from leaseway.domain.validators import NAME_LENGTH_MAX
from leaseway.imports.domain.run_state import RunState, ShardRow, ShardState
from leaseway.imports.run.assembly import ImportParts, queue_name
from leaseway.imports.run.finish_run import ConfirmClient, can_confirm, finish_run, is_swept
from leaseway.imports.run.import_shard import import_shard
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.leased_token import TokenHost
from leaseway.imports.sources.port import SourceRefused
from leaseway.ports.clock import Clock
from leaseway.ports.store import Store
from leaseway.system import SystemClock
from leaseway.worker.context import Context
from leaseway.worker.environment import Environment
from leaseway.worker.submit import Bound, JobHandle

if TYPE_CHECKING:
    from leaseway.job_registry import JobDecorator

LEASE_SECONDS = 15.0
BACKOFF = Backoff(first_seconds=1, seconds_max=60)
ATTEMPTS = 50
"""Every worker crash uses one attempt. A shard continues at its cursor, so a retry repeats one page at most."""
FINISH_ATTEMPTS = 3
"""Rows that could not be confirmed as deleted are checked again after the next full run."""
UNFINISHED = (ShardState.WAITING, ShardState.RUNNING, ShardState.PARKED)
SUCCESSORS_MAX = 50
FAILED_PAGES_MAX = 100
IMPORTS_TENANT = "default"
"""The tenant of shard jobs. Jobs of other tenants do not count, whatever their queue is called."""
FENCE_BITS, LEASE_BITS = 21, 13
"""Of a shard's fence: the bits for the fence of its job, and how many of them count leases within one epoch."""
SUPERSEDED = "superseded"
"""In the result of a job whose shard belongs to a later job."""


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
    ) -> "JobDecorator": ...
    async def submit_many(self, jobs: Iterable[Bound]) -> list[Submitted]: ...
    async def store(self) -> Store: ...

    @property
    def redactor(self) -> Redactor: ...
    @property
    def world(self) -> Environment: ...


class ImportJobs(NamedTuple):
    """The job kinds of one import, registered with an app."""

    app: ImportHost
    shard: JobHandle[Any]
    finish: JobHandle[Any] | None = None
    """The job that confirms deletes with the source. None if the source cannot be asked for single records."""

    def bind_shard(self, run: str, shard: str, key: str) -> Bound:
        return self.shard.options(key=key).bind(run=run, shard=shard)

    def bind_finish(self, run: str, key: str) -> Bound:
        assert self.finish is not None
        return self.finish.options(key=key).bind(run=run)


def register_jobs(
    app: ImportHost, parts: ImportParts, lease_seconds: float = LEASE_SECONDS, clock: Clock | None = None
) -> ImportJobs:
    app.redactor.add(parts.task.redactor.secrets)
    share_tokens(app, parts)
    name, limits = f"import:{parts.spec.source.name}", [parts.source.limit] if parts.source.limit else []

    @app.job(name=name, queue=parts.queue, attempts=ATTEMPTS, backoff=BACKOFF, lease=lease_seconds, limits=limits)
    async def import_one_shard(ctx: Context, run: str, shard: str) -> dict[str, Any]:
        task = replace(parts.task, sweeps=await is_swept(parts, run))
        try:
            done = await import_shard(ctx, clock or SystemClock(), task, run, shard, shard_fence(ctx.id, ctx.fence))
        except LeaseLost:
            if not is_superseded(ctx.id, await current_fence(parts, run, shard)):
                raise
            return {"state": SUPERSEDED}  # without this, the job would return with every lease, and be refused again
        if done.state == ShardState.PARKED:
            raise Fail(done.why or "parked", code="parked")  # a failed job can be retried, a completed one cannot
        for child in done.children:
            ctx.submit(jobs.bind_shard(run, child, job_key(run, child)))
        if jobs.finish is not None and await needs_confirmation(parts, run):
            ctx.submit(jobs.bind_finish(run, f"{run}:finish"))
        answer: dict[str, Any] = msgspec.to_builtins(done)
        return answer

    finish = register_finish_job(app, parts, lease_seconds, clock) if can_confirm(parts) else None
    jobs = ImportJobs(app, import_one_shard, finish)
    return jobs


def needs_store(parts: ImportParts) -> bool:
    """Whether requests to the source need the job store."""
    auth = parts.spec.source.auth
    return auth is not None and auth.refresh_env is not None


def share_tokens(app: ImportHost, parts: ImportParts) -> None:
    """Let the source keep the refresh token that its workers share in the app's store."""
    if isinstance(parts.source, JsonSource):
        world = app.world
        parts.source.share_tokens(TokenHost(app.store, world.encryption, world.ids, world.clock))


def register_finish_job(
    app: ImportHost, parts: ImportParts, lease_seconds: float, clock: Clock | None
) -> JobHandle[Any]:
    """Confirm deletes in a job, so that its requests respect the source's limits and a crash is retried."""
    name, limits = f"import:{parts.spec.source.name}:finish", [parts.source.limit] if parts.source.limit else []

    @app.job(
        name=name, queue=parts.queue, attempts=FINISH_ATTEMPTS, backoff=BACKOFF, lease=lease_seconds, limits=limits
    )
    async def finish(ctx: Context, run: str) -> dict[str, Any]:
        try:
            state = await finish_run(parts, run, ConfirmClient(ctx.http, clock or SystemClock()))
        except SourceRefused as refused:  # the same key would be refused again
            raise Fail(str(refused), code="refused") from refused
        if state is not RunState.COMPLETE:
            raise Fail(f"run {run} is {state}: nothing was deleted", code=state.value)  # `resume` retries it
        return {"state": state.value}

    return finish


# -- submitting -------------------------------------------------------------------------------------------------------


async def submit_open_shards(parts: ImportParts, jobs: ImportJobs, run: str) -> int:
    """Ensure that every unfinished or parked shard has a job that can work, and return how many there are.

    If all shards have ended, ensure the job that confirms deletes instead.
    """
    await parts.sink.runs.finish(run, RunState.RUNNING)
    rows = [row for row in await parts.sink.shards.find_all(run) if row.state in UNFINISHED]
    calls = {
        job_key(run, row.shard.key): ShardCall(partial(jobs.bind_shard, run, row.shard.key), row.fence) for row in rows
    }
    if not calls and jobs.finish is not None and await needs_confirmation(parts, run):
        calls = {f"{run}:finish": ShardCall(partial(jobs.bind_finish, run))}
    await ensure_jobs(jobs.app, run, calls)
    return len(rows)


async def current_fence(parts: ImportParts, run: str, shard: str) -> int:
    """The fence of the last worker that began the shard."""
    return next((row.fence for row in await parts.sink.shards.find_all(run) if row.shard.key == shard), 0)


async def needs_confirmation(parts: ImportParts, run: str) -> bool:
    """Whether every shard has ended and the source can be asked for the rows that the run did not see."""
    if not can_confirm(parts) or await parts.sink.shards.count_open(run) or not await is_swept(parts, run):
        return False
    return all(row.state not in UNFINISHED for row in await parts.sink.shards.find_all(run))


class ShardCall(NamedTuple):
    """The job that a shard needs, and the fence of the last worker that began the shard."""

    bind: Callable[[str], Bound]
    """Binds the job with this idempotency key."""
    fence: int = 0


async def ensure_jobs(app: ImportHost, run: str, calls: Mapping[str, ShardCall]) -> None:
    """Ensure one job that can work per idempotency key.

    Failed jobs are retried. A done or discarded job cannot be, so it gets a successor whose key contains the id of the
    old job: repeating the call finds the same successor. A job whose successor has begun the shard is never retried,
    because the sink refuses it.
    """
    late: list[JobId] = []
    for _ in range(SUCCESSORS_MAX):
        answers = await app.submit_many([call.bind(key) for key, call in calls.items()])
        pairs = list(zip(answers, calls.values(), strict=True))
        late += [answer.id for answer, call in pairs if not answer.replayed and is_superseded(answer.id, call.fence)]
        known = [(answer.id, call) for answer, call in pairs if answer.replayed]
        able = await retry_failed(await app.store(), [id for id, call in known if not is_superseded(id, call.fence)])
        calls = {f"{run}:after:{id}": call for id, call in known if id not in able}
        if not calls:
            return refuse_late(run, late)
    raise UsageError(
        f"run {run}: its jobs were discarded or lost {SUCCESSORS_MAX} times; start a new run with another name"
    )


def refuse_late(run: str, late: Sequence[JobId]) -> None:
    if late:
        raise UsageError(
            f"run {run}: {len(late):,} of its jobs (the first: {late[0]}) cannot begin their shards, because this "
            "machine's clock is behind that of the machine that resumed the run before; correct the clock and resume "
            "again"
        )


async def retry_failed(store: Store, jobs: Sequence[JobId]) -> set[JobId]:
    """Retry the failed jobs among these, and return those that can work: pending, leased, or failed.

    A job that has failed by now was at work when the call began, and has failed since. It needs no successor: the next
    call retries it.
    """
    able: set[JobId] = set()
    for start in range(0, len(jobs), PAGE_MAX):
        batch = tuple(jobs[start : start + PAGE_MAX])
        await store.operations.retry(JobFilter(ids=batch), len(batch))
        can_work = JobFilter(ids=batch, states=(State.PENDING, State.LEASED, State.FAILED))
        able |= {job.id for job in await store.reads.jobs(can_work, limit=PAGE_MAX)}
    return able


def job_key(run: str, shard: str) -> str:
    """The idempotency key of a shard's job. Shard keys can be longer than a job key, so long ones are hashed."""
    key = f"{run}:{shard}"
    return key if len(key) <= NAME_LENGTH_MAX else f"{run}:{hashlib.sha256(shard.encode()).hexdigest()[:32]}"


def shard_fence(job: JobId, fence: int) -> int:
    """A fence that grows across all jobs of a shard, even jobs in different stores.

    A job's own fence starts at 1. Job ids sort by submission time, so the time goes into the high bits: the job that
    was submitted last wins.
    """
    epoch, leases = divmod(fence, FENCE_EPOCH)
    fence_of_job = (epoch << LEASE_BITS) + min(leases, (1 << LEASE_BITS) - 1)
    return (submitted_ms(job) << FENCE_BITS) + min(fence_of_job, (1 << FENCE_BITS) - 1)


def submitted_ms(job: JobId) -> int:
    millisecond = 0
    for letter in job[:ID_TIME_LENGTH]:
        millisecond = millisecond * len(ALPHABET) + max(ALPHABET.find(letter), 0)
    return millisecond


def is_superseded(job: JobId, fence: int) -> bool:
    """Whether a shard with this fence belongs to a job that was submitted later. The sink refuses the older one."""
    return submitted_ms(job) < fence >> FENCE_BITS


# -- failed jobs ------------------------------------------------------------------------------------------------------
# A job that fails for good leaves its shard open in the sink, so only the job store knows about it.


async def failed_shard_jobs(
    store: Store, source: str, run: str, shards: Sequence[ShardRow], states: tuple[State, ...] = (State.FAILED,)
) -> dict[str, Job]:
    """The most recent failed job of each of these shards, by shard key. A job that a later one supersedes does not
    count.
    """
    which = JobFilter(states=states, queue=queue_name(source), tenant=IMPORTS_TENANT)
    fences = {row.shard.key: row.fence for row in shards}
    found: dict[str, Job] = {}
    before = None
    for _ in range(FAILED_PAGES_MAX):
        jobs = await store.reads.jobs(which, before=before, limit=PAGE_MAX)
        for job in jobs:
            key = shard_in_payload(job, run)
            if key is not None and key in fences and not is_superseded(job.id, fences[key]):
                found.setdefault(key, job)
        if len(jobs) < PAGE_MAX:
            break
        before = jobs[-1].id
    return found


def shard_in_payload(job: Job, run: str) -> str | None:
    try:
        payload = msgspec.json.decode(job.payload)
    except (msgspec.DecodeError, RecursionError):
        return None
    return payload.get("shard") if isinstance(payload, dict) and payload.get("run") == run else None


async def is_stalled(store: Store, source: str) -> bool:
    """Whether no job of the source is pending or leased while some failed or were cancelled. Reads counters only."""
    name = (queue_name(source), IMPORTS_TENANT)
    lanes = [lane for lane in await store.reads.lanes() if (lane.queue, lane.tenant) == name]
    has_open = any(lane.ready or lane.scheduled or lane.leased for lane in lanes)
    return not has_open and any(lane.failed or lane.cancelled for lane in lanes)


async def have_all_failed(store: Store, source: str, run: str, shards: Sequence[ShardRow]) -> bool:
    """Whether each of these shards has a failed or cancelled job.

    A shard without a job in this store was submitted to another store, or is about to be submitted.
    """
    states = (State.FAILED, State.CANCELLED)
    return len(await failed_shard_jobs(store, source, run, shards, states)) == len(shards)
