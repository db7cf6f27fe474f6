"""leaseway lanes"""

import click

from leaseway.cli.commands.options import pass_settings, with_store
from leaseway.cli.settings import Settings


@click.command("lanes")
@with_store
@pass_settings
def command(settings: Settings) -> None:
    """What each queue and tenant holds."""
    from leaseway.cli.verbs.lanes import show_lanes

    show_lanes(settings)
