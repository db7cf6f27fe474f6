"""leaseway lanes"""

from collections.abc import Sequence

from leaseway.cli.screen.as_json import document, lane_json
from leaseway.cli.screen.table import Cell, Column, Row, show_table
from leaseway.cli.screen.text import note
from leaseway.cli.settings import Settings
from leaseway.cli.verbs.stores import ask
from leaseway.domain.job import LaneCount

COUNTS = ("ready", "scheduled", "leased", "done", "failed", "cancelled")
STYLES = {"ready": "yellow", "leased": "cyan", "failed": "red"}


def show_lanes(settings: Settings) -> None:
    lanes = ask(settings, lambda store: store.lanes())
    totals = {name: sum(getattr(lane, name) for lane in lanes) for name in COUNTS}
    if settings.json:
        document({"lanes": [lane_json(lane) for lane in lanes], "total": totals})
    elif not lanes:
        note("there are no lanes yet: a lane begins with its first job")
    else:
        show_table(columns(), [row_of(lane) for lane in lanes], total_of(lanes, totals))


def columns() -> list[Column]:
    return [Column("queue"), Column("tenant"), *(Column(name, right=True) for name in COUNTS)]


def row_of(lane: LaneCount) -> Row:
    return [lane.queue, lane.tenant, *(number(name, getattr(lane, name)) for name in COUNTS)]


def number(name: str, count: int) -> Cell:
    """A zero is there to be overlooked."""
    return Cell(f"{count:,}", STYLES.get(name, "") if count else "dim")


def total_of(lanes: Sequence[LaneCount], totals: dict[str, int]) -> Row | None:
    return ["total", "", *(f"{totals[name]:,}" for name in COUNTS)] if len(lanes) > 1 else None
