"""leaseway workers [list|drain|check|costs]"""

import socket
from collections import Counter

import click

from leaseway.api.schemas.operations import worker_document
from leaseway.cli.lazy_groups import InOrder
from leaseway.cli.open_store import ask, change
from leaseway.cli.options import CliSettings, pass_settings, with_store
from leaseway.cli.output.console import note, print_json, say, span
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.domain.errors import NoSuchJob, TransientError
from leaseway.domain.ids import WorkerId
from leaseway.domain.workers import StoredWorker, WorkerState, WorkerView, deletion_costs, join_owners, own_workers
from leaseway.ports.store import Store, require_workers

STYLES = {WorkerState.RUNNING: "green", WorkerState.DRAINING: "yellow", WorkerState.LOST: "red"}
COLUMNS = (
    TableColumn("worker"),
    TableColumn("state"),
    TableColumn("slots", right=True),
    TableColumn("since", leaves=2),
    TableColumn("seen", leaves=4),
    TableColumn("tenant", leaves=5),
    TableColumn("queues", may_shrink=True),
    TableColumn("version", leaves=1),
    TableColumn("kinds", may_shrink=True, leaves=3),
)


@click.group("workers", cls=InOrder, invoke_without_command=True)
@with_store
@pass_settings
@click.pass_context
def command(ctx: click.Context, settings: CliSettings) -> None:
    """Workers: list, drain, check, costs. Without a subcommand: list."""
    if ctx.invoked_subcommand is None:
        list_workers(settings)


@command.command("list")
@with_store
@pass_settings
def list_(settings: CliSettings) -> None:
    """List every worker with its state. One that was killed is listed as lost for an hour."""
    list_workers(settings)


@command.command("drain")
@click.argument("worker")
@with_store
@pass_settings
def drain(settings: CliSettings, worker: str) -> None:
    """Ask a worker to stop: within five seconds, it claims no more jobs, and finishes those that it runs."""

    async def command(store: Store) -> None:
        if not await require_workers(store).drain(WorkerId(worker)):
            known = ", ".join(each.name for each in await require_workers(store).all()) or "none"
            raise NoSuchJob(f"there is no worker {worker!r}; there are: {known}")

    change(settings, command)
    if settings.json:
        print_json({"name": worker, "state": WorkerState.DRAINING})
    else:
        say(f"worker {worker}: stops when its running jobs have ended")


@command.command("check")
@click.option("--host", default=socket.gethostname, metavar="NAME", help="Default: the name of this machine or pod.")
@with_store
@pass_settings
@click.pass_context
def check(ctx: click.Context, settings: CliSettings, host: str) -> None:
    """Check that a worker of this machine reports itself: the liveness probe of a pod.

    It fails if all workers of the machine were silent for 15 seconds: their processes hang, or were killed. It
    succeeds if there is none yet, and if the store does not respond, because a restart would not help.

    \b
    Exit codes
      0  a worker is alive, or nothing is known
      1  every worker of this machine is lost
    """
    try:
        found = [each for each in own_workers(ask(settings, all_workers)) if each.beat.host == host]
    except TransientError as error:
        return tell_check(settings, host, "unknown", f"the store does not respond: {error}")
    alive = [each.name for each in found if each.state is not WorkerState.LOST]
    if alive or not found:
        return tell_check(settings, host, "alive" if alive else "unknown", ", ".join(alive) or "no worker is listed")
    tell_check(settings, host, "lost", f"silent for {span(min(each.now - each.seen_at for each in found))}")
    ctx.exit(1)


async def all_workers(store: Store) -> list[StoredWorker]:
    return await require_workers(store).all()


def tell_check(settings: CliSettings, host: str, state: str, why: str) -> None:
    if settings.json:
        print_json({"host": host, "state": state, "why": why})
    else:
        say(f"workers of {host}: {state}: {why}")


@command.command("costs")
@click.option("--queue", metavar="QUEUE", help="Only workers that serve this queue.")
@with_store
@pass_settings
def costs(settings: CliSettings, queue: str | None) -> None:
    """Show by machine how many jobs its workers run, the idlest first.

    In a pod, the name of the machine is that of the pod, and the number is meant for the annotation
    controller.kubernetes.io/pod-deletion-cost: Kubernetes ends the pods with the lowest one first.
    """
    views = ask(settings, all_views)
    found = deletion_costs(view for view in views if queue is None or view.worker.serves(queue))
    if settings.json:
        print_json({"costs": [{"host": host, "cost": cost} for host, cost in found.items()]})
    else:
        for host, cost in found.items():
            say(f"{host} {cost}")


async def all_views(store: Store) -> list[WorkerView]:
    owners = [] if store.inspection is None else await store.inspection.owners()
    return join_owners(await require_workers(store).all(), owners, await store.reads.now())


def list_workers(settings: CliSettings) -> None:
    views = ask(settings, all_views)
    counts = Counter(view.state for view in views)
    if settings.json:
        by_state = {state.value: counts[state] for state in WorkerState}
        print_json({"workers": [worker_document(view) for view in views], "total": by_state})
    elif not views:
        note("there are no workers; start one: leaseway work MODULE:APP")
    else:
        show_table(COLUMNS, [worker_row(view) for view in views])


def worker_row(view: WorkerView) -> Row:
    worker, state, _ = view
    beat = worker.beat
    slots = f"{beat.used}/{beat.slots}" if beat.slots else str(beat.used)
    return (
        worker.name, TableCell(state.value, STYLES.get(state, "dim")), slots, span(worker.now - worker.since),
        span(worker.now - worker.seen_at), beat.tenant or "", ", ".join(beat.queues), beat.version,
        ", ".join(beat.kinds),
    )  # fmt: skip
