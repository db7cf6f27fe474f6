"""leaseway lanes [list|pause|resume]"""

import click

from leaseway.cli.commands.options import pass_settings, with_limits, with_store
from leaseway.cli.lazy import InOrder
from leaseway.cli.settings import Settings

one_queue = click.argument("queue")
one_tenant = click.option("--tenant", metavar="NAME", help="Only those of this tenant. Else those of all.")


@click.group("lanes", cls=InOrder, invoke_without_command=True)
@with_limits
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: Settings) -> None:
    """What each queue and tenant holds, and what a lane waits for if it is shut. Without a word: list."""
    if ctx.invoked_subcommand is None:
        from leaseway.cli.verbs.lanes import show_lanes

        show_lanes(settings)


@command.command("list")
@with_limits
@pass_settings
def list_(settings: Settings) -> None:
    """Every lane, and what it waits for if it is shut."""
    from leaseway.cli.verbs.lanes import show_lanes

    show_lanes(settings)


@command.command("pause", short_help="Let no job of a queue begin.")
@one_queue
@one_tenant
@with_store
@pass_settings
def pause(settings: Settings, queue: str, tenant: str | None) -> None:
    """Let no job of a queue begin, until it is resumed. What runs goes on to its end."""
    from leaseway.cli.verbs.lanes_pause import pause_lanes

    pause_lanes(settings, queue, tenant)


@command.command("resume")
@one_queue
@one_tenant
@with_store
@pass_settings
def resume(settings: Settings, queue: str, tenant: str | None) -> None:
    """Let the jobs of a queue begin again."""
    from leaseway.cli.verbs.lanes_pause import resume_lanes

    resume_lanes(settings, queue, tenant)
