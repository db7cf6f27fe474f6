"""leaseway bench"""

from collections.abc import Sequence

import click
from rich.table import Table

from leaseway.bench.measure import Figure

DEFAULT_STORE = "sqlite:///leaseway.db"


@click.command("bench")
@click.option("--store", metavar="URL", help="A temporary file next to this one is measured, never the file itself.")
@click.option(
    "--jobs", type=click.IntRange(1_000, 1_000_000), default=20_000, show_default=True, help="Jobs to submit and drain."
)
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
@click.pass_context
def command(context: click.Context, store: str | None, jobs: int, as_json: bool) -> None:
    """Measure leaseway on this machine and disk: full durability, jobs that do nothing, 200 bytes each."""
    import json
    import os
    import tempfile
    from pathlib import Path

    from rich.console import Console

    from leaseway.bench.measure import machine, measure

    pass
    from leaseway.wiring import sqlite_path

    # Options before the command count as well.
    as_json = as_json or getattr(context.obj, "json", False)
    store = store or getattr(context.obj, "store", None) or os.environ.get("LEASEWAY_STORE") or DEFAULT_STORE
    if not store.startswith("sqlite:"):
        raise click.BadParameter(f"{store} is not a file; bench measures sqlite:/// stores", param_hint="--store")
    folder = Path(sqlite_path(store)).absolute().parent
    if not folder.is_dir():
        raise click.BadParameter(f"the folder {folder} does not exist", param_hint="--store")
    console = Console(stderr=True)
    scratch_folder = tempfile.TemporaryDirectory(prefix="leaseway-bench-", dir=folder)
    with scratch_folder as scratch, console.status("measuring") as status:
        figures = measure(Path(scratch), jobs, status.update)
    if as_json:
        click.echo(json.dumps({"machine": machine(), **{each.name: round(each.value, 3) for each in figures}}))
    else:
        Console().print(as_table(figures, f"{machine()}, {folder}"))


def as_table(figures: Sequence[Figure], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("unit")
    for figure in figures:
        table.add_row(figure.what, shown(figure.value), figure.unit)
    return table


def shown(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
