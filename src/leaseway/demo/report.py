"""The report at the end of the demo, as text or JSON."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leaseway.demo.runner import Shown
from leaseway.demo.spec import API_KEY, KEY_VARIABLE, TABLE, Files
from leaseway.demo.verify import named, stored_rows
from leaseway.demo.work_folder import WorkFolder

NORTH, SOUTH = 78.0, -56.0
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character, by row and column."""
BLANK = 0x2800
STYLES = ((300, "#f2a33a"), (60, "#7cc36e"), (8, "#3aa6b9"), (0, "#4878a8"))
"""The more rows in a character, the warmer its colour; readable on dark and on light backgrounds."""
STRETCH = 0.8
"""Characters are twice as high as wide, and maps are usually a little taller than their degrees."""

Cell = tuple[int, int]


def world(points: Iterable[tuple[float, float]], width: int) -> Text:
    """`points`: latitude and longitude."""
    scale = width * 2 / 360
    height = math.ceil((NORTH - SOUTH) * scale / STRETCH / 4)
    bits: dict[Cell, int] = {}
    counts: Counter[Cell] = Counter()
    for latitude, longitude in points:
        if not SOUTH < latitude <= NORTH:
            continue
        x = min(int((longitude + 180) * scale), width * 2 - 1)
        y = min(int((NORTH - latitude) * scale / STRETCH), height * 4 - 1)
        cell = (y // 4, x // 2)
        bits[cell] = bits.get(cell, 0) | DOTS[y % 4][x % 2]
        counts[cell] += 1
    rows = [row for row, _ in bits]
    shown = range(min(rows), max(rows) + 1) if rows else range(0)
    return Text("\n").join(map_row(row, width, bits, counts) for row in shown)


def map_row(row: int, width: int, bits: Mapping[Cell, int], counts: Mapping[Cell, int]) -> Text:
    text = Text(no_wrap=True)
    for column in range(width):
        cell = (row, column)
        text.append(chr(BLANK | bits[cell]) if cell in bits else " ", dot_style(counts.get(cell, 0)))
    return text


def dot_style(count: int) -> str:
    return next(style for least, style in STYLES if count >= least)


MEGABYTE = 1_000_000
MAP_WIDTH_MAX = 100


def as_dict(shown: Shown) -> dict[str, object]:
    verdict, kill = shown.verdict, shown.kill
    return {
        "ok": shown.is_clean,
        "state": shown.state.value,
        "places": verdict.places,
        "places_are_real": shown.is_real,
        "rows": verdict.rows,
        "missing": len(verdict.missing),
        "extra": len(verdict.extra),
        "duplicates": len(verdict.doubled),
        "different": len(verdict.different),
        "inserted": verdict.inserted,
        "requests": verdict.requests,
        "refused": verdict.refused,
        "limit_per_second": verdict.limit,
        "most_in_a_second": verdict.most_in_a_second,
        "requests_per_second": round(verdict.requests_per_second, 2),
        "page_limit": shown.page_limit,
        "shards": shown.shards,
        "shards_from_splits": shown.children,
        "shards_resumed": shown.resumed,
        "pages_again": verdict.pages_again,
        "killed": None if kill is None else kill._asdict(),
        "seconds": round(shown.seconds, 3),
        "rows_per_second": round(shown.rows_per_second, 1),
        "workers_most": shown.workers_most,
        "fleet_decision": shown.decision,
        "worker_peak_megabytes": round(shown.peak_bytes / MEGABYTE, 1) or None,
    }


def print_report(console: Console, shown: Shown, folder: WorkFolder) -> None:
    files = Files(folder.path, shown.settings.store)
    console.print()
    console.print(world(points(files), min(console.width, MAP_WIDTH_MAX)))
    console.print()
    console.print(as_table(shown))
    for what, command in next_commands(folder, files):
        console.print(Text.assemble((f"{what}  ", "dim"), command), soft_wrap=True)


def points(files: Files) -> list[tuple[float, float]]:
    """The coordinates of the imported rows."""
    with stored_rows(files.sink_url) as rows:
        return [(latitude, longitude) for *_, latitude, longitude in rows]


def as_table(shown: Shown) -> Table:
    """Three columns: name, count, and meaning."""
    verdict = shown.verdict
    title = "verified against the table, the provider's own rows and its journal"
    table = Table(title=title, title_justify="left", title_style="dim", show_header=False, box=box.SIMPLE)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row(
        "places of the provider", f"{verdict.places:,}", "GeoNames, CC BY 4.0" if shown.is_real else "generated"
    )
    table.add_row("rows in the table", f"{verdict.rows:,}", f"in pages of {shown.page_limit}")
    table.add_row("missing", *judged(verdict.missing))
    table.add_row("duplicates", *judged(verdict.doubled))
    table.add_row("not the provider's", *judged(verdict.extra))
    table.add_row("different from the provider's", *judged(verdict.different))
    table.add_row("counted as inserted", *exact(shown), end_section=True)
    add_requests(table, shown)
    add_kill(table, shown)
    split = f"{shown.children} of them split off at the end" if shown.children else ""
    table.add_row("shards", f"{shown.shards:,}", split)
    table.add_row("throughput", f"{shown.rows_per_second:,.0f} rows/s", f"{shown.seconds:.1f} s")
    table.add_row("workers at most", f"{shown.workers_most:,}", f"{shown.settings.workers:,} are permitted")
    if shown.peak_bytes:
        table.add_row("memory of a worker at most", f"{shown.peak_bytes / MEGABYTE:,.0f} MB")
    return table


def add_requests(table: Table, shown: Shown) -> None:
    verdict = shown.verdict
    share = verdict.requests_per_second / verdict.limit
    table.add_row("requests", f"{verdict.requests:,}", f"{verdict.requests_per_second:.1f}/s, {share:.0%} of the limit")
    good = verdict.most_in_a_second <= verdict.limit
    table.add_row("refused with 429", *flagged(f"{verdict.refused:,}", "", verdict.refused == 0))
    most = flagged(f"{verdict.most_in_a_second:,}", f"{verdict.limit:,} are permitted", good)
    table.add_row("most in any second", *most, end_section=True)


def add_kill(table: Table, shown: Shown) -> None:
    kill = shown.kill
    if kill is None:
        table.add_row("killed", "none", "the import ended too soon", end_section=True)
        return
    table.add_row("killed", f"worker {kill.worker}", f"with {kill.in_hands} leased shards")
    table.add_row("shards resumed", f"{shown.resumed:,}", "each after its last written page")
    table.add_row("pages fetched again", f"{shown.verdict.pages_again:,}", "at most one a shard", end_section=True)


def judged(numbers: tuple[int, ...]) -> tuple[Text, Text]:
    return flagged(f"{len(numbers):,}", f"ids {named(numbers)}" if numbers else "", not numbers)


def exact(shown: Shown) -> tuple[Text, Text]:
    verdict = shown.verdict
    return flagged(
        f"{verdict.inserted:,}", "each row once" if verdict.is_exact else "not one for each row", verdict.is_exact
    )


def flagged(count: str, words: str, is_good: bool) -> tuple[Text, Text]:
    return Text(count, "bold green" if is_good else "bold red"), Text(words, "green" if is_good else "red")


def next_commands(folder: WorkFolder, files: Files) -> list[tuple[str, str]]:
    if not folder.is_kept:
        return [
            ("keep the files and inspect them:", "leaseway demo --keep places"),
            ("import from an API of your own:", "leaseway import --help"),
        ]
    query = f"SELECT country, count(*) FROM {TABLE} GROUP BY 1 ORDER BY 2 DESC LIMIT 5"
    rows = [] if files.database else [("the rows:  ", f'sqlite3 {files.places} "{query}"')]
    return [
        *rows,
        ("the shards:", f"{KEY_VARIABLE}={API_KEY} leaseway import status {files.spec}"),
    ]
