"""./dev bench [NAME …] [--quick] [--write]"""

import sys
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, FULL, QUICK
from benchmarks.harness import Figure, say
from benchmarks.results import HEADER, as_markdown, cells, provenance, write

RESULTS = Path(__file__).with_name("RESULTS.md")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--quick", is_flag=True, help="Small sizes, one round: shows that it runs, proves nothing.")
@click.option("--repeats", type=click.IntRange(1, 100), help="Rounds of each comparison; the median counts.")
@click.option("--write", "write_results", is_flag=True, help="Update benchmarks/RESULTS.md.")
def main(names: tuple[str, ...], quick: bool, repeats: int | None, write_results: bool) -> None:
    """Measure leaseway beside its peers. NAME: one or several of the cases; without one, all of them."""
    size = QUICK if quick else FULL
    if repeats:
        size = size._replace(repeats=repeats)
    figures: list[Figure] = []
    for name in names or CASES:
        say(name)
        figures += CASES[name](size)
    source = provenance(" ".join(["./dev bench", *sys.argv[1:]]), datetime.now(UTC).date())
    show(figures, source)
    if write_results:
        write(RESULTS, f"{source}\n\n{as_markdown(figures)}")


def show(figures: list[Figure], source: str) -> None:
    table = Table(*HEADER[:-1])
    for figure in figures:
        table.add_row(*(cell.strip("*") for cell in cells(figure)[:-1]))
    notes = [f"{figure.what}: {figure.note}" for figure in figures if figure.note]
    Console().print(table, *notes, source, sep="\n", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main(prog_name="./dev bench")
