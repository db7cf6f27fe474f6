"""plan ─► [shard jobs] ─► page ─► upsert + cursor in one transaction ─► [the end of a run]

A run is a set of shards in the sink, and a job for each of them in the job store. Both can be made again: the same run
has the same shards, and a job's key is its shard's.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from leaseway.domain.errors import BadValue, KeyConflict
from leaseway.domain.ids import Instant
from leaseway.domain.job import Submitted
from leaseway.domain.limits.limit import Limit, LimitUse
from leaseway.domain.outcome import Backoff, Fail
from leaseway.domain.validators import NAME_LENGTH_MAX
from leaseway.imports.assembly import Parts
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardState
from leaseway.imports.domain.shard import Shard
from leaseway.imports.plan.plan import Plan
from leaseway.imports.run.finish_run import SWEEPS, Asking, can_confirm, close_run, is_swept
from leaseway.imports.run.resubmit import bring_to_life, fence_of
from leaseway.imports.shard_job.import_shard import import_shard
from leaseway.ports.store import Store
from leaseway.system import SystemClock
from leaseway.worker.context import Context
from leaseway.worker.submit import Bound

QUEUE = "imports"
"""Each source has its own, below this name: its workers know no other source's shards."""
LEASE_SECONDS = 15.0
BACKOFF = Backoff(first_seconds=1, seconds_max=60)
OPEN = (ShardState.WAITING, ShardState.RUNNING, ShardState.PARKED)
ATTEMPTS = 50
"""Each death of a worker is one. A shard goes on where it was, so that trying again costs a page at most."""
RUN_LENGTH_MAX = 120
CLOSE_ATTEMPTS = 3
"""What could not be asked for now is asked for after the next full run."""


class Host(Protocol):
    """As much of an app as imports need."""

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


class ShardJob(NamedTuple):
    """The job that imports one shard, in its app."""

    app: Host
    bind: Callable[..., Bound]
    bind_close: Callable[..., Bound] | None = None
    """The job that asks the source for rows which a run did not see. None: the source cannot be asked."""


def shard_job(app: Host, parts: Parts, lease_seconds: float = LEASE_SECONDS) -> ShardJob:
    name, limits = f"import:{parts.spec.source.name}", [parts.source.limit] if parts.source.limit else []

    @app.job(name=name, queue=queue_of(parts), attempts=ATTEMPTS, backoff=BACKOFF, lease=lease_seconds, limits=limits)
    async def shard(ctx: Context, run: str, key_of_shard: str) -> dict[str, Any]:
        task = replace(parts.task, sweeps=await is_swept(parts, run))
        done = await import_shard(ctx, SystemClock(), task, run, key_of_shard, fence_of(ctx.id, ctx.fence))
        if done.state == ShardState.PARKED:
            raise Fail(done.why or "parked", code="parked")  # a dead letter can be tried again, a done job cannot
        for child in done.children:
            ctx.submit(handle.bind(run=run, key_of_shard=child, key=job_key(run, child)))
        if handle.bind_close is not None and await is_to_be_asked(parts, run):
            ctx.submit(handle.bind_close(run=run, key=f"{run}:close"))
        answer: dict[str, Any] = msgspec.to_builtins(done)
        return answer

    handle = ShardJob(app, shard.bind, close_job(app, parts, lease_seconds) if can_confirm(parts) else None)
    return handle


def close_job(app: Host, parts: Parts, lease_seconds: float) -> Callable[..., Bound]:
    """What a full run did not see is asked for once more, by a job as any other: under the source's limits, and again
    after a crash."""
    name, limits = f"import:{parts.spec.source.name}:close", [parts.source.limit] if parts.source.limit else []

    @app.job(
        name=name, queue=queue_of(parts), attempts=CLOSE_ATTEMPTS, backoff=BACKOFF, lease=lease_seconds, limits=limits
    )
    async def close(ctx: Context, run: str) -> dict[str, Any]:
        state = await close_run(parts, run, Asking(ctx.http, SystemClock()))
        if state is not RunState.COMPLETE:
            raise Fail(f"run {run} is {state}: nothing was deleted", code=state.value)  # `resume` tries it again
        return {"state": state.value}

    bind: Callable[..., Bound] = close.bind
    return bind


def job_key(run: str, shard: str) -> str:
    """The same job for the same shard, always. Labels may be longer than a job's key can be."""
    key = f"{run}:{shard}"
    return key if len(key) <= NAME_LENGTH_MAX else f"{run}:{hashlib.sha256(shard.encode()).hexdigest()[:32]}"


def queue_of(parts: Parts) -> str:
    return f"{QUEUE}:{parts.spec.source.name}"


async def start(
    parts: Parts,
    handle: ShardJob,
    run: str,
    plan: Plan | Sequence[Shard],
    now: Instant,
    *,
    seats: int = 0,
    requests_max: int | None = None,
) -> RunRow:
    """Store the run, and submit a job for each shard that has not ended. To do so again changes nothing.

    `requests_max` None: what the spec's budget says.
    """
    check_run(run)
    whole = plan if isinstance(plan, Plan) else Plan(list(plan), None, None, None)
    budget = parts.spec.budget
    new = RunRow(
        id=run,
        source=parts.spec.source.name,
        spec_hash=parts.task.spec_hash,
        started_at=now,
        mode=whole.mode,
        since=whole.since,
        watermark=whole.watermark,
        seats=seats,
        id_max=whole.id_max,
        requests_max=requests_max if requests_max is not None or budget is None else budget.requests_max,
        notes={SWEEPS: True} if parts.task.sweeps and whole.mode is RunMode.FULL else {},
    )
    row = await parts.sink.start_run(new, whole.shards)
    await submit_open(parts, handle, run)
    return row


def check_run(run: str) -> None:
    """Before anything is written: it becomes a part of the keys of the run's jobs."""
    if not 0 < len(run) <= RUN_LENGTH_MAX or not run.isprintable():
        raise BadValue("run", f"must be 1 to {RUN_LENGTH_MAX} printable characters (is {run[:40]!r})")


def refuse_other_spec(parts: Parts, row: RunRow) -> None:
    """Before anything of the run is touched."""
    if row.spec_hash != parts.task.spec_hash:
        raise KeyConflict(
            f"run {row.id}: was started with another spec (hash {row.spec_hash}, now {parts.task.spec_hash}); resume "
            f"it with the spec of that time, or begin a new run with `leaseway import run {parts.path}`"
        )


async def submit_open(parts: Parts, handle: ShardJob, run: str) -> int:
    """A job for each shard that has not ended or was parked, whatever became of the one it had. Where all have ended,
    what is left of closing the run is tried again."""
    await parts.sink.finish_run(run, RunState.RUNNING)
    keys = [row.shard.key for row in await parts.sink.shards(run) if row.state in OPEN]
    calls = {job_key(run, key): partial(handle.bind, run=run, key_of_shard=key) for key in keys}
    if not calls and handle.bind_close is not None and await is_to_be_asked(parts, run):
        calls = {f"{run}:close": partial(handle.bind_close, run=run)}
    await bring_to_life(handle.app, run, calls)
    return len(keys)


async def is_to_be_asked(parts: Parts, run: str) -> bool:
    """Whether every shard has come to its end, and the source can be asked for what they did not see."""
    if not can_confirm(parts) or await parts.sink.open_shards(run) or not await is_swept(parts, run):
        return False
    return all(row.state not in OPEN for row in await parts.sink.shards(run))


async def finish(parts: Parts, run: str) -> RunState:
    """Say what has become of a run. Anybody may, at any time, and again; it asks the source for nothing."""
    return await close_run(parts, run)
