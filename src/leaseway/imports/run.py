"""plan ─► [shard jobs] ─► page ─► upsert + cursor in one transaction ─► [the end of a run]

A run is a set of shards in the sink, and a job for each of them in the job store. Both can be made again: the same run
has the same shards, and a job's key is its shard's.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from leaseway.app import App, JobHandle
from leaseway.domain.errors import KeyConflict
from leaseway.domain.ids import Instant
from leaseway.domain.imports.progress import RunRow, RunState, ShardRow, ShardState
from leaseway.domain.imports.shard import Shard
from leaseway.domain.outcome import Fail
from leaseway.domain.query import JobFilter
from leaseway.domain.retry import Backoff
from leaseway.flows.context import Context
from leaseway.flows.importing import import_shard
from leaseway.imports.parts import Parts
from leaseway.system import SystemClock

QUEUE = "imports"
"""Each source has its own, below this name: its workers know no other source's shards."""
LEASE_SECONDS = 15.0
BACKOFF = Backoff(first_seconds=1, seconds_max=60)
OPEN = (ShardState.WAITING, ShardState.RUNNING, ShardState.PARKED)
ATTEMPTS = 50
"""Each death of a worker is one. A shard goes on where it was, so that trying again costs a page at most."""


def import_app(parts: Parts, url: str, lease_seconds: float = LEASE_SECONDS) -> tuple[App, "JobHandle[..., Any]"]:
    """The app whose one job imports one shard."""
    app = App(url)
    name, limits = f"import:{parts.spec.source.name}", [parts.source.limit] if parts.source.limit else []

    @app.job(name=name, queue=queue_of(parts), attempts=ATTEMPTS, backoff=BACKOFF, lease=lease_seconds, limits=limits)
    async def shard(ctx: Context, run: str, key_of_shard: str) -> dict[str, Any]:
        done = await import_shard(ctx, SystemClock(), parts.task, run, key_of_shard)
        if done.state == ShardState.PARKED:
            raise Fail(done.why or "parked", code="parked")  # a dead letter can be tried again, a done job cannot
        for child in done.children:
            ctx.submit(handle.bind(run=run, key_of_shard=child, key=f"{run}:{child}"))
        answer: dict[str, Any] = msgspec.to_builtins(done)
        return answer

    handle = shard
    return app, handle


def queue_of(parts: Parts) -> str:
    return f"{QUEUE}:{parts.spec.source.name}"


async def start(parts: Parts, handle: "JobHandle[..., Any]", run: str, shards: Sequence[Shard], now: Instant) -> RunRow:
    """Store the run, and submit a job for each shard that has not ended. To do so again changes nothing."""
    new = RunRow(id=run, source=parts.spec.source.name, spec_hash=parts.task.spec_hash, started_at=now)
    row = await parts.sink.start_run(new, shards)
    await submit_open(parts, handle, run)
    return row


def refuse_other_spec(parts: Parts, row: RunRow) -> None:
    """Before anything of the run is touched."""
    if row.spec_hash != parts.task.spec_hash:
        raise KeyConflict(
            f"run {row.id}: was started with another spec (hash {row.spec_hash}, now {parts.task.spec_hash}); resume "
            f"it with the spec of that time, or begin a new run with `leaseway import run {parts.path}`"
        )


async def submit_open(parts: Parts, handle: "JobHandle[..., Any]", run: str) -> int:
    """A job for each shard that has not ended or was parked. One that was given up before gets a second life: its fence
    goes on."""
    await parts.sink.finish_run(run, RunState.RUNNING)
    open_ones = [row for row in await parts.sink.shards(run) if row.state in OPEN]
    answers = await handle.app.submit_many(
        handle.bind(run=run, key_of_shard=row.shard.key, key=f"{run}:{row.shard.key}") for row in open_ones
    )
    known = tuple(answer.id for answer in answers if answer.replayed)
    if known:
        store = await handle.app.store()
        await store.replay(JobFilter(ids=known), len(known))
    return len(open_ones)


def state_of(shards: Sequence[ShardRow], run: RunRow | None) -> RunState:
    """What the shards say about their run, when no job is left."""
    if run is not None and run.state is RunState.FAILED:
        return RunState.FAILED
    ended = {row.state for row in shards}
    return RunState.COMPLETE if ended <= {ShardState.DONE, ShardState.SPLIT} else RunState.PARTIAL


async def finish(parts: Parts, run: str) -> RunState:
    shards = await parts.sink.shards(run)
    found = next((row for row in await parts.sink.runs(parts.spec.source.name, 100) if row.id == run), None)
    state = state_of(shards, found)
    await parts.sink.finish_run(run, state, None if found is None else found.why)
    return state
