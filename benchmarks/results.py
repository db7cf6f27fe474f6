"""The results as a table: on the screen, and in RESULTS.md between two markers per suite."""

import os
import platform
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.harness import Figure, shown

HEADER = ("figure", "target", "measured", "", "how")
WITH_START = "with start-up"
"""A second column of measured values, if a figure of the suite has one."""


def as_markdown(figures: Sequence[Figure]) -> str:
    header, *rows = rows_of(figures)
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def rows_of(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """The table with its header."""
    rows = [HEADER, *map(cells, figures)]
    if all(figure.with_start is None for figure in figures):
        return rows
    second = [WITH_START, *map(start_cell, figures)]
    return [(*row[:-1], cell, row[-1]) for row, cell in zip(rows, second, strict=True)]


def start_cell(figure: Figure) -> str:
    return "" if figure.with_start is None else with_unit(figure.with_start, figure.unit)


def cells(figure: Figure) -> tuple[str, ...]:
    target = "" if figure.target is None else f"{figure.target.sign} {with_unit(figure.target.value, figure.unit)}"
    verdict = f"**{figure.verdict}**" if figure.verdict == "MISSED" else figure.verdict
    return figure.what, target, with_unit(figure.value, figure.unit), verdict, figure.note


def with_unit(value: float, unit: str) -> str:
    return f"{shown(value)}{'' if unit in ('%', '×', '') else ' '}{unit}".replace("×", " ×")


def provenance(command: str, day: date, software: Sequence[str]) -> str:
    """The versions of the software; a figure is meaningless without them."""
    ours = [f"Python {platform.python_version()}", f"leaseway {installed('leaseway')}"]
    parts = [*ours, *software, f"{os.cpu_count()} CPUs", platform.machine()]
    return f"{day.isoformat()}, {', '.join(parts)}. Command: `{command}`"


def versions(*names: str) -> list[str]:
    """Of the packages that are installed."""
    return [f"{name} {installed(name)}" for name in names if installed(name)]


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def markers(suite: str) -> tuple[str, str]:
    return f"<!-- {suite}: written by ./dev bench --write -->", f"<!-- end of {suite} -->"


def between_markers(text: str, suite: str, new: str) -> str:
    """The text with everything between a suite's markers replaced; the rest stays."""
    first, last = markers(suite)
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the markers are missing: {first!r} and, behind it, {last!r}")
    return f"{before}{begin}\n\n{new.strip()}\n\n{end}{after}"


def write(file: Path, suite: str, new: str, *, is_whole: bool = True) -> None:
    """`is_whole`: all cases of the suite were measured. Otherwise the figures of the other cases stay."""
    text = file.read_text("utf-8")
    if not is_whole:
        first, last = markers(suite)
        new = with_earlier(new, text.partition(first)[2].partition(last)[0])
    file.write_text(between_markers(text, suite, new), "utf-8")


EARLIER = "From earlier runs:"


def with_earlier(new: str, old: str) -> str:
    """The results of a run, and below them the rows of earlier runs that it did not measure again, with the lines that
    say where they come from. Of rows with the same name, a run replaces as many as it has."""
    measured = [row[0] for row in table_rows(new)]
    left = []
    for row in table_rows(old):
        if row[0] in measured:
            measured.remove(row[0])
        else:
            left.append(row)
    if not left:
        return new
    width = max(map(len, left))
    header = HEADER if width == len(HEADER) else (*HEADER[:-1], WITH_START, HEADER[-1])
    padded = [(*row[:-1], *[""] * (width - len(row)), row[-1]) for row in left]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * width, *padded))
    sources = [line for line in old.splitlines() if line.strip() and not line.startswith("|") and line != EARLIER]
    return "\n\n".join([new.strip(), EARLIER, table, *sources])


def table_rows(text: str) -> list[list[str]]:
    """The cells of all rows in Markdown, without headers."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [row for row in rows if row[0] not in (HEADER[0], "---")]
