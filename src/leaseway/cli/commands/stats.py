"""leaseway stats"""

import click

from leaseway.api.schemas.operations import KindHistoryDocument, history_document
from leaseway.cli.open_store import ask
from leaseway.cli.options import CliSettings, pass_settings, with_store
from leaseway.cli.output.console import note, print_json, span
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.domain.history.timeline import Timeline, choose_range
from leaseway.domain.ids import SECOND_US
from leaseway.ports.store import Store, require_history
from leaseway.worker.maintenance import read_timeline

COLUMNS = (
    TableColumn("kind", may_shrink=True),
    TableColumn("queue", may_shrink=True, leaves=3),
    TableColumn("tenant", leaves=4),
    TableColumn("started", right=True),
    TableColumn("done", right=True),
    TableColumn("failed", right=True),
    TableColumn("failed %", right=True),
    TableColumn("dead", right=True),
    TableColumn("p50", right=True, leaves=2),
    TableColumn("p95", right=True),
    TableColumn("p99", right=True, leaves=1),
)


@click.command("stats")
@click.option("--range", "length", metavar="TIME", default="1h", show_default=True, help="From 15m to 30d.")
@click.option("--tenant", metavar="NAME", help="Only jobs of this tenant. Default: all tenants.")
@with_store
@pass_settings
def command(settings: CliSettings, length: str, tenant: str | None) -> None:
    """Attempts, failures and running times by kind, in the last hour or another time."""

    async def question(store: Store) -> Timeline:
        chosen = choose_range(length, await store.reads.now())
        return await read_timeline(require_history(store), chosen, tenant)

    document = history_document(ask(settings, question))
    if settings.json:
        print_json(document)
    elif not document.kinds:
        note(f"no attempt ended in the last {length}; workers record what they did within five seconds")
    else:
        show_table(COLUMNS, [kind_row(kind) for kind in document.kinds])


def kind_row(kind: KindHistoryDocument) -> Row:
    times = (kind.run_seconds.p50, kind.run_seconds.p95, kind.run_seconds.p99)
    return (
        kind.kind, kind.queue, kind.tenant, f"{kind.started:,}", f"{kind.done:,}", f"{kind.failed:,}",
        TableCell(f"{kind.failed_share:.1%}", "red" if kind.failed else "dim"),
        TableCell(f"{kind.dead:,}", "red" if kind.dead else "dim"),
        *("" if seconds is None else span(round(seconds * SECOND_US)) for seconds in times),
    )  # fmt: skip
