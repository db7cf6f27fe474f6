"""leaseway cron [list|pause|resume]"""

import click

from leaseway.api.schemas.operations import schedule_document
from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.open_store import ask, change
from leaseway.cli.options import CliSettings, pass_settings, with_store
from leaseway.cli.output.console import moment, note, print_json, say
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.domain.errors import NoSuchJob
from leaseway.domain.schedule import StoredSchedule, upcoming_fire
from leaseway.ports.store import Store


@click.group("cron", cls=InOrder, invoke_without_command=True)
@with_store
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """Schedules: list, pause, resume. Without a subcommand: list.

    A schedule is known to the store as soon as a worker whose app declares it has started.
    """
    if ctx.invoked_subcommand is None:
        list_schedules(settings)


@command.command("list")
@with_store
@pass_settings
def list_(settings: CliSettings) -> None:
    """List every schedule with its last and its next fire time."""
    list_schedules(settings)


@command.command("pause")
@click.argument("name")
@with_store
@pass_settings
def pause(settings: CliSettings, name: str) -> None:
    """Pause a schedule. Fire times that it misses are dropped."""
    pause_schedule(settings, name, True)


@command.command("resume")
@click.argument("name")
@with_store
@pass_settings
def resume(settings: CliSettings, name: str) -> None:
    """Resume a paused schedule from now on."""
    pause_schedule(settings, name, False)


COLUMNS = (
    TableColumn("name"),
    TableColumn("kind", may_shrink=True),
    TableColumn("cron"),
    TableColumn("tz"),
    TableColumn("missed", leaves=1),
    TableColumn("last fire", may_shrink=True, leaves=2),
    TableColumn("next fire", may_shrink=True),
)


def list_schedules(settings: CliSettings) -> None:
    rows = ask(settings, lambda store: store.schedules.all())
    if settings.json:
        print_json({"schedules": [schedule_document(row, upcoming_fire(row)) for row in rows]})
    elif not rows:
        note("there are no schedules yet: a worker declares those of its app when it starts")
    else:
        show_table(COLUMNS, [schedule_row(row) for row in rows])


def schedule_row(row: StoredSchedule) -> Row:
    schedule = row.schedule
    following = (
        TableCell("paused", "yellow")
        if row.paused
        else moment(upcoming_fire(row), row.now) or TableCell("never", "dim")
    )
    last = moment(row.last_fire, row.now) or TableCell("never", "dim")
    return (schedule.name, schedule.kind, schedule.cron, schedule.tz, schedule.missed.value, last, following)


def pause_schedule(settings: CliSettings, name: str, paused: bool) -> None:
    async def command(store: Store) -> None:
        if not await store.schedules.pause(name, paused):
            known = ", ".join(row.schedule.name for row in await store.schedules.all()) or "none yet"
            raise NoSuchJob(f"there is no schedule {name!r}; there are: {known}")

    change(settings, command)
    if settings.json:
        print_json({"name": name, "paused": paused})
    else:
        say(f"schedule {name}: {'paused' if paused else 'resumed, from now on'}")
