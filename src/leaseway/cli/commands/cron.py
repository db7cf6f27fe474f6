"""leaseway cron [list|pause|resume]"""

import click

from leaseway.cli.commands.options import pass_settings, with_store
from leaseway.cli.lazy import InOrder
from leaseway.cli.settings import Settings


@click.group("cron", cls=InOrder, invoke_without_command=True)
@with_store
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: Settings) -> None:
    """Schedules: list, pause, resume. Without a word: list.

    A schedule is known to the store from the first start of a worker whose app declares it.
    """
    if ctx.invoked_subcommand is None:
        from leaseway.cli.verbs.cron import list_schedules

        list_schedules(settings)


@command.command("list")
@with_store
@pass_settings
def list_(settings: Settings) -> None:
    """Every schedule, with its last and its next time."""
    from leaseway.cli.verbs.cron import list_schedules

    list_schedules(settings)


@command.command("pause")
@click.argument("name")
@with_store
@pass_settings
def pause(settings: Settings, name: str) -> None:
    """Stop a schedule. What it misses meanwhile is dropped."""
    from leaseway.cli.verbs.cron import pause_schedule

    pause_schedule(settings, name, True)


@command.command("resume")
@click.argument("name")
@with_store
@pass_settings
def resume(settings: Settings, name: str) -> None:
    """Let a paused schedule go on, from now."""
    from leaseway.cli.verbs.cron import pause_schedule

    pause_schedule(settings, name, False)
