"""leaseway lanes"""

from collections.abc import Sequence

from leaseway.api.schemas.serializers import lane_json
from leaseway.cli.screen.as_json import document
from leaseway.cli.screen.needs import needs_in_words
from leaseway.cli.screen.table import Cell, Column, Row, show_table
from leaseway.cli.screen.text import note
from leaseway.cli.screen.times import span
from leaseway.cli.settings import Settings
from leaseway.cli.verbs.lanes_pause import pauses_in
from leaseway.cli.verbs.stores import ask
from leaseway.cli.verbs.waits import shut_gates
from leaseway.domain.exchange import Gate
from leaseway.domain.gates import Shut, longest
from leaseway.domain.job import LaneCount
from leaseway.domain.pauses import Pause, shut_by_pauses
from leaseway.ports.store import Store
from leaseway.worker.explain_waits import Shuts

COUNTS = ("ready", "scheduled", "leased", "done", "failed", "cancelled")
STYLES = {"ready": "yellow", "leased": "cyan", "failed": "red"}


def show_lanes(settings: Settings) -> None:
    async def question(store: Store) -> tuple[Sequence[LaneCount], Shuts, Sequence[Pause]]:
        lanes, now = await store.lanes(), await store.now()
        shuts = await shut_gates(settings, store, (gate_of(lane) for lane in lanes if lane.ready), now)
        return lanes, shuts, await pauses_in(store)

    lanes, shuts, pauses = ask(settings, question)
    totals = {name: sum(getattr(lane, name) for lane in lanes) for name in COUNTS}
    if settings.json:
        document({"lanes": [lane_json(lane, of_lane(lane, shuts, pauses)) for lane in lanes], "total": totals})
    elif not lanes:
        note("there are no lanes yet: a lane begins with its first job")
    else:
        names = names_of(lanes)
        rows = [[*row_of(lane, names), waits_for(of_lane(lane, shuts, pauses))] for lane in lanes]
        show_table(columns(names), rows, total_of(lanes, names, totals))


def gate_of(lane: LaneCount) -> Gate:
    return Gate(lane.needs, lane.tenant)


def of_lane(lane: LaneCount, shuts: Shuts, pauses: Sequence[Pause]) -> list[Shut]:
    """Only who has something ready waits."""
    if not lane.ready:
        return []
    return [*shut_by_pauses(lane.queue, lane.tenant, pauses), *shuts.get(gate_of(lane), [])]


def waits_for(shuts: list[Shut]) -> Cell:
    """What lasts longest; empty if the lane is open."""
    if not shuts:
        return Cell("")
    shut = longest(shuts)
    seconds = "" if shut.wait_us is None else f", {span(shut.wait_us)}"
    return Cell(f"{shut.what} {shut.name}: {shut.why}{seconds}", "yellow")


def names_of(lanes: Sequence[LaneCount]) -> list[str]:
    """What tells lanes apart: what they need only if some need anything."""
    return ["queue", "tenant", "needs"] if any(lane.needs for lane in lanes) else ["queue", "tenant"]


def columns(names: list[str]) -> list[Column]:
    counts = (Column(name, right=True) for name in COUNTS)
    return [*map(Column, names), *counts, Column("waits for", may_shrink=True)]


def row_of(lane: LaneCount, names: list[str]) -> Row:
    words = [lane.queue, lane.tenant, needs_in_words(lane.needs)]
    return [*words[: len(names)], *(number(name, getattr(lane, name)) for name in COUNTS)]


def number(name: str, count: int) -> Cell:
    """A zero is there to be overlooked."""
    return Cell(f"{count:,}", STYLES.get(name, "") if count else "dim")


def total_of(lanes: Sequence[LaneCount], names: list[str], totals: dict[str, int]) -> Row | None:
    if len(lanes) < 2:
        return None
    return ["total", *[""] * (len(names) - 1), *(f"{totals[name]:,}" for name in COUNTS), ""]
