"""Start and resume a run: one set of rules for Python, the command line and HTTP.

name ─► plan ─► run and shards in the sink ─► shard jobs

Starting twice with one name is refused. Everything after the check can be repeated: the same run has the same shards,
and every shard has one job key.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from leaseway.domain.errors import BadValue, KeyConflict, NoSuchJob, UsageError
from leaseway.domain.ids import Instant
from leaseway.imports.domain.partition import Shard
from leaseway.imports.domain.run_state import RunMode, RunRow
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.finish_run import SWEEPS
from leaseway.imports.run.page_writes import OVERWRITES
from leaseway.imports.run.plan import Plan, make_plan
from leaseway.imports.run.shard_jobs import ImportJobs, submit_open_shards
from leaseway.imports.sinks.port import Sink
from leaseway.system import wall_clock_us

NAME_LENGTH_MAX = 120
NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_LENGTH_MAX}}}")
RUNS_LISTED_MAX = 20


class NewRun(NamedTuple):
    """The options of a new run."""

    name: str | None = None
    """None: the name of the source and the time in milliseconds."""
    mode: RunMode | None = None
    """None: incremental if the spec and the previous runs allow it, otherwise full."""
    requests_max: int | None = None
    """The budget of requests. None: the budget of the spec."""
    concurrency: int = 0
    """How many shards all workers process at once; large shards are split while fewer are left. 0: unknown."""
    overwrites_stale: bool = False
    """Whether records replace rows with a newer stamp, after the source was set back."""


async def start(parts: ImportParts, jobs: ImportJobs, new: NewRun, probe_seconds_max: float | None = None) -> RunRow:
    """Plan a run, store it in the sink, and submit its shard jobs. The sink is open.

    Raises `SourceUnavailable` if the source cannot be probed, or not within `probe_seconds_max`.
    """
    now = wall_clock_us()
    name = check_run_name(new.name if new.name is not None else f"{parts.spec.source.name}-{now // 1_000}")
    if await parts.sink.runs.find(name) is not None:
        raise UsageError(f"run: {name} exists already; resume it, or choose another name")
    plan = await make_plan(parts, new.mode, probe_seconds_max)
    return await start_planned(
        parts, jobs, name, plan, now, concurrency=new.concurrency, requests_max=new.requests_max,
        overwrites_stale=new.overwrites_stale,
    )  # fmt: skip


async def start_planned(
    parts: ImportParts,
    jobs: ImportJobs,
    run: str,
    plan: Plan | Sequence[Shard],
    now: Instant,
    *,
    concurrency: int = 0,
    requests_max: int | None = None,
    overwrites_stale: bool = False,
) -> RunRow:
    """Store a planned run and submit its shard jobs. Repeating the call changes nothing."""
    check_run_name(run)
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
        concurrency=concurrency,
        id_max=whole.id_max,
        requests_max=requests_max if requests_max is not None or budget is None else budget.requests_max,
        notes={
            **({SWEEPS: True} if parts.task.sweeps and whole.mode is RunMode.FULL else {}),
            **({OVERWRITES: True} if overwrites_stale else {}),
        },
    )
    row = await parts.sink.runs.start(new, whole.shards)
    await submit_open_shards(parts, jobs, run)
    return row


async def resume(parts: ImportParts, jobs: ImportJobs, run: RunRow, requests_max: int | None = None) -> int:
    """Continue a run: submit its unfinished and parked shards again. Return how many there are."""
    refuse_other_spec(parts, run)
    await set_resume_budget(parts, run, requests_max)
    return await submit_open_shards(parts, jobs, run.id)


def check_run_name(run: str) -> str:
    """Names are part of job keys and URL paths."""
    if not NAME.fullmatch(run):
        raise BadValue(
            "run",
            f"must be 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' and '-', without spaces (is {run[:60]!r})",
        )
    return run


def refuse_other_spec(parts: ImportParts, run: RunRow) -> None:
    if run.spec_hash != parts.task.spec_hash:
        raise KeyConflict(
            f"run {run.id}: was started with another spec (hash {run.spec_hash}, now {parts.task.spec_hash}); resume "
            f"it with the spec it was started with, or start a new run with `leaseway import run {parts.path}`"
        )


async def set_resume_budget(parts: ImportParts, run: RunRow, requests_max: int | None) -> None:
    """Apply the budget given on resume.

    Without one, the run keeps its budget, unless that is used up and the spec has a larger one. A budget that is
    already used up is refused: the run could not send a single request.
    """
    budget, wanted = parts.spec.budget, requests_max
    if wanted is None and run.is_budget_used_up and budget is not None:
        wanted = budget.requests_max
    effective = run.requests_max if wanted is None else wanted
    if effective is not None and run.requests >= effective:
        example = 2 * run.requests
        raise UsageError(
            f"requests_max: run {run.id} has used {run.requests:,} of {effective:,} requests; resume it with a larger "
            f"budget, for example requests_max={example} (--requests-max {example})"
        )
    if wanted is not None:
        await parts.sink.runs.set_budget(run.id, wanted)


async def find_run(sink: Sink, source: str, run: str | None = None, spec: object = "SPEC") -> RunRow:
    """The run with this name, or the latest run of the source. `spec` is named in errors. Raises `NoSuchJob`."""
    latest = await sink.runs.find_all(source, RUNS_LISTED_MAX)
    row = next(iter(latest), None) if run is None else await sink.runs.find(run)
    if row is not None and row.source == source:
        return row
    if not latest:
        raise NoSuchJob(f"source {source} has no runs yet; start one with: leaseway import run {spec}")
    raise NoSuchJob(f"source {source} has no run {run}; its latest runs: {', '.join(each.id for each in latest)}")
