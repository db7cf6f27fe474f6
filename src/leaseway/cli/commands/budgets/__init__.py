"""leaseway budgets [list|show|set|rebook|journal|holds|settle|pause|resume|forget|audit]"""

from typing import Any

import click

from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.options import CliSettings, pass_settings, with_store

one_name = click.argument("name")


@click.group("budgets", cls=InOrder, invoke_without_command=True)
@with_store
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """Budgets: what is spent, held and left. Without a subcommand: list.

    A budget is known as soon as a worker whose app declares it has started.
    """
    if ctx.invoked_subcommand is None:
        from leaseway.cli.commands.budgets.show import list_budgets

        list_budgets(settings)


@command.command("list")
@with_store
@pass_settings
def list_(settings: CliSettings) -> None:
    """List every budget with its current window."""
    from leaseway.cli.commands.budgets.show import list_budgets

    list_budgets(settings)


@command.command("show")
@one_name
@with_store
@pass_settings
def show(settings: CliSettings, name: str) -> None:
    """Show one budget with its current and later windows."""
    from leaseway.cli.commands.budgets.show import show_budget

    show_budget(settings, name)


@command.command("set", short_help="Change a budget, or create one.")
@one_name
@click.option("--usd", metavar="AMOUNT", help="Amount per window, in US dollars.")
@click.option("--amount", metavar="AMOUNT", help="Amount per window, in the unit of the budget or in --unit.")
@click.option("--unit", metavar="UNIT", help="Another currency, such as eur, or a unit of your own.")
@click.option("--every", metavar="SPAN", help="minute, hour, day, week, month or total.")
@click.option("--tz", metavar="ZONE", help="Time zone in which windows start, for example Europe/Berlin.")
@click.option("--overdraft", metavar="AMOUNT", help="How far holds may exceed the amount.")
@click.option(
    "--over",
    metavar="WORD",
    help="What happens to a job that does not fit: it waits for a later window (wait), or fails (fail).",
)
@with_store
@pass_settings
def set_(settings: CliSettings, /, name: str, **given: Any) -> None:
    """Change a budget, or create one. Takes effect at once for all workers. Options that you omit keep their value.

    A restart does not undo the change; only a changed declaration in the app does. Jobs that wait for a later window
    are brought forward if an earlier one has room now.

    \b
      leaseway budgets set maps-spend --usd 25 --every day --tz Europe/Zurich
      leaseway budgets set maps-spend --usd 40
    """
    from leaseway.cli.commands.budgets.change import set_budget

    set_budget(settings, name, given)


@command.command("rebook", short_help="Bring forward jobs that wait for a later window.")
@one_name
@with_store
@pass_settings
def rebook(settings: CliSettings, name: str) -> None:
    """Bring forward the jobs that wait for a later window of a budget although an earlier one has room by now.

    Room appears when the budget is raised (`budgets set` does this, too) and when calls cost less than was held for
    them. Jobs that do not fit keep their window.
    """
    from leaseway.cli.commands.budgets.change import rebook_budget

    rebook_budget(settings, name)


@command.command("journal")
@one_name
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of rows.")
@with_store
@pass_settings
def journal(settings: CliSettings, name: str, limit: int) -> None:
    """Show the journal of a budget, newest entry first."""
    from leaseway.cli.commands.budgets.show import show_journal

    show_journal(settings, name, limit)


@command.command("holds", short_help="Show the holds of a budget whose cost is not known.")
@one_name
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of rows.")
@with_store
@pass_settings
def holds(settings: CliSettings, name: str, limit: int) -> None:
    """Show the holds of a budget whose cost is not known, the latest deadline first.

    Open holds belong to calls that may be under way. Captured holds were charged in full, because their calls were
    never settled: a worker died, or could not reach the store. If the provider's records say what these calls have
    cost, correct them with: leaseway budgets settle
    """
    from leaseway.cli.commands.budgets.show import show_holds

    show_holds(settings, name, limit)


@command.command("settle", short_help="Correct captured holds by the provider's evidence.")
@click.argument("holds", metavar="HOLD...", nargs=-1, required=True)
@click.option("--usd", metavar="AMOUNT", help="What the provider charged for each of these calls, in US dollars.")
@click.option("--amount", metavar="AMOUNT", help="The same in another unit; give --unit, too.")
@click.option("--unit", metavar="UNIT", help="The unit of --amount, or the name of a budget.")
@click.option("--reason", metavar="TEXT", default="", help="The evidence, for example an invoice number.")
@click.option(
    "--by", metavar="NAME", help="Your name for the journal. Default: your user name. A service records its API key."
)
@with_store
@pass_settings
def settle(settings: CliSettings, /, holds: tuple[str, ...], **given: Any) -> None:
    """Correct captured holds by the provider's evidence. The journal records who did it, when and why.

    A hold is captured if its call was never settled. Each hold is corrected once; a call that settled itself, or may be
    under way, is refused. Repeating the same correction has no further effect.

    \b
      leaseway budgets settle 01jd…:1:1 --usd 0 --reason "not in the usage report of 3 May"
      leaseway budgets settle 01jd…:1:1 --amount 1200 --unit tokens
    """
    from leaseway.cli.commands.budgets.change import settle_holds

    settle_holds(settings, holds, given)


@command.command("pause", short_help="Pause a budget.")
@one_name
@with_store
@pass_settings
def pause(settings: CliSettings, name: str) -> None:
    """Pause a budget: it accepts no new holds. Existing holds are settled; jobs wait and lose no attempt."""
    from leaseway.cli.commands.budgets.change import pause_budget

    pause_budget(settings, name, True)


@command.command("resume")
@one_name
@with_store
@pass_settings
def resume(settings: CliSettings, name: str) -> None:
    """Resume a budget. Jobs that wait for it are tried at once."""
    from leaseway.cli.commands.budgets.change import pause_budget

    pause_budget(settings, name, False)


@command.command("forget")
@one_name
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_store
@pass_settings
def forget(settings: CliSettings, name: str, yes: bool) -> None:
    """Remove a budget with its windows and its journal. Refused while calls are under way.

    Holds that wait for a later window are released, and their jobs are brought forward.
    """
    from leaseway.cli.commands.budgets.change import forget_budget

    forget_budget(settings, name, yes)


@command.command("audit")
@with_store
@pass_settings
def audit(settings: CliSettings) -> int:
    """Compare balances, journal and holds. Exits with 1 if they disagree."""
    from leaseway.cli.commands.budgets.show import audit_budgets

    return audit_budgets(settings)
