"""leaseway lanes [list|pause|resume]"""

from collections.abc import Sequence

import click

from leaseway.api.schemas.jobs import lane_counts_document
from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.open_limiter import shut_gates
from leaseway.cli.open_store import ask, change
from leaseway.cli.options import CliSettings, pass_settings, with_limits, with_store
from leaseway.cli.output.console import needs_in_words, note, print_json, say, span
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.domain.errors import NoSuchJob
from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import Closure, closed_by_pauses, longest_closure
from leaseway.domain.lane import LaneCount, Pause
from leaseway.ports.store import Store, require_pauses
from leaseway.worker.explain_waits import ClosedGates


def pause_lanes(settings: CliSettings, queue: str, tenant: str | None) -> None:
    async def command(store: Store) -> bool:
        return await require_pauses(store).pause(queue, tenant)

    is_new = change(settings, command)
    tell(settings, Pause(queue, tenant), True, "paused; running jobs go on" if is_new else "was already paused")


def resume_lanes(settings: CliSettings, queue: str, tenant: str | None) -> None:
    async def command(store: Store) -> None:
        if not await require_pauses(store).resume(queue, tenant):
            known = "; ".join(map(str, await pauses_in(store))) or "none"
            raise NoSuchJob(f"{Pause(queue, tenant)} is not paused; paused lanes: {known}")

    change(settings, command)
    tell(settings, Pause(queue, tenant), False, "resumed")


def tell(settings: CliSettings, pause: Pause, is_paused: bool, words: str) -> None:
    if settings.json:
        print_json({"queue": pause.queue, "tenant": pause.tenant, "paused": is_paused})
    else:
        say(f"{pause}: {words}")


async def pauses_in(store: Store) -> Sequence[Pause]:
    return () if store.pauses is None else await store.pauses.all()


one_queue = click.argument("queue")
one_tenant = click.option("--tenant", metavar="NAME", help="Only lanes of this tenant. Default: all tenants.")


@click.group("lanes", cls=InOrder, invoke_without_command=True)
@with_limits
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """What each queue and tenant holds, and what each closed lane waits for. Without a subcommand: list."""
    if ctx.invoked_subcommand is None:
        show_lanes(settings)


@command.command("list")
@with_limits
@pass_settings
def list_(settings: CliSettings) -> None:
    """List every lane, and what each closed one waits for."""
    show_lanes(settings)


@command.command("pause", short_help="Pause a queue.")
@one_queue
@one_tenant
@with_store
@pass_settings
def pause(settings: CliSettings, queue: str, tenant: str | None) -> None:
    """Pause a queue: no job of it starts until it is resumed. Running jobs go on."""
    pause_lanes(settings, queue, tenant)


@command.command("resume")
@one_queue
@one_tenant
@with_store
@pass_settings
def resume(settings: CliSettings, queue: str, tenant: str | None) -> None:
    """Resume a queue."""
    resume_lanes(settings, queue, tenant)


COUNTS = ("ready", "scheduled", "leased", "done", "failed", "cancelled")
STYLES = {"ready": "yellow", "leased": "cyan", "failed": "red"}


def show_lanes(settings: CliSettings) -> None:
    async def question(store: Store) -> tuple[Sequence[LaneCount], ClosedGates, Sequence[Pause]]:
        lanes, now = await store.reads.lanes(), await store.reads.now()
        shuts = await shut_gates(settings, store, (lane_gate(lane) for lane in lanes if lane.ready), now)
        return lanes, shuts, await pauses_in(store)

    lanes, shuts, pauses = ask(settings, question)
    totals = {name: sum(getattr(lane, name) for lane in lanes) for name in COUNTS}
    if settings.json:
        print_json(
            {"lanes": [lane_counts_document(lane, of_lane(lane, shuts, pauses)) for lane in lanes], "total": totals}
        )
    elif not lanes:
        note("there are no lanes yet: a lane is created with its first job")
    else:
        names = column_names(lanes)
        rows = [[*lane_row(lane, names), waits_for(of_lane(lane, shuts, pauses))] for lane in lanes]
        show_table(columns(names), rows, total_row(lanes, names, totals))


def lane_gate(lane: LaneCount) -> Gate:
    return Gate(lane.needs, lane.tenant)


def of_lane(lane: LaneCount, shuts: ClosedGates, pauses: Sequence[Pause]) -> list[Closure]:
    """Only a lane with ready jobs waits."""
    if not lane.ready:
        return []
    return [*closed_by_pauses(lane.queue, lane.tenant, pauses), *shuts.get(lane_gate(lane), [])]


def waits_for(shuts: list[Closure]) -> TableCell:
    """The reason that lasts longest; empty if the lane is open."""
    if not shuts:
        return TableCell("")
    shut = longest_closure(shuts)
    seconds = "" if shut.wait_us is None else f", {span(shut.wait_us)}"
    return TableCell(f"{shut.what} {shut.name}: {shut.why}{seconds}", "yellow")


def column_names(lanes: Sequence[LaneCount]) -> list[str]:
    """The columns that distinguish lanes; requirements only if some lane has any."""
    return ["queue", "tenant", "needs"] if any(lane.needs for lane in lanes) else ["queue", "tenant"]


def columns(names: list[str]) -> list[TableColumn]:
    counts = (TableColumn(name, right=True) for name in COUNTS)
    return [*map(TableColumn, names), *counts, TableColumn("waits for", may_shrink=True)]


def lane_row(lane: LaneCount, names: list[str]) -> Row:
    words = [lane.queue, lane.tenant, needs_in_words(lane.needs)]
    return [*words[: len(names)], *(number(name, getattr(lane, name)) for name in COUNTS)]


def number(name: str, count: int) -> TableCell:
    """Zeros are shown dimmed."""
    return TableCell(f"{count:,}", STYLES.get(name, "") if count else "dim")


def total_row(lanes: Sequence[LaneCount], names: list[str], totals: dict[str, int]) -> Row | None:
    if len(lanes) < 2:
        return None
    return ["total", *[""] * (len(names) - 1), *(f"{totals[name]:,}" for name in COUNTS), ""]
