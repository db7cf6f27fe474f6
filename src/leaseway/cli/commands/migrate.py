"""leaseway migrate"""

import click

from leaseway.cli.commands.options import pass_settings, with_store
from leaseway.cli.settings import Settings


@click.command("migrate")
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if there is something to do.")
@with_store
@pass_settings
def command(settings: Settings, check: bool) -> int:
    """Create the store or bring it up to date. Harmless when there is nothing to do.

    Workers and submissions do it by themselves; this is for those who want to choose the moment.
    """
    from leaseway.cli.verbs.migrate import check_schema, migrate

    return check_schema(settings) if check else migrate(settings)
