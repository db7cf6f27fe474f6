"""leaseway serve"""

from typing import Any

import click

from leaseway.cli.commands.options import pass_settings, with_limits
from leaseway.cli.settings import Settings


@click.command("serve")
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen. Others than the loopback need keys."
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="0 takes any free one.")
@click.option(
    "--no-auth", "auth", is_flag=True, default=True, flag_value=False, help="Whoever reaches it may do everything."
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A name under which it is reached. May be repeated."
)
@click.option("--issuer", metavar="URL", help="Take JWTs of this issuer, too; with --audience and --jwks-url.")
@click.option("--audience", metavar="TEXT", help="What the JWTs must be meant for.")
@click.option("--jwks-url", metavar="URL", help="Where the issuer keeps its public keys.")
@click.option("--tenant-claim", default="tenant", show_default=True, help="The claim of a JWT that names the tenant.")
@click.option(
    "--requests-per-minute", type=click.IntRange(min=1), default=6_000, show_default=True, help="Of one tenant."
)
@click.option("--requests-at-once", type=click.IntRange(min=1), default=200, show_default=True, help="Of one tenant.")
@click.option(
    "--imports", type=click.Path(exists=True, file_okay=False), metavar="FOLDER",
    help="Serve the imports whose specs (.toml) are in this folder.",
)  # fmt: skip
@click.option("--quiet", is_flag=True, help="Only warnings and errors.")
@click.option("--verbose", is_flag=True, help="Everything that happens.")
@with_limits
@pass_settings
def command(settings: Settings, /, app: str | None, quiet: bool, verbose: bool, **wanted: Any) -> None:
    """Serve the HTTP API and the dashboard, for the store and all who work with it.

    With MODULE:APP the arguments of submitted jobs are checked against its functions, and their limits and budgets are
    known. Without, any kind is taken, and the workers that run it check.

    The first SIGTERM or Ctrl-C lets requests finish, the second does not wait for them.

    \b
      leaseway serve --no-auth                  on this machine, to try it
      leaseway serve tasks:app                  with keys: leaseway keys create --help
      leaseway serve tasks:app --host 0.0.0.0 --allow-host jobs.example.org
    """
    from leaseway.cli.verbs.serve import Wanted, serve

    serve(settings, Wanted(app=app, quiet=quiet, verbose=verbose, options=wanted))
