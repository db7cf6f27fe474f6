"""The results as a table: on the screen, and between two markers in RESULTS.md."""

import os
import platform
import sqlite3
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.harness import Figure, shown

BEGIN, END = "<!-- results: written by ./dev bench --write -->", "<!-- end of results -->"
PEERS = ("huey", "cysqlite")
HEADER = ("figure", "target", "measured", "", "how")


def as_markdown(figures: Sequence[Figure]) -> str:
    rows = [HEADER, tuple("---" for _ in HEADER), *(cells(figure) for figure in figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cells(figure: Figure) -> tuple[str, ...]:
    target = "" if figure.target is None else f"{figure.target.sign} {with_unit(figure.target.value, figure.unit)}"
    verdict = f"**{figure.verdict}**" if figure.verdict == "MISSED" else figure.verdict
    return figure.what, target, with_unit(figure.value, figure.unit), verdict, figure.note


def with_unit(value: float, unit: str) -> str:
    return f"{shown(value)}{'' if unit in ('%', '×', '') else ' '}{unit}".replace("×", " ×")


def provenance(command: str, day: date) -> str:
    """Without these a number means nothing."""
    peers = [f"{name} {installed(name)}" for name in PEERS if installed(name)]
    software = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    parts = [*software, f"leaseway {installed('leaseway')}", *peers, f"{os.cpu_count()} CPUs", platform.machine()]
    return f"{day.isoformat()}, {', '.join(parts)}. Command: `{command}`"


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def between_markers(text: str, new: str) -> str:
    """The text with everything between the markers replaced; what people wrote around them stays."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers are missing: {BEGIN!r} and, behind it, {END!r}")
    return f"{before}{BEGIN}\n\n{new.strip()}\n\n{END}{after}"


def write(file: Path, new: str) -> None:
    file.write_text(between_markers(file.read_text("utf-8"), new), "utf-8")
