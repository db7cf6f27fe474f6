"""leaseway lanes"""

import click

from leaseway.cli.commands.options import pass_settings, with_limits
from leaseway.cli.settings import Settings


@click.command("lanes")
@with_limits
@pass_settings
def command(settings: Settings) -> None:
    """What each queue and tenant holds, and what a lane waits for if it is shut."""
    from leaseway.cli.verbs.lanes import show_lanes

    show_lanes(settings)
