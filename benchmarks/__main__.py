"""`./dev bench`: runs the benchmarks; `./dev bench --help` lists the suites and cases."""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks import cases as sqlite
from benchmarks import deploys, scaling
from benchmarks import unit_tests as testing
from benchmarks.calls import cases as calls
from benchmarks.charts import redraw
from benchmarks.growth import cases as growth
from benchmarks.harness import Figure, Measured
from benchmarks.imports import cases as imports
from benchmarks.lanes import cases as lanes
from benchmarks.limits import cases as limits
from benchmarks.mongodb import cases as mongodb
from benchmarks.postgres import cases as postgres
from benchmarks.profile import cases as profile
from benchmarks.quiet import wait_until_idle
from benchmarks.results import as_markdown, provenance, rows_of, write
from benchmarks.service import cases as service
from benchmarks.tokens import cases as tokens

RESULTS = Path(__file__).with_name("RESULTS.md")


class Bench(NamedTuple):
    names: Sequence[str]
    run: Callable[[Sequence[str], bool, int | None], Measured]


BENCHES = {
    "sqlite": Bench(list(sqlite.CASES), sqlite.run),
    "postgres": Bench(list(postgres.CASES), postgres.run),
    "mongodb": Bench(list(mongodb.CASES), mongodb.run),
    "calls": Bench(list(calls.CASES), calls.run),
    "lanes": Bench(list(lanes.CASES), lanes.run),
    "profile": Bench(list(profile.CASES), profile.run),
    "growth": Bench(list(growth.CASES), growth.run),
    "limits": Bench(list(limits.CASES), limits.run),
    "tokens": Bench(list(tokens.CASES), tokens.run),
    "imports": Bench(list(imports.CASES), imports.run),
    "service": Bench(list(service.CASES), service.run),
    "testing": Bench(list(testing.CASES), testing.run),
    "deploys": Bench(list(deploys.CASES), deploys.run),
    "scaling": Bench(list(scaling.CASES), scaling.run),
}
NAMES = [name for bench in BENCHES.values() for name in bench.names]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--suite", "--store", "suite", type=click.Choice(list(BENCHES)), help="Only the cases of this suite.")
@click.option("--quick", is_flag=True, help="Small sizes, one round: shows that it runs, proves nothing.")
@click.option("--repeats", type=click.IntRange(1, 100), help="Rounds of each comparison; the median counts.")
@click.option("--write", "write_results", is_flag=True, help="Update what was measured in benchmarks/RESULTS.md.")
@click.option(
    "--quiet", is_flag=True, help="Wait before each suite until the machine is idle, and say so in the results."
)
def main(
    names: tuple[str, ...], suite: str | None, quick: bool, repeats: int | None, write_results: bool, quiet: bool
) -> None:
    """Measure leaseway beside its peers. NAME: one or several cases; without one, all of them."""
    command = " ".join(["./dev bench", *sys.argv[1:]])
    for each, chosen in chosen_cases(names, suite).items():
        idle = f" {wait_until_idle()}" if quiet else ""
        measured = BENCHES[each].run(chosen, quick, repeats)
        source = provenance(command, datetime.now(UTC).date(), measured.software) + idle
        show(measured.figures, source)
        if write_results:
            is_whole = len(chosen) == len(BENCHES[each].names)
            write(RESULTS, each, f"{source}\n\n{as_markdown(measured.figures)}", is_whole=is_whole)
            redraw(RESULTS)


def chosen_cases(names: Sequence[str], suite: str | None) -> Mapping[str, Sequence[str]]:
    """The cases to run, by suite; suites without a case are left out."""
    suites = [suite] if suite else list(BENCHES)
    chosen = {each: [name for name in BENCHES[each].names if not names or name in names] for each in suites}
    found = {each: some for each, some in chosen.items() if some}
    if not found:
        raise click.UsageError(
            f"{', '.join(names)}: not a case of {suite}, which has {', '.join(BENCHES[suites[0]].names)}"
        )
    return found


def show(figures: list[Figure], source: str) -> None:
    header, *rows = rows_of(figures)
    table = Table(*header[:-1])
    for row in rows:
        table.add_row(*(cell.strip("*") for cell in row[:-1]))
    notes = [f"{figure.what}: {figure.note}" for figure in figures if figure.note]
    Console().print(table, *notes, source, sep="\n", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main(prog_name="./dev bench")
