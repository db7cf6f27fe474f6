"""leaseway doctor"""

import click

from leaseway.cli.commands.options import pass_settings, with_store
from leaseway.cli.settings import Settings


@click.command("doctor")
@click.option("--deep", is_flag=True, help="Read everything, however long it takes.")
@with_store
@pass_settings
def command(settings: Settings, deep: bool) -> int:
    """Find out what is wrong with a store, and what to do.

    Changes nothing. Exit code 1 if there is a problem; warnings alone do not count.
    """
    from leaseway.cli.verbs.doctor import doctor

    return doctor(settings, deep)
