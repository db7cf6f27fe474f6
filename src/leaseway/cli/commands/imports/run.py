"""leaseway import run, resume and work"""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from types import FrameType
from typing import IO, NamedTuple

from leaseway.api.schemas.import_serializers import summary_json
from leaseway.app import App
from leaseway.cli.commands.imports.open_sink import OpenedSink, find_run, jobs_url, named
from leaseway.cli.commands.imports.shard_jobs import given_up
from leaseway.cli.commands.imports.summary import next_command, show_quarantine, show_summary
from leaseway.cli.open_limiter import named_limits
from leaseway.cli.open_store import refuse_memory
from leaseway.cli.output.color import harmless
from leaseway.cli.output.json import document
from leaseway.cli.output.text import note, say
from leaseway.cli.settings import CliSettings
from leaseway.domain.errors import BadValue, UsageError
from leaseway.imports.assembly import Parts, parts_of
from leaseway.imports.domain.run_state import EXIT_CODES, RunMode, RunRow
from leaseway.imports.plan.plan import history_of
from leaseway.imports.plan.probe_source import plan_of
from leaseway.imports.progress.report import is_used_up
from leaseway.imports.run.start import ShardJob, finish, queue_of, refuse_other_spec, shard_job, start, submit_open
from leaseway.system import wall_clock_us

GRACE_SECONDS = 2
"""A shard may take hours, and goes on at its last page elsewhere: nobody waits for its end."""
CONCURRENCY = 4
"""Shards of one worker at once, if the spec does not say."""
WORDS_SHOWN_MAX = 20
NAME = r"[A-Za-z0-9._-]{1,60}"


class RunOptions(NamedTuple):
    """What was typed."""

    spec: str
    run: str | None
    workers: int
    lease_seconds: float
    requests_max: int | None = None
    mode: RunMode | None = None


class RunLocation(NamedTuple):
    """Where jobs and limits are kept, for all workers."""

    store: str
    limits: str | None
    """None: beside the jobs."""


def locate_run(settings: CliSettings, spec: str) -> RunLocation:
    url = jobs_url(settings, spec)
    refuse_memory(url)
    return RunLocation(url, named_limits(settings))


def run_import(settings: CliSettings, wish: RunOptions, *, is_new: bool) -> int:
    if is_new:
        check_name(wish.run)
    parts, place = parts_of(named(wish.spec)), locate_run(settings, wish.spec)
    run = asyncio.run(begun(parts, place, wish, is_new))
    note(f"run {run}")
    began = time.monotonic()
    worked(parts, place, wish, run)
    return asyncio.run(closed(settings, parts, wish, run, time.monotonic() - began))


def worked(parts: Parts, place: RunLocation, wish: RunOptions, run: str) -> None:
    """Until all workers have left, or somebody wants them to."""
    processes: list[subprocess.Popen[bytes]] = []
    with heard(processes) as ear:
        try:
            with contextlib.suppress(KeyboardInterrupt), terminated_as_interrupted():
                processes += (worker_process(place, wish.spec, ear) for _ in range(wish.workers))
                asyncio.run(watched(parts, run, processes))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


@contextlib.contextmanager
def heard(processes: "list[subprocess.Popen[bytes]]") -> Iterator[IO[bytes] | None]:
    """Where workers say what goes wrong. On a terminal their words would tear the picture apart: there they are kept,
    and shown if one of them could not do its work."""
    if not sys.stderr.isatty():
        yield None
        return
    with tempfile.TemporaryFile() as ear:
        yield ear
        if any(process.returncode not in (0, -signal.SIGTERM) for process in processes):
            ear.seek(0)
            for line in ear.read().decode(errors="replace").splitlines()[-WORDS_SHOWN_MAX:]:
                note(harmless(line))


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM must not leave the workers behind either."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- the beginning ----------------------------------------------------------------------------------------------------


async def begun(parts: Parts, place: RunLocation, wish: RunOptions, is_new: bool) -> str:
    app = App(place.store, limits=place.limits)
    handle = shard_job(app, parts, wish.lease_seconds)
    try:
        await app.store()  # before the sink knows of a run whose jobs nobody could keep
        await parts.sink.open()
        return await (new_run if is_new else old_run)(parts, handle, wish)
    finally:
        await parts.sink.close()
        await app.close()


async def new_run(parts: Parts, handle: ShardJob, wish: RunOptions) -> str:
    now = wall_clock_us()
    run = wish.run or f"{parts.spec.source.name}-{now // 1_000}"
    if await parts.sink.run(run) is not None:
        raise UsageError(
            f"there is a run {run} already; go on with it by `leaseway import resume {wish.spec} --run {run}`, or give "
            "the new one another name"
        )
    history = await history_of(parts.sink, parts.spec.source.name, parts.task.spec_hash)
    plan = await plan_of(parts, history, wish.mode)
    seats = concurrency_per_worker(parts, wish.workers)
    await start(parts, handle, run, plan, now, seats=seats, requests_max=wish.requests_max)
    return run


def check_name(run: str | None) -> None:
    """Before anything is written: it becomes a part of the keys of the run's jobs."""
    if run is not None and not re.fullmatch(NAME, run):
        raise BadValue("--run", f"must have 1 to 60 letters, digits, '.', '_' and '-', no blanks (is {run[:60]!r})")


async def old_run(parts: Parts, handle: ShardJob, wish: RunOptions) -> str:
    found = await find_run(look_at(parts, wish.spec), wish.run)
    refuse_other_spec(parts, found)
    await give_budget(parts, found, wish)
    await submit_open(parts, handle, found.id)
    return found.id


async def give_budget(parts: Parts, found: RunRow, wish: RunOptions) -> None:
    """What was typed counts. Without it the run keeps its own, unless that is used up and the spec has a larger one."""
    budget = parts.spec.budget
    wanted = wish.requests_max
    if wanted is None and is_used_up(found) and budget is not None:
        wanted = budget.requests_max
    most = found.requests_max if wanted is None else wanted
    if most is not None and found.requests >= most:
        raise UsageError(
            f"run {found.id}: has used {found.requests:,} of {most:,} requests; give it more with --requests-max "
            f"{2 * found.requests}"
        )
    if wanted is not None:
        await parts.sink.set_budget(found.id, wanted)


def concurrency_per_worker(parts: Parts, workers: int) -> int:
    """How many shards can be worked on at once."""
    return workers * (parts.spec.source.concurrency or CONCURRENCY)


# -- the work ---------------------------------------------------------------------------------------------------------


def worker_process(place: RunLocation, spec: str, ear: IO[bytes] | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "leaseway.cli", "import", "work", spec, "--until-empty", "--store", place.store]
    limits = [] if place.limits is None else ["--limits", place.limits]
    return subprocess.Popen([*command, *limits], stdout=subprocess.DEVNULL, stderr=ear)


async def watched(parts: Parts, run: str, processes: "list[subprocess.Popen[bytes]]") -> None:
    from rich.console import Console

    from leaseway.imports.progress.progress_view import watch

    await watch(parts, run, processes, Console(stderr=True, highlight=False))


def work_on(settings: CliSettings, spec: str, until_empty: bool) -> None:
    settings.runs_handlers = True
    parts, place = parts_of(named(spec)), locate_run(settings, spec)
    app = App(place.store, limits=place.limits)
    shard_job(app, parts)
    asyncio.run(parts.sink.open())
    concurrency = parts.spec.source.concurrency or CONCURRENCY
    app.work(queues=[queue_of(parts)], until_empty=until_empty, concurrency=concurrency, grace=GRACE_SECONDS)


# -- the end ----------------------------------------------------------------------------------------------------------


async def closed(settings: CliSettings, parts: Parts, wish: RunOptions, run: str, seconds: float) -> int:
    await parts.sink.open()
    try:
        state = await finish(parts, run)
        row, shards = await find_run(look_at(parts, wish.spec), run), await parts.sink.shards(run)
        dead = await given_up(jobs_url(settings, wish.spec), parts.spec.source.name, run, shards)
    finally:
        await parts.sink.close()
    following = next_command(settings, wish.spec, row, wish.run is not None)
    if settings.json:
        document({**summary_json(row, shards, parts.spec.budget), "seconds": seconds, "next": following})
    else:
        show_summary(parts.spec, row, shards, dead, seconds)
        show_quarantine(settings, wish.spec, shards)
        if following:
            say(following)
    return EXIT_CODES.get(state, 1)


def look_at(parts: Parts, name: str) -> OpenedSink:
    return OpenedSink(name, parts.spec, parts.sink, parts.task.spec_hash)
