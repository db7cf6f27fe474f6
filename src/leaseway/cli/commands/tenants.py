"""leaseway tenants [list|set|forget]"""

from typing import Any

import click

from leaseway.cli.commands.options import pass_settings, with_limits, with_store
from leaseway.cli.commands.types import COUNT_OR_NONE
from leaseway.cli.lazy import InOrder
from leaseway.cli.settings import Settings

one_name = click.argument("name")


@click.group("tenants", cls=InOrder, invoke_without_command=True)
@with_limits
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: Settings) -> None:
    """What is agreed with tenants: weights and caps. Without a word: list.

    A tenant that nobody has set weighs 1 and has no caps.
    """
    if ctx.invoked_subcommand is None:
        from leaseway.cli.verbs.tenants import list_tenants

        list_tenants(settings)


@command.command("list")
@with_store
@pass_settings
def list_(settings: Settings) -> None:
    """Every tenant with which something is agreed."""
    from leaseway.cli.verbs.tenants import list_tenants

    list_tenants(settings)


@command.command("set", short_help="Agree on something with a tenant.")
@one_name
@click.option("--weight", type=int, metavar="N", help="How often it is served, against others.")
@click.option(
    "--starts", metavar="RATE", multiple=True, help="Jobs that may start: 100/minute. May be repeated; none: any."
)
@click.option("--concurrency", type=COUNT_OR_NONE, metavar="N", help="Jobs that may run at once; none: any number.")
@with_limits
@pass_settings
def set_(settings: Settings, /, name: str, **given: Any) -> None:
    """Agree on something with a tenant: in force with the next claim. What is not named stays as it is.

    \b
      leaseway tenants set acme --weight 3
      leaseway tenants set acme --starts 100/minute --concurrency 5
    """
    from leaseway.cli.verbs.tenants import set_tenant

    set_tenant(settings, name, given)


@command.command("forget")
@one_name
@with_store
@pass_settings
def forget(settings: Settings, name: str) -> None:
    """As if nothing had been agreed: weight 1, no caps."""
    from leaseway.cli.verbs.tenants import forget_tenant

    forget_tenant(settings, name)
