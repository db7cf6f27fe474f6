"""leaseway limits [list|explain|set|pause|resume|forget]"""

from typing import Any

import click

from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.options import COUNT_OR_NONE, DURATION, CliSettings, pass_settings, with_limits

one_name = click.argument("name")


@click.group("limits", cls=InOrder, invoke_without_command=True)
@with_limits
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """Limits of providers: list, explain, set, pause, resume, forget. Without a subcommand: list.

    A limit is known as soon as a worker has claimed a job that needs it.
    """
    if ctx.invoked_subcommand is None:
        from leaseway.cli.commands.limits.definitions import list_limits

        list_limits(settings)


@command.command("list")
@with_limits
@pass_settings
def list_(settings: CliSettings) -> None:
    """List every limit with its current state."""
    from leaseway.cli.commands.limits.definitions import list_limits

    list_limits(settings)


@command.command("explain", short_help="Explain how a limit is enforced, and its current state.")
@one_name
@with_limits
@pass_settings
def explain(settings: CliSettings, name: str) -> None:
    """Explain how the rates of a limit are enforced, why they hold in every window, and its current state."""
    from leaseway.cli.commands.limits.explain import explain_limit

    explain_limit(settings, name)


@command.command("set", short_help="Change a limit, or create one.")
@one_name
@click.argument("rates", metavar="[RATE]...", nargs=-1)
@click.option(
    "--concurrency", type=COUNT_OR_NONE, metavar="N", help="Maximum number of calls in flight; none: unlimited."
)
@click.option("--burst", type=float, metavar="SHARE", help="Share of a rate's count that may be used at once: 0 … 1.")
@click.option("--cost-max", type=int, metavar="N", help="The largest weight of one call.")
@click.option(
    "--lease", type=DURATION, metavar="TIME", help="How long a worker may hold permits that it acquired in advance."
)
@click.option(
    "--delay",
    type=DURATION,
    metavar="TIME",
    help="Maximum delay from the grant of a permit to the request's arrival at the provider.",
)
@click.option(
    "--start",
    type=click.Choice(["empty", "full", "none"]),
    metavar="LEVEL",
    help="empty or full: the level of a limit without state; none: full if nothing can have been used before.",
)
@click.option(
    "--breaker",
    type=COUNT_OR_NONE,
    metavar="N",
    help="Number of calls that fail in a row before no call leaves for a while; none: no circuit breaker.",
)
@click.option("--unit", metavar="WORD", help="What the provider counts: requests, tokens, input_tokens, …")
@with_limits
@pass_settings
def set_(settings: CliSettings, /, name: str, rates: tuple[str, ...], **given: Any) -> None:
    """Change a limit, or create one. Takes effect at once for all workers. Options that you omit keep their value.

    A restart does not undo the change; only a changed declaration in the app does.

    \b
      leaseway limits set maps 3/second 100/minute
      leaseway limits set maps --concurrency 5
    """
    from leaseway.cli.commands.limits.definitions import set_limit

    set_limit(settings, name, rates, given)


@command.command("pause", short_help="Pause a limit.")
@one_name
@with_limits
@pass_settings
def pause(settings: CliSettings, name: str) -> None:
    """Pause a limit: it grants no permits. Calls in flight go on; jobs wait and lose no attempt."""
    from leaseway.cli.commands.limits.definitions import pause_limit

    pause_limit(settings, name, True)


@command.command("resume")
@one_name
@with_limits
@pass_settings
def resume(settings: CliSettings, name: str) -> None:
    """Resume a limit. Jobs that wait for it are tried at once."""
    from leaseway.cli.commands.limits.definitions import pause_limit

    pause_limit(settings, name, False)


@command.command("forget")
@one_name
@with_limits
@pass_settings
def forget(settings: CliSettings, name: str) -> None:
    """Remove a limit. Jobs that need it wait until it is defined again."""
    from leaseway.cli.commands.limits.definitions import forget_limit

    forget_limit(settings, name)
