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
    """Budgets: what is spent, held and left. Without a word: list.

    A budget is known from the first start of a worker whose app declares it.
    """
    if ctx.invoked_subcommand is None:
        from leaseway.cli.commands.budgets.show import list_budgets

        list_budgets(settings)


@command.command("list")
@with_store
@pass_settings
def list_(settings: CliSettings) -> None:
    """Every budget, with its window that is under way."""
    from leaseway.cli.commands.budgets.show import list_budgets

    list_budgets(settings)


@command.command("show")
@one_name
@with_store
@pass_settings
def show(settings: CliSettings, name: str) -> None:
    """One budget, with all its windows from now on."""
    from leaseway.cli.commands.budgets.show import show_budget

    show_budget(settings, name)


@command.command("set", short_help="Change a budget, or make one.")
@one_name
@click.option("--usd", metavar="AMOUNT", help="What a window has, in US dollars.")
@click.option("--amount", metavar="AMOUNT", help="The same in the unit of the budget, or in --unit.")
@click.option("--unit", metavar="UNIT", help="Another currency, such as eur, or a unit of your own.")
@click.option("--every", metavar="SPAN", help="hour, day, week, month or total.")
@click.option("--tz", metavar="ZONE", help="In which days begin, for example Europe/Berlin.")
@click.option("--overdraft", metavar="AMOUNT", help="How far holds may go beyond it.")
@click.option("--over", metavar="WORD", help="What is too much waits for a later window (wait), or fails (fail).")
@with_store
@pass_settings
def set_(settings: CliSettings, /, name: str, **given: Any) -> None:
    """Change a budget, or make one: in force at once, for everybody. What is not named stays as it is.

    Restarts do not undo it; only an app that declares something new does.

    \b
      leaseway budgets set maps-spend --usd 25 --every day --tz Europe/Zurich
      leaseway budgets set maps-spend --usd 40
    """
    from leaseway.cli.commands.budgets.change import set_budget

    set_budget(settings, name, given)


@command.command("journal")
@one_name
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
@with_store
@pass_settings
def journal(settings: CliSettings, name: str, limit: int) -> None:
    """What was booked on a budget, the newest first."""
    from leaseway.cli.commands.budgets.show import show_journal

    show_journal(settings, name, limit)


@command.command("pause", short_help="Let a budget hold nothing for now.")
@one_name
@with_store
@pass_settings
def pause(settings: CliSettings, name: str) -> None:
    """Pause a budget: it holds nothing. What is held already is settled; jobs wait, and lose no attempt."""
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
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_store
@pass_settings
def forget(settings: CliSettings, name: str, yes: bool) -> None:
    """Remove a budget with its windows and their journal. Refused while something is held."""
    from leaseway.cli.commands.budgets.change import forget_budget

    forget_budget(settings, name, yes)


@command.command("audit")
@with_store
@pass_settings
def audit(settings: CliSettings) -> int:
    """Add up books, journal and holds. Exit code 1 if they do not agree."""
    from leaseway.cli.commands.budgets.show import audit_budgets

    return audit_budgets(settings)
