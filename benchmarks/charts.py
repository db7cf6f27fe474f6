"""The charts at the top of RESULTS.md: one for each question of a user, drawn from the tables below them.

`python -m benchmarks.charts` draws them anew; `./dev bench --write` does so after each suite. A figure that no table
has is left out.
"""

import re
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import between_markers, markers

RESULTS = Path(__file__).with_name("RESULTS.md")
NAME = "charts"
BAR_WIDTH = 40
NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")


class Bar(NamedTuple):
    label: str
    suite: str
    figure: str
    """The first column of the suite's table."""


class Chart(NamedTuple):
    question: str
    bars: tuple[Bar, ...]


CHARTS = (
    Chart(
        "How many jobs per second does one worker process run? (jobs that do nothing)",
        (
            Bar("SQLite", "sqlite", "drain"),
            Bar("PostgreSQL", "postgres", "drain, one worker process"),
            Bar("PostgreSQL, two processes", "postgres", "drain, two worker processes"),
            Bar("MongoDB", "mongodb", "MongoDB, drain, one worker"),
        ),
    ),
    Chart(
        "How many times as many is that as with another queue on the same store?",
        (
            Bar("huey, SQLite", "sqlite", "drain, times huey"),
            Bar("PgQueuer, PostgreSQL", "postgres", "drain, times PgQueuer"),
            Bar("Procrastinate, PostgreSQL", "postgres", "drain, times Procrastinate"),
            Bar("Celery, PostgreSQL", "postgres", "drain, times Celery"),
            Bar("Celery, Redis", "postgres", "drain, times Celery on Redis, as it starts by default"),
            Bar("Agenda, MongoDB", "mongodb", "drain, times Agenda"),
        ),
    ),
    Chart(
        "How long does a job wait in an idle system? (median)",
        (
            Bar("SQLite, same process", "sqlite", "pickup, same process, p50"),
            Bar("SQLite, other process", "sqlite", "pickup, other process, p50"),
            Bar("PostgreSQL, same process", "postgres", "pickup, same process, p50"),
            Bar("PostgreSQL, other process", "postgres", "pickup, other process, p50"),
            Bar("MongoDB, other process", "mongodb", "pickup p50"),
        ),
    ),
    Chart(
        "How many jobs per second can be submitted?",
        (
            Bar("SQLite, in bulk", "sqlite", "submit in bulk"),
            Bar("PostgreSQL, in bulk", "postgres", "submit in bulk"),
            Bar("service, one request each", "service", "submit, one API process"),
            Bar("service, in bulk", "service", "submit in bulk"),
        ),
    ),
    Chart(
        "What remains of the speed of a bare HTTP client? (one call per job)",
        (
            Bar("SQLite", "calls", "the same, share of bare aiohttp"),
            Bar("with limit, SQLite", "calls", "with limit, share of that, SQLite"),
            Bar("with limit and budget, SQLite", "calls", "with limit and budget, share of that, SQLite"),
            Bar("with limit, PostgreSQL", "calls", "with limit, share of that, PostgreSQL"),
            Bar("with limit and budget, PostgreSQL", "calls", "with limit and budget, share of that, PostgreSQL"),
        ),
    ),
    Chart(
        "What remains with a limit for each of many accounts?",
        tuple(
            Bar(f"{store}, {lanes} lanes", "lanes", f"{store}: drain from {lanes} lanes, share of one lane")
            for store in ("SQLite", "PostgreSQL", "MongoDB")
            for lanes in ("10,000", "100,000")
        )
        + tuple(
            Bar(
                f"{store}, 100,000 used up",
                "lanes",
                f"{store}: drain from one lane with 100,000 lanes used up, share of none",
            )
            for store in ("SQLite", "PostgreSQL", "MongoDB")
        ),
    ),
    Chart(
        "What remains when payloads and the history grow?",
        (
            Bar("64 KB, SQLite", "growth", "SQLite: payloads of 65,536 bytes, share of raw inserts and reads"),
            Bar("64 KB, PostgreSQL", "growth", "PostgreSQL: payloads of 65,536 bytes, share of raw inserts and reads"),
            *(
                Bar(
                    f"5,000,000 kept, {store}",
                    "growth",
                    f"{store}: drain with 5,000,000 finished jobs kept, share of none",
                )
                for store in ("SQLite", "PostgreSQL")
            ),
        ),
    ),
    Chart(
        "Are limits and budgets kept? (most in any window, and true spend, in the worst case; 1 × is allowed)",
        (
            Bar("limit, one clock 3 s ahead", "limits", "most in any window / L, 20 per 2 s, one clock 3 s ahead"),
            Bar("limit, store killed", "limits", "most in any window / L, 20 per 2 s, the store killed and empty"),
            Bar("limit, other libraries", "limits", "most in any window / L, peers, worst case"),
            Bar("budget, kill -9, SQLite", "limits", "true spend / budget with kill -9, SQLite"),
            Bar("budget, kill -9, PostgreSQL", "limits", "true spend / budget with kill -9, PostgreSQL"),
        ),
    ),
)


class Cell(NamedTuple):
    measured: str
    target: str

    @property
    def value(self) -> float:
        found = NUMBER.search(self.measured)
        return float(found[0].replace(",", "")) if found else 0.0


def draw(text: str) -> str:
    """All charts, as one block of text."""
    return "```text\n" + "\n\n".join(drawn for chart in CHARTS if (drawn := draw_chart(chart, text))) + "\n```"


def draw_chart(chart: Chart, text: str) -> str:
    cells = [(bar.label, table_of(text, bar.suite).get(bar.figure)) for bar in chart.bars]
    known = [(label, cell) for label, cell in cells if cell is not None]
    if not known:
        return ""
    most = max(cell.value for _, cell in known)
    label_width, value_width = max(len(label) for label, _ in known), max(len(cell.measured) for _, cell in known)
    lines = [
        f"  {label:<{label_width}}  {cell.measured:>{value_width}}  {draw_bar(cell.value, most)}"
        + (f"  (target {cell.target})" if cell.target else "")
        for label, cell in known
    ]
    return "\n".join([chart.question, *lines])


def draw_bar(value: float, most: float) -> str:
    """At least one mark, so that a small figure is seen."""
    return "█" * max(round(BAR_WIDTH * value / most), 1) if most else ""


def table_of(text: str, suite: str) -> dict[str, Cell]:
    """The measured values and targets of a suite, by figure."""
    first, last = markers(suite)
    table = text.partition(first)[2].partition(last)[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if "|" in line]
    return {row[0].strip("| "): Cell(row[2], row[1]) for row in rows if len(row) >= 3 and NUMBER.search(row[2])}


def redraw(file: Path = RESULTS) -> None:
    text = file.read_text("utf-8")
    file.write_text(between_markers(text, NAME, draw(text)), "utf-8")


if __name__ == "__main__":
    redraw()
