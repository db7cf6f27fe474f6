"""leaseway work"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from leaseway.app import App
from leaseway.cli.load_app import load_app
from leaseway.cli.open_limiter import VARIABLE as LIMITS_VARIABLE
from leaseway.cli.open_limiter import named_limits
from leaseway.cli.open_store import VARIABLE as STORE_VARIABLE
from leaseway.cli.open_store import store_url
from leaseway.cli.options import DURATION, CliSettings, pass_settings, with_limits
from leaseway.cli.output.console import counted, note, print_json_line, say
from leaseway.cli.output.work_log import WorkEvents, log_to_stderr, showing_progress
from leaseway.domain.errors import LeasewayError, UsageError
from leaseway.domain.validators import url_scheme
from leaseway.ports.reads import JobReads
from leaseway.signals import LEASES_LEFT, STUBBORN_SECONDS, drained_by_signals, join_fleet, run_to_the_end
from leaseway.telemetry.log import LogEvents
from leaseway.worker.environment import Environment, WorkerSummary
from leaseway.worker.loop import Worker

if TYPE_CHECKING:
    from leaseway.scaling.fleet import FleetSpec, FleetSummary


@click.command("work")
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--concurrency", type=int, default=20, show_default=True, help="Maximum number of jobs that run at the same time."
)
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Serve only this queue. May be repeated.")
@click.option(
    "--grace",
    type=DURATION,
    default=30.0,
    metavar="SECONDS",
    help="How long running jobs may continue after a signal. [30]",
)
@click.option("--until-empty", is_flag=True, help="Exit when no job is left.")
@click.option(
    "--fleet",
    metavar="min=1,max=8",
    help="Run worker processes and adapt their number to the load, never beyond what limits and budgets admit.",
)
@click.option("--quiet", is_flag=True, help="Log warnings and errors only.")
@click.option("--verbose", is_flag=True, help="Log every event.")
@with_limits
@pass_settings
def command(
    settings: CliSettings,
    app: str,
    concurrency: int,
    queues: tuple[str, ...],
    grace: float,
    until_empty: bool,
    fleet: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Run the jobs of an app. `tasks:app` is `app` in tasks.py; `tasks` alone is enough if the module has one app.

    The first SIGTERM or Ctrl-C drains the worker: it claims no more jobs, running jobs may finish within the grace
    period, and the rest are released to other workers. The second one cancels running jobs, the third exits at once.
    A fleet passes these signals to its workers; SIGHUP restarts them one by one, with the new code.

    \b
    Exit codes
      0  stopped as asked and every lease released, or no job was left; jobs may have failed
      1  an unexpected error, or workers of a fleet that die as soon as they start
      2  wrong usage: the message says what to change
      3  the store is unavailable
      4  stopped, but some leases could not be released: they expire by themselves
    """
    wanted = WorkOptions(app, concurrency, queues, grace, until_empty, quiet, verbose)
    return work(settings, wanted) if fleet is None else work_in_fleet(settings, wanted, fleet)


class WorkOptions(NamedTuple):
    app: str
    concurrency: int
    queues: tuple[str, ...]
    grace: float
    until_empty: bool
    quiet: bool
    verbose: bool


class WorkSummary(NamedTuple):
    worked: WorkerSummary | None
    """None: the worker was abandoned because the store did not answer."""
    attempts_failed: int
    dead_letters: int | None
    """Failed jobs of the served queues, whichever worker ran them. None: the store could not be read."""

    @property
    def is_clean(self) -> bool:
        return self.worked is not None and self.worked.is_clean


def work(settings: CliSettings, wanted: WorkOptions) -> int:
    app = load_app(wanted.app)
    # The app's own event listener is called as well, unless it writes the log lines that are written anyway.
    events = WorkEvents(None if isinstance(app.events, LogEvents) else app.events)
    app.move(store_url(settings, app.url), events, named_limits(settings))
    settings.json = log_to_stderr(settings.json, quiet=wanted.quiet, verbose=wanted.verbose)
    settings.runs_handlers = True
    report = run_to_the_end(work_until_stopped(app, wanted, events, show=not (settings.json or wanted.quiet)))
    show_report(settings, report)
    return 0 if report.is_clean else LEASES_LEFT


async def work_until_stopped(app: App, wanted: WorkOptions, events: WorkEvents, *, show: bool) -> WorkSummary:
    worker = make_worker(app, wanted)
    queues = wanted.queues or app.queues()
    try:
        store = await app.store()
        worked = None
        # Only an exchange that a broken store never answers takes this long; its leases expire by themselves.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as scope:
                with drained_by_signals(worker, scope):
                    join_fleet()
                    async with showing_progress(store.reads, queues, show):
                        worked = await app.run_worker(worker)
        return WorkSummary(worked, events.attempts_failed, await dead_letters(store.reads, queues))
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STUBBORN_SECONDS):
                await app.close()


async def dead_letters(reads: JobReads, queues: Sequence[str]) -> int | None:
    with contextlib.suppress(LeasewayError, TimeoutError):
        async with asyncio.timeout(STUBBORN_SECONDS):
            return sum(lane.failed for lane in await reads.lanes() if lane.queue in queues)
    return None


def make_worker(app: App, wanted: WorkOptions) -> Worker:
    return app.worker(
        concurrency=wanted.concurrency,
        queues=wanted.queues or None,
        grace=wanted.grace,
        until_empty=wanted.until_empty,
    )


def show_report(settings: CliSettings, report: WorkSummary) -> None:
    if settings.json:
        print_json_line({"event": "report", **report_json(report)})
        return
    if report.worked is not None:
        released = f", {report.worked.released:,} released" if report.worked.released else ""
        say(f"{counted(report.worked.settled, 'lease')} settled{released}")
        if report.worked.lost:
            say(f"{counted(report.worked.lost, 'lease')} lost")
    if report.attempts_failed:
        say(f"{counted(report.attempts_failed, 'attempt')} failed")
    if report.dead_letters:
        note(f"{report.dead_letters:,} failed for good in these queues: leaseway jobs list --state failed")
    if not report.is_clean:
        note("some leases could not be released; they expire by themselves, and other workers take over the jobs")


def report_json(report: WorkSummary) -> dict[str, Any]:
    worked = report.worked
    return {
        "settled": worked and worked.settled,
        "released": worked and worked.released,
        "lost": worked and worked.lost,
        "attempts_failed": report.attempts_failed,
        "dead_letters": report.dead_letters,
        "is_clean": report.is_clean,
    }


# -- fleets ----------------------------------------------------------------------------------------------------------


def work_in_fleet(settings: CliSettings, wanted: WorkOptions, fleet: str) -> int:
    # A single worker does not need them.
    from leaseway.scaling.fleet import FleetSpec
    from leaseway.scaling.pools import parse_scaling

    scaling = parse_scaling("fleet", fleet)
    app, events = load_app(wanted.app), WorkEvents(None)
    url, limits = store_url(settings, app.url), named_limits(settings)
    refuse_without_fleet(wanted, url)
    app.move(url, events, limits)
    make_worker(app, wanted)  # refuses what every worker would refuse
    settings.json = log_to_stderr(settings.json, quiet=wanted.quiet, verbose=wanted.verbose)
    spec = FleetSpec(
        command=worker_command(settings, wanted),
        # In the environment, because other users can read the arguments of a process.
        environ={**os.environ, STORE_VARIABLE: url, **({LIMITS_VARIABLE: limits} if limits else {})},
        queues=wanted.queues or app.queues(),
        slots=wanted.concurrency,
        grace_seconds=wanted.grace,
        settings=scaling,
    )
    summary = asyncio.run(run_fleet(app, spec, events))
    if settings.json:
        print_json_line({"event": "report", **summary._asdict()})
    else:
        say(f"{counted(summary.started, 'worker')} started, {summary.crashed:,} crashed")
    return 0 if summary.is_clean else LEASES_LEFT


def refuse_without_fleet(wanted: WorkOptions, url: str) -> None:
    if wanted.until_empty:
        raise UsageError("--until-empty cannot be combined with --fleet, which waits for the next job")
    if url_scheme(url) == "memory":
        raise UsageError("memory:// cannot be shared by the processes of a fleet; use sqlite:/// or postgresql://")
    if url_scheme(url) in ("http", "https"):
        raise UsageError(
            "a fleet reads the counters of its queues, which a service does not show to workers; "
            "scale workers over HTTP with GET /v1/scale instead"
        )
    if sys.platform == "win32":
        raise UsageError("--fleet needs the signals of POSIX; start several workers instead")


def worker_command(settings: CliSettings, wanted: WorkOptions) -> list[str]:
    command = [sys.executable, "-m", "leaseway.cli", "work", wanted.app]
    command += ["--concurrency", str(wanted.concurrency), "--grace", str(wanted.grace)]
    command += [part for queue in wanted.queues for part in ("--queue", queue)]
    flags = {"--quiet": wanted.quiet, "--verbose": wanted.verbose, "--json": settings.json}
    return command + [flag for flag, is_set in flags.items() if is_set]


async def run_fleet(app: App, spec: "FleetSpec", events: WorkEvents) -> "FleetSummary":
    from leaseway.scaling.fleet import Fleet

    async def open_world() -> Environment:
        await app.store()
        await app.world.limiter.open()
        return app.world

    try:
        return await Fleet(spec, open_world, app.world.clock, events).run()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STUBBORN_SECONDS):
                await app.close()
