"""leaseway work"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from leaseway.app import App
from leaseway.cli.load_app import load_app
from leaseway.cli.open_limiter import named_limits
from leaseway.cli.open_store import store_url
from leaseway.cli.options import DURATION, pass_settings, with_limits
from leaseway.cli.output.json import line
from leaseway.cli.output.text import counted, note, say
from leaseway.cli.output.work_log import WorkEvents, log_to_stderr, showing_progress
from leaseway.cli.settings import CliSettings
from leaseway.domain.errors import LeasewayError
from leaseway.ports.reads import JobReads
from leaseway.signals import LEASES_LEFT, STUBBORN_SECONDS, drained_by_signals, run_to_the_end
from leaseway.telemetry.log import LogEvents
from leaseway.worker.loop import Worker, WorkerSummary


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
    quiet: bool,
    verbose: bool,
) -> int:
    """Run the jobs of an app. `tasks:app` is `app` in tasks.py; `tasks` alone is enough if the module has one app.

    The first SIGTERM or Ctrl-C drains the worker: it claims no more jobs, running jobs may finish within the grace
    period, and the rest are released to other workers. The second one cancels running jobs, the third exits at once.

    \b
    Exit codes
      0  stopped as asked and every lease released, or no job was left; jobs may have failed
      1  an unexpected error
      2  wrong usage: the message says what to change
      3  the store is unavailable
      4  stopped, but some leases could not be released: they expire by themselves
    """
    wanted = WorkOptions(app, concurrency, queues, grace, until_empty, quiet, verbose)
    return work(settings, wanted)


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
        line({"event": "report", **report_json(report)})
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
