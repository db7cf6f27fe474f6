"""leaseway import run, resume and work"""

import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import IO, NamedTuple

from leaseway.api.schemas.imports import summary_document
from leaseway.api.schemas.values import as_dict
from leaseway.app import App
from leaseway.cli.commands.imports.formatting import (
    describe_held,
    given_up,
    next_command,
    show_quarantine,
    show_summary,
)
from leaseway.cli.commands.imports.open_sink import OpenedSink, find_run, jobs_url, named
from leaseway.cli.open_limiter import named_limits
from leaseway.cli.open_store import refuse_memory
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import note, print_json, rich_console, say
from leaseway.domain.errors import UsageError
from leaseway.imports.domain.run_state import EXIT_CODES, RunMode
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.shard_jobs import register_jobs
from leaseway.imports.run.start import NewRun, check_run_name, resume, start

GRACE_SECONDS = 2
"""A shard may take hours, and another worker continues at its last page: the worker does not wait for its end."""
CONCURRENCY = 4
"""Shards that one worker processes at the same time, if the spec does not say."""
WORDS_SHOWN_MAX = 20
SEVERITY = (0, 4, 3, 1, 2)
"""Exit codes: complete, unverified, suspect, partial, failed."""
STOPPED = (-signal.SIGTERM, -signal.SIGINT)
REPLACED_MAX = 20
"""How many killed workers one command replaces: a page that needs more memory than there is kills every worker."""


class RunOptions(NamedTuple):
    """The options as typed."""

    spec: str
    run: str | None
    workers: int
    lease_seconds: float
    requests_max: int | None = None
    mode: RunMode | None = None
    overwrites_stale: bool = False


class RunLocation(NamedTuple):
    """Where jobs and limits are stored, for all workers."""

    store: str
    limits: str | None
    """None: in the store of the jobs."""


def locate_run(settings: CliSettings, spec: str) -> RunLocation:
    url = jobs_url(settings, spec)
    refuse_memory(url)
    return RunLocation(url, named_limits(settings))


def run_each(settings: CliSettings, specs: Sequence[str], wish: RunOptions, *, is_new: bool) -> int:
    """The resources of a file, one after another; one that fails does not stop the others. Returns the worst code."""
    if len(specs) > 1 and wish.run is not None:
        raise UsageError(f"--run: names the run of one resource; name one: {', '.join(specs)}")
    for each in specs:  # a mistake in the last one is shown before the first one runs for hours
        load_import(named(each))
    codes = [run_import(settings, wish._replace(spec=each), is_new=is_new) for each in specs]
    return max(codes, key=SEVERITY.index)


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
    from leaseway.imports.run.progress_view import watch

    with error_output() as ear, contextlib.suppress(KeyboardInterrupt), terminated_as_interrupted():
        workers = LocalWorkers(place, wish.spec, ear)
        try:
            workers.start(wish.workers)
            asyncio.run(watch(parts, run, workers.is_any_left, rich_console(stderr=True)))
        finally:
            workers.stop()


@contextlib.contextmanager
def error_output() -> Iterator[IO[bytes] | None]:
    """Where workers write errors. On a terminal they would break the live table, so they are collected."""
    if not sys.stderr.isatty():
        yield None
        return
    with tempfile.TemporaryFile() as ear:
        yield ear


class LocalWorkers:
    """The worker processes of one command. A killed one is replaced: its shards would wait for another command."""

    def __init__(self, place: RunLocation, spec: str, ear: IO[bytes] | None) -> None:
        self._place, self._spec, self._ear = place, spec, ear
        self._processes: list[subprocess.Popen[bytes]] = []
        self._replaced = 0

    def start(self, count: int) -> None:
        self._processes += (worker_process(self._place, self._spec, self._ear) for _ in range(count))

    def is_any_left(self) -> bool:
        for process in [each for each in self._processes if is_killed(each)][: REPLACED_MAX - self._replaced]:
            self._replaced += 1
            note(
                f"worker {process.pid} was killed by {signal.Signals(-process.returncode).name}; another one takes over"
            )
            self._processes.remove(process)
            self.start(1)
        return any(process.poll() is None for process in self._processes)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        if self._ear is not None and any(each.returncode not in (0, *STOPPED) for each in self._processes):
            self._show_errors(self._ear)

    def _show_errors(self, ear: IO[bytes]) -> None:
        ear.seek(0)
        for line in ear.read().decode(errors="replace").splitlines()[-WORDS_SHOWN_MAX:]:
            note(line)


def is_killed(process: "subprocess.Popen[bytes]") -> bool:
    code = process.poll()
    return code is not None and code < 0 and code not in STOPPED


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
            new = NewRun(wish.run, wish.mode, wish.requests_max, concurrency, wish.overwrites_stale)
            return (await start(parts, jobs, new)).id
        found = await find_run(look_at(parts, wish.spec), wish.run)
        await resume(parts, jobs, found, wish.requests_max)
        if (held := await describe_held(await app.store(), parts.spec.source.name)) is not None:
            note(held)
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
        print_json({**as_dict(summary_document(row, shards, parts.spec.budget)), "seconds": seconds, "next": following})
    else:
        show_summary(parts.spec, row, shards, dead, seconds)
        show_quarantine(settings, wish.spec, shards)
        if following:
            say(following)
    return EXIT_CODES.get(state, 1)


def look_at(parts: ImportParts, name: str) -> OpenedSink:
    return OpenedSink(name, parts.spec, parts.sink, parts.task.spec_hash)
