"""`./dev house`: prints the table; `--list` adds the offenders of every row."""

import argparse
from pathlib import Path

from tests.house.measures import MEASURES, Figure
from tests.house.source import Checkout

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    options = parse_arguments()
    checkout = Checkout(options.root.resolve())
    for name in options.rows or MEASURES:
        print_figure(name, MEASURES[name](checkout), with_list=options.list)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev house", description="Measure how easy the code base is to read.")
    parser.add_argument("rows", nargs="*", help=f"rows to measure, all if none: {', '.join(MEASURES)}")
    parser.add_argument("--list", action="store_true", help="print the definition and the offenders of each row")
    parser.add_argument("--root", type=Path, default=ROOT, help="measure another checkout (default: this one)")
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in MEASURES]:
        parser.error(f"unknown row {unknown[0]}; choose from {', '.join(MEASURES)}")
    return options


def print_figure(name: str, figure: Figure, *, with_list: bool) -> None:
    mark = "ok " if figure.is_met else "NOT"
    print(f"{mark} {name:9} {figure.what:52} {figure.value}   aim {figure.aim}")
    if with_list:
        print(f"    ({figure.definition})")
        for offender in figure.offenders:
            print(f"    {offender}")


if __name__ == "__main__":
    main()
