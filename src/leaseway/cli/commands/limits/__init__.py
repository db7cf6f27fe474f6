"""leaseway limits [list|explain|set|pause|resume|forget]"""

from typing import Any

import click

from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.options import COUNT_OR_NONE, DURATION, pass_settings, with_limits
from leaseway.cli.settings import CliSettings

one_name = click.argument("name")


@click.group("limits", cls=InOrder, invoke_without_command=True)
@with_limits
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """Limits of providers: list, explain, set, pause, resume, forget. Without a word: list.

    A limit is known as soon as a worker has met a job that needs it.
    """
    if ctx.invoked_subcommand is None:
        from leaseway.cli.commands.limits.definitions import list_limits

        list_limits(settings)


@command.command("list")
@with_limits
@pass_settings
def list_(settings: CliSettings) -> None:
    """Every limit, and how it stands now."""
    from leaseway.cli.commands.limits.definitions import list_limits

    list_limits(settings)


@command.command("explain", short_help="What its numbers become, why they hold, how it stands.")
@one_name
@with_limits
@pass_settings
def explain(settings: CliSettings, name: str) -> None:
    """What becomes of the provider's numbers, why they hold in every window, and how the limit stands now."""
    from leaseway.cli.commands.limits.explain import explain_limit

    explain_limit(settings, name)


@command.command("set", short_help="Change a limit, or make one.")
@one_name
@click.argument("rates", metavar="[RATE]...", nargs=-1)
@click.option("--concurrency", type=COUNT_OR_NONE, metavar="N", help="Calls under way at once; none: any number.")
@click.option("--burst", type=float, metavar="SHARE", help="Of a rate's count, to be used at once: 0 … 1.")
@click.option("--cost-max", type=int, metavar="N", help="The largest weight of one call.")
@click.option("--lease", type=DURATION, metavar="TIME", help="How long a worker may keep tokens that it took ahead.")
@click.option("--delay", type=DURATION, metavar="TIME", help="From the grant to the provider, at most.")
@with_limits
@pass_settings
def set_(settings: CliSettings, /, name: str, rates: tuple[str, ...], **given: Any) -> None:
    """Change a limit, or make one: in force at once, for everybody. What is not named stays as it is.

    Restarts do not undo it; only an app that declares something new does.

    \b
      leaseway limits set maps 3/second 100/minute
      leaseway limits set maps --concurrency 5
    """
    from leaseway.cli.commands.limits.definitions import set_limit

    set_limit(settings, name, rates, given)


@command.command("pause", short_help="Let a limit grant nothing for now.")
@one_name
@with_limits
@pass_settings
def pause(settings: CliSettings, name: str) -> None:
    """Pause a limit: it grants nothing, to nobody. Calls that are under way go on; jobs wait, and lose no attempt."""
    from leaseway.cli.commands.limits.definitions import pause_limit

    pause_limit(settings, name, True)


@command.command("resume")
@one_name
@with_limits
@pass_settings
def resume(settings: CliSettings, name: str) -> None:
    """Resume a limit. Workers notice within some seconds."""
    from leaseway.cli.commands.limits.definitions import pause_limit

    pause_limit(settings, name, False)


@command.command("forget")
@one_name
@with_limits
@pass_settings
def forget(settings: CliSettings, name: str) -> None:
    """Remove a limit. Jobs that need it wait until somebody defines it again."""
    from leaseway.cli.commands.limits.definitions import forget_limit

    forget_limit(settings, name)
