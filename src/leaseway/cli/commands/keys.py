"""leaseway keys [list|create|revoke|rotate]"""

from typing import Any

import click

from leaseway.cli.commands.options import pass_settings, with_store
from leaseway.cli.commands.types import DURATION
from leaseway.cli.lazy import InOrder
from leaseway.cli.settings import Settings

ROLES = ("tenant", "operator", "worker")
SCOPES = ("jobs:read", "jobs:write", "imports:read", "imports:write", "operate", "admin", "work")

one_id = click.argument("id_", metavar="ID")


@click.group("keys", cls=InOrder, invoke_without_command=True)
@with_store
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: Settings) -> None:
    """Keys of the API: who may ask the service, and for what. Without a word: list."""
    if ctx.invoked_subcommand is None:
        from leaseway.cli.verbs.keys import list_keys

        list_keys(settings, None)


@command.command("list")
@click.option("--tenant", metavar="NAME", help="Only those of this tenant.")
@with_store
@pass_settings
def list_(settings: Settings, tenant: str | None) -> None:
    """Every key, when it was used last, and whether it still opens. Never the secrets."""
    from leaseway.cli.verbs.keys import list_keys

    list_keys(settings, tenant)


@command.command("create", short_help="Make a key; it is shown once.")
@click.option(
    "--tenant", metavar="NAME", help="Whose it is. Needed for a tenant's key; a worker without one leases for all."
)
@click.option("--role", type=click.Choice(ROLES), default="tenant", show_default=True, help="The most that it can do.")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="Less than that. May be repeated.")
@click.option("--expires", type=DURATION, metavar="TIME", help="How long it is good: 90d. Else until it is revoked.")
@click.option("--name", default="", metavar="TEXT", help="For people: where it is used.")
@with_store
@pass_settings
def create(settings: Settings, /, **given: Any) -> None:
    """Make a key. It is shown once: what is stored is only a hash of it.

    \b
      leaseway keys create --tenant acme --expires 90d --name "web shop"
      leaseway keys create --tenant acme --scope jobs:read
      leaseway keys create --role operator
      leaseway keys create --role worker
    """
    from leaseway.cli.verbs.keys import create_key

    create_key(settings, given)


@command.command("revoke")
@one_id
@with_store
@pass_settings
def revoke(settings: Settings, id_: str) -> None:
    """From now on it opens nothing. Running services notice within half a minute."""
    from leaseway.cli.verbs.keys import revoke_key

    revoke_key(settings, id_)


@command.command("rotate", short_help="Make a key that takes the place of another.")
@one_id
@click.option(
    "--grace", type=DURATION, default="24h", show_default=True, metavar="TIME", help="So long the old one lives."
)
@click.option("--expires", type=DURATION, metavar="TIME", help="How long the new one is good. Else as long as the old.")
@with_store
@pass_settings
def rotate(settings: Settings, id_: str, grace: float, expires: float | None) -> None:
    """Make a key with the same rights beside an old one, which expires after the grace time.

    The new one is good for as long as the old one was, unless --expires says otherwise.
    """
    from leaseway.cli.verbs.keys import rotate_key

    rotate_key(settings, id_, grace, expires)
