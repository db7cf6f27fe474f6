"""Lanes: their counters, how a claim is divided among them (weighted fair queueing), and pauses.

The work of one tenant in one queue is a flow. A flow has a virtual time: how much it has been served, each job divided
by the weight of its tenant. The flow with the smallest virtual time is served first. A flow that has no work, or whose
lanes are closed, does not save up its turns: the floor of a claim is the virtual time of its first flow, every flow
that is served stores that floor, and no flow starts below the highest floor that a flow of these queues has stored.

Within a flow, lanes take turns by the same rule with equal weights; the flow stores the floor of its lanes. So the
share of a tenant does not depend on the number of its lanes. A lane that is alone in its flow is not charged.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.exchange import CLOSED_US_MAX, WHY_LENGTH_MAX, Admit, Closing, Gate
from leaseway.domain.ids import Instant
from leaseway.domain.validators import check_name

SCALE = 1_000_000
"""How far one job advances the virtual time of a lane of weight 1."""

EQUAL: Mapping[Any, int] = {}
"""All have weight 1."""

K = TypeVar("K", bound=Hashable)


class LaneCount(Struct, frozen=True, kw_only=True):
    """The counters of one lane. Every write updates them; rows are never counted."""

    queue: str
    tenant: str
    needs: str = ""
    ready: int
    """Pending and due."""
    scheduled: int
    """Pending, not due yet."""
    leased: int
    done: int
    failed: int
    cancelled: int
    bytes: int = 0
    """The size of the texts of its jobs: payload, cursor, progress, result and errors."""
    closed_until: Instant | None = None
    """A worker found the gate of this lane closed. No worker tries it again before this time."""
    closed_why: str | None = None
    """The limit or budget that closes it, and why."""

    @property
    def pending(self) -> int:
        return self.ready + self.scheduled

    @property
    def unfinished(self) -> int:
        return self.ready + self.scheduled + self.leased

    @property
    def jobs(self) -> int:
        return self.unfinished + self.done + self.failed + self.cancelled


Flow = tuple[str, str]
"""Queue and tenant."""


class LaneTurn(Struct, frozen=True):
    """A lane with ready jobs, during a claim."""

    lane: int
    ready: int
    weight: int
    gate: Gate | None
    flow: Flow
    place: int
    """The virtual time of its flow, or the floor if that is higher."""
    lane_place: int = 0
    """Its own virtual time within the flow, or the floor of the flow's lanes if that is higher."""


class FlowTimes(Struct, frozen=True):
    """The virtual times of a flow after a claim."""

    vtime: int
    vfloor: int
    lane_floor: int | None
    """The floor of its lanes; None if it did not change."""


def by_flow(turns: Iterable[LaneTurn]) -> dict[Flow, list[LaneTurn]]:
    flows: dict[Flow, list[LaneTurn]] = {}
    for turn in turns:
        flows.setdefault(turn.flow, []).append(turn)
    return flows


def divide_claim(count: int, turns: Iterable[LaneTurn], admits: Mapping[Gate, int]) -> dict[int, int]:
    """How many jobs to claim from each of these lanes, in their order: flows share by weight, the lanes of a flow
    equally."""
    turns = list(turns)
    ready, flows = usable(turns, admits), by_flow(turns)
    by_weight = share(
        count,
        {flow: sum(ready[turn.lane] for turn in lanes) for flow, lanes in flows.items()},
        {flow: lanes[0].weight for flow, lanes in flows.items()},
    )
    shares: dict[int, int] = {}
    for flow, portion in by_weight.items():
        shares |= share(portion, {turn.lane: ready[turn.lane] for turn in flows[flow]})
    return {turn.lane: shares[turn.lane] for turn in turns if turn.lane in shares}


def advance(turns: Iterable[LaneTurn], shares: Mapping[int, int]) -> tuple[dict[Flow, FlowTimes], dict[int, int]]:
    """The virtual times of the flows and lanes that a claim has served."""
    flows = by_flow(turns)
    vfloor = next(iter(flows.values()))[0].place if flows else 0
    served: dict[Flow, FlowTimes] = {}
    vtimes: dict[int, int] = {}
    for flow, lanes in flows.items():
        count = sum(shares.get(turn.lane, 0) for turn in lanes)
        if not count:
            continue
        is_alone = len(lanes) == 1
        vtime = lanes[0].place + count * SCALE // lanes[0].weight
        served[flow] = FlowTimes(vtime, vfloor, None if is_alone else lanes[0].lane_place)
        if not is_alone:
            vtimes |= {turn.lane: turn.lane_place + shares[turn.lane] * SCALE for turn in lanes if turn.lane in shares}
    return served, vtimes


def usable(turns: Iterable[LaneTurn], admits: Mapping[Gate, int]) -> dict[int, int]:
    """How many ready jobs of each lane its gate admits. Lanes behind the same gate are served in their order."""
    left = dict(admits)
    found: dict[int, int] = {}
    for turn in turns:
        found[turn.lane] = turn.ready
        if turn.gate is not None:
            found[turn.lane] = min(turn.ready, left.get(turn.gate, 0))
            left[turn.gate] = left.get(turn.gate, 0) - found[turn.lane]
    return found


def admits_by_gate(admits: Iterable[Admit]) -> dict[Gate, int]:
    """The number of admitted jobs per gate; gates with none are left out."""
    counts: dict[Gate, int] = {}
    for admit in admits:
        if admit.count > 0:
            counts[admit.gate] = counts.get(admit.gate, 0) + admit.count
    return counts


def distinct_closings(closed: Iterable[Closing]) -> list[Closing]:
    """The first closing of each gate, within the bounds of time and text."""
    first: dict[Gate, Closing] = {}
    for closing in closed:
        wait_us, why = min(closing.wait_us, CLOSED_US_MAX), closing.why[:WHY_LENGTH_MAX]
        first.setdefault(closing.gate, replace(closing, wait_us=wait_us, why=why))
    return list(first.values())


def share(count: int, ready: Mapping[K, int], weights: Mapping[K, int] = EQUAL) -> dict[K, int]:
    """Divide `count` among lanes or flows by weight. What one cannot use goes to the others."""
    shares = dict.fromkeys(ready, 0)
    while count > 0:
        hungry = [lane for lane, given in shares.items() if given < ready[lane]]
        if not hungry:
            break
        total = sum(weights.get(lane, 1) for lane in hungry)
        portions = {lane: min(count * weights.get(lane, 1) // total, ready[lane] - shares[lane]) for lane in hungry}
        if not any(portions.values()):
            portions = dict.fromkeys(hungry[:count], 1)  # a remainder goes to the first lanes
        for lane, portion in portions.items():
            shares[lane] += portion
            count -= portion
    return {lane: given for lane, given in shares.items() if given}


# -- pauses ---------------------------------------------------------------------------------------------------------

PAUSES_MAX = 1_000


class Pause(Struct, frozen=True, order=True):
    """A pause of all lanes of a queue: those of one tenant, or those of all tenants, including future ones. No job is
    claimed from them until they are resumed; running jobs continue."""

    queue: str
    tenant: str | None = None
    since: Instant = 0

    def covers(self, queue: str, tenant: str) -> bool:
        return self.queue == queue and self.tenant in (None, tenant)

    def __str__(self) -> str:
        return f"queue {self.queue!r}" + ("" if self.tenant is None else f" of tenant {self.tenant!r}")


def check_pause(pause: Pause) -> Pause:
    check_name("queue", pause.queue)
    if pause.tenant is not None:
        check_name("tenant", pause.tenant)
    return pause


def covering_pause(queue: str, tenant: str, pauses: Iterable[Pause]) -> Pause | None:
    """The pause that covers this lane. If there are two, the one for all tenants."""
    return next(
        (pause for pause in sorted(pauses, key=lambda each: each.tenant or "") if pause.covers(queue, tenant)), None
    )
