"""leaseway budgets [list|show|set|journal|pause|resume|forget|audit]"""

from typing import Any

import click

from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.options import pass_settings, with_store
from leaseway.cli.settings import CliSettings

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
@click.option("--every", metavar="SPAN", help="hour, day, week, month or total.")
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

    A restart does not undo the change; only a changed declaration in the app does.

    \b
      leaseway budgets set maps-spend --usd 25 --every day --tz Europe/Zurich
      leaseway budgets set maps-spend --usd 40
    """
    from leaseway.cli.commands.budgets.change import set_budget

    set_budget(settings, name, given)


@command.command("journal")
@one_name
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of rows.")
@with_store
@pass_settings
def journal(settings: CliSettings, name: str, limit: int) -> None:
    """Show the journal of a budget, newest entry first."""
    from leaseway.cli.commands.budgets.show import show_journal

    show_journal(settings, name, limit)


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
    """Resume a budget. Workers notice within some seconds."""
    from leaseway.cli.commands.budgets.change import pause_budget

    pause_budget(settings, name, False)


@command.command("forget")
@one_name
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_store
@pass_settings
def forget(settings: CliSettings, name: str, yes: bool) -> None:
    """Remove a budget with its windows and its journal. Refused while the budget has holds."""
    from leaseway.cli.commands.budgets.change import forget_budget

    forget_budget(settings, name, yes)


@command.command("audit")
@with_store
@pass_settings
def audit(settings: CliSettings) -> int:
    """Compare balances, journal and holds. Exits with 1 if they disagree."""
    from leaseway.cli.commands.budgets.show import audit_budgets

    return audit_budgets(settings)
