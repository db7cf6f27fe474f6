"""leaseway work"""

import click

from leaseway.cli.commands.options import pass_settings, with_limits
from leaseway.cli.commands.types import DURATION
from leaseway.cli.settings import Settings


@click.command("work")
@click.argument("app", metavar="MODULE:APP")
@click.option("--concurrency", type=int, default=20, show_default=True, help="How many jobs run at once.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Serve only this one; may be repeated.")
@click.option("--grace", type=DURATION, default=30.0, metavar="SECONDS", help="How long running jobs may go on. [30]")
@click.option("--until-empty", is_flag=True, help="Stop when nothing is left to do.")
@click.option("--quiet", is_flag=True, help="Only warnings and errors.")
@click.option("--verbose", is_flag=True, help="Everything that happens.")
@with_limits
@pass_settings
def command(
    settings: Settings,
    app: str,
    concurrency: int,
    queues: tuple[str, ...],
    grace: float,
    until_empty: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Run the jobs of an app: `tasks:app` is `app` in tasks.py; `tasks` alone will do if there is only one.

    The first SIGTERM or Ctrl-C ends it gently: nothing new is taken, what runs may finish within the grace period,
    the rest is handed back to other workers. The second one stops what runs, the third leaves at once.

    \b
    Exit codes
      0  stopped as asked and every lease handed back, or nothing was left to do; jobs may have failed
      1  an unexpected error
      2  wrong usage: the message says what to change
      3  the store is unavailable
      4  stopped, but some leases could not be handed back: they expire by themselves
    """
    from leaseway.cli.verbs.work import Wanted, work

    wanted = Wanted(app, concurrency, queues, grace, until_empty, quiet, verbose)
    return work(settings, wanted)
