"""leaseway jobs list|show|why|retry|run-now|cancel|discard|prune"""

from functools import partial

import click

from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.options import (
    DURATION,
    STATES,
    CliSettings,
    Filters,
    everywhere,
    pass_settings,
    store,
    with_filters,
    with_limits,
    with_store,
)

bulk = click.option("--all", "is_bulk", is_flag=True, help="All jobs that match the filters, instead of ids.")
yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
one_id = click.argument("id_", metavar="ID")
some_ids = click.argument("ids", metavar="[ID]...", nargs=-1)


@click.group("jobs", cls=InOrder)
@with_store
def command() -> None:
    """List and show jobs, explain why they wait, retry, cancel, discard."""


@command.command("list")
@with_filters(*STATES)
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Maximum number of rows.")
@click.option("--before", metavar="ID", help="Only jobs older than this id: the last id of the previous page.")
@with_store
@pass_settings
def list_(settings: CliSettings, filters: Filters, limit: int, before: str | None) -> None:
    """List jobs, newest first."""
    from leaseway.cli.commands.jobs.show import list_jobs

    list_jobs(settings, filters, limit, before)


@command.command("show")
@one_id
@click.option("--app", metavar="MODULE:APP", help="Decrypt with the keys of this app, or LEASEWAY_ENCRYPTION_KEYS.")
@store
@partial(everywhere, traceback="Every stored traceback of the job, not only the last.")
@pass_settings
def show(settings: CliSettings, id_: str, app: str | None) -> None:
    """Show everything about one job."""
    from leaseway.cli.commands.jobs.show import show_job

    show_job(settings, id_, app)


@command.command("why")
@one_id
@with_limits
@pass_settings
def why(settings: CliSettings, id_: str) -> None:
    """Explain why a job has not run, what it waits for, and what to do."""
    from leaseway.cli.commands.jobs.show import why_job

    why_job(settings, id_)


@command.command("retry", short_help="Make failed or cancelled jobs pending again.")
@some_ids
@with_filters("failed", "cancelled")
@bulk
@yes
@with_store
@pass_settings
def retry(settings: CliSettings, ids: tuple[str, ...], filters: Filters, is_bulk: bool, yes: bool) -> int:
    """Make failed or cancelled jobs pending again, with new attempts and their old cursor.

    With --all and no --state: the failed ones.
    """
    from leaseway.cli.commands.jobs.change import chosen, retry_jobs

    return retry_jobs(settings, chosen(ids, is_bulk, filters, ("failed",)), yes)


@command.command("run-now")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@with_store
@pass_settings
def run_now(settings: CliSettings, ids: tuple[str, ...]) -> int:
    """Bring forward pending jobs that wait for their time: a schedule, a retry or a booked budget window."""
    from leaseway.cli.commands.jobs.change import run_jobs_now

    return run_jobs_now(settings, ids)


@command.command("cancel")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@with_store
@pass_settings
def cancel(settings: CliSettings, ids: tuple[str, ...]) -> int:
    """Cancel jobs: at once if they are pending, through their worker if they run. Releases their booked holds."""
    from leaseway.cli.commands.jobs.change import cancel_jobs

    return cancel_jobs(settings, ids)


@command.command("discard")
@some_ids
@with_filters("done", "failed", "cancelled")
@bulk
@yes
@with_store
@pass_settings
def discard(settings: CliSettings, ids: tuple[str, ...], filters: Filters, is_bulk: bool, yes: bool) -> int:
    """Delete finished jobs for good.

    With --all and no --state: whatever their outcome.
    """
    from leaseway.cli.commands.jobs.change import chosen, discard_jobs

    return discard_jobs(settings, chosen(ids, is_bulk, filters, ("done", "failed", "cancelled")), yes)


@command.command("prune")
@click.option("--older-than", type=DURATION, required=True, metavar="TIME", help="For example 7d, 12h, 90m.")
@with_store
@pass_settings
def prune(settings: CliSettings, older_than: float) -> None:
    """Delete jobs that finished longer ago than this, and expired idempotency keys.

    Workers do the same regularly, with the retention time of their app.
    """
    from leaseway.cli.commands.jobs.change import prune_jobs

    prune_jobs(settings, older_than)
