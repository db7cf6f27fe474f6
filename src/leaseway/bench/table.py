"""The figures for people."""

from collections.abc import Sequence

from rich.table import Table

from leaseway.bench.measure import Figure


def as_table(figures: Sequence[Figure], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_column("unit")
    for figure in figures:
        table.add_row(figure.what, shown(figure.value), figure.unit)
    return table


def shown(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
