"""leaseway import status"""

import contextlib

from leaseway.api.schemas.imports import shard_document, summary_document
from leaseway.api.schemas.values import as_dict
from leaseway.cli.commands.imports.formatting import (
    given_up,
    is_at_work,
    next_command,
    show_quarantine,
    show_shards,
    show_summary,
)
from leaseway.cli.commands.imports.open_sink import OpenedSink, find_run, jobs_url, look
from leaseway.cli.output.json import document
from leaseway.cli.output.text import say
from leaseway.cli.settings import CliSettings
from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.limit import parse_rate
from leaseway.imports.domain.run_state import RunRow, RunState
from leaseway.imports.progress.report import order_by_parent
from leaseway.system import SystemClock, wall_clock_us

LOOK_SECONDS = 0.5


def show_status(settings: CliSettings, text: str, run: str | None, watch: bool) -> None:
    if watch and not settings.json:
        with contextlib.suppress(KeyboardInterrupt):
            look(text, lambda found: watched(found, run))
    look(text, lambda found: told(settings, found, run))


async def told(settings: CliSettings, found: OpenedSink, run: str | None) -> None:
    row = await find_run(found, run)
    shards = order_by_parent(await found.sink.shards.find_all(row.id))
    dead = await given_up(jobs_url(settings, found.name), found.source, row.id, shards)
    if settings.json:
        now = wall_clock_us()
        by_shard = [{**as_dict(shard_document(each, now)), "given_up": dead.get(each.shard.key)} for each in shards]
        document({**as_dict(summary_document(row, shards, found.spec.budget)), "by_shard": by_shard})
        return
    say(f"run {row.id}", "bold")
    show_shards(shards, dead)
    show_summary(found.spec, row, shards, dead, elapsed_seconds(row))
    show_quarantine(settings, found.name, shards)
    following = next_command(settings, found.name, row, run is not None)
    if following and row.state is not RunState.RUNNING:
        say(following)
    elif following and not await is_at_work(jobs_url(settings, found.name), found.source):
        say(f"no worker is running it now; {following}", "yellow")


def elapsed_seconds(run: RunRow) -> float:
    return ((run.finished_at or wall_clock_us()) - run.started_at) / SECOND_US


async def watched(found: OpenedSink, run: str | None) -> None:
    """Redraw until the run has ended or the user presses Ctrl-C."""
    from rich.console import Console

    from leaseway.imports.progress.progress import ProgressTracker, tightest
    from leaseway.imports.progress.progress_view import ProgressView

    clock, id_ = SystemClock(), (await find_run(found, run)).id
    rates = [parse_rate("source.limits", text) for text in found.spec.source.limits]
    watching = ProgressTracker(tightest(rates))
    title = f"{found.source} → {found.spec.sink.table}"
    with ProgressView(Console(stderr=True, highlight=False), title) as screen:
        while True:  # until the run ends; a run that makes no progress is shown as well
            with contextlib.suppress(TransientError):
                row, shards = await found.sink.runs.find(id_), await found.sink.shards.find_all(id_)
                if row is None or row.state is not RunState.RUNNING:
                    return
                screen.show(watching.update(clock.monotonic(), row, shards))
            await clock.sleep(LOOK_SECONDS)
