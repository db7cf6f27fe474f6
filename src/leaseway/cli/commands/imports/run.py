"""leaseway import run, resume and work"""

import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from types import FrameType
from typing import IO, NamedTuple

from leaseway.api.schemas.imports import summary_document
from leaseway.api.schemas.values import as_dict
from leaseway.app import App
from leaseway.cli.commands.imports.formatting import given_up, next_command, show_quarantine, show_summary
from leaseway.cli.commands.imports.open_sink import OpenedSink, find_run, jobs_url, named
from leaseway.cli.open_limiter import named_limits
from leaseway.cli.open_store import refuse_memory
from leaseway.cli.output.color import harmless
from leaseway.cli.output.json import document
from leaseway.cli.output.text import note, say
from leaseway.cli.settings import CliSettings
from leaseway.imports.assembly import ImportParts, load_import
from leaseway.imports.domain.run_state import EXIT_CODES, RunMode
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.shard_jobs import register_jobs
from leaseway.imports.run.start import NewRun, check_run_name, resume, start

GRACE_SECONDS = 2
"""A shard may take hours, and another worker continues at its last page: the worker does not wait for its end."""
CONCURRENCY = 4
"""Shards that one worker processes at the same time, if the spec does not say."""
WORDS_SHOWN_MAX = 20


class RunOptions(NamedTuple):
    """The options as typed."""

    spec: str
    run: str | None
    workers: int
    lease_seconds: float
    requests_max: int | None = None
    mode: RunMode | None = None


class RunLocation(NamedTuple):
    """Where jobs and limits are stored, for all workers."""

    store: str
    limits: str | None
    """None: in the store of the jobs."""


def locate_run(settings: CliSettings, spec: str) -> RunLocation:
    url = jobs_url(settings, spec)
    refuse_memory(url)
    return RunLocation(url, named_limits(settings))


def run_import(settings: CliSettings, wish: RunOptions, *, is_new: bool) -> int:
    if is_new and wish.run is not None:
        check_run_name(wish.run)  # before the first file is created
    parts, place = load_import(named(wish.spec)), locate_run(settings, wish.spec)
    run = asyncio.run(begun(parts, place, wish, is_new))
    note(f"run {run}")
    began = time.monotonic()
    worked(parts, place, wish, run)
    return asyncio.run(closed(settings, parts, wish, run, time.monotonic() - began))


def worked(parts: ImportParts, place: RunLocation, wish: RunOptions, run: str) -> None:
    """Until all workers have exited or the user interrupts."""
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
    """Where workers write errors. On a terminal they would break the live table, so they are collected and shown if a
    worker failed.
    """
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
    """SIGTERM must not leave the workers running."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- start
# --------------------------------------------------------------------------------------------------------------


async def begun(parts: ImportParts, place: RunLocation, wish: RunOptions, is_new: bool) -> str:
    app = App(place.store, limits=place.limits)
    jobs = register_jobs(app, parts, wish.lease_seconds)
    try:
        await app.store()  # fails before the sink contains a run whose jobs cannot be stored
        await parts.sink.open()
        if is_new:
            concurrency = concurrency_per_worker(parts, wish.workers)
            return (await start(parts, jobs, NewRun(wish.run, wish.mode, wish.requests_max, concurrency))).id
        found = await find_run(look_at(parts, wish.spec), wish.run)
        await resume(parts, jobs, found, wish.requests_max)
        return found.id
    finally:
        await parts.sink.close()
        await app.close()


def concurrency_per_worker(parts: ImportParts, workers: int) -> int:
    """How many shards can be processed at the same time."""
    return workers * (parts.spec.source.concurrency or CONCURRENCY)


# -- workers
# ------------------------------------------------------------------------------------------------------------


def worker_process(place: RunLocation, spec: str, ear: IO[bytes] | None) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "leaseway.cli", "import", "work", spec, "--until-empty", "--store", place.store]
    limits = [] if place.limits is None else ["--limits", place.limits]
    return subprocess.Popen([*command, *limits], stdout=subprocess.DEVNULL, stderr=ear)


async def watched(parts: ImportParts, run: str, processes: "list[subprocess.Popen[bytes]]") -> None:
    from rich.console import Console

    from leaseway.imports.progress.progress_view import watch

    await watch(parts, run, processes, Console(stderr=True, highlight=False))


def work_on(settings: CliSettings, spec: str, until_empty: bool) -> None:
    settings.runs_handlers = True
    parts, place = load_import(named(spec)), locate_run(settings, spec)
    app = App(place.store, limits=place.limits)
    register_jobs(app, parts)
    asyncio.run(parts.sink.open())
    concurrency = parts.spec.source.concurrency or CONCURRENCY
    app.work(queues=[parts.queue], until_empty=until_empty, concurrency=concurrency, grace=GRACE_SECONDS)


# -- end
# ----------------------------------------------------------------------------------------------------------------


async def closed(settings: CliSettings, parts: ImportParts, wish: RunOptions, run: str, seconds: float) -> int:
    await parts.sink.open()
    try:
        state = await finish_run(parts, run)
        row, shards = await find_run(look_at(parts, wish.spec), run), await parts.sink.shards.find_all(run)
        dead = await given_up(jobs_url(settings, wish.spec), parts.spec.source.name, run, shards)
    finally:
        await parts.sink.close()
    following = next_command(settings, wish.spec, row, wish.run is not None)
    if settings.json:
        document({**as_dict(summary_document(row, shards, parts.spec.budget)), "seconds": seconds, "next": following})
    else:
        show_summary(parts.spec, row, shards, dead, seconds)
        show_quarantine(settings, wish.spec, shards)
        if following:
            say(following)
    return EXIT_CODES.get(state, 1)


def look_at(parts: ImportParts, name: str) -> OpenedSink:
    return OpenedSink(name, parts.spec, parts.sink, parts.task.spec_hash)
