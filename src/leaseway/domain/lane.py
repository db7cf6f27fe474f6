"""Lanes: their counters, how a claim is divided among them (weighted fair queueing), and pauses.

A lane has a virtual time: how much it has been served, each job divided by the weight of its tenant. The lane with the
smallest virtual time is served first. A lane that has no work, or whose gate is closed, does not save up its turns: the
floor of a claim is the virtual time of its first lane, every lane that is served stores that floor, and no lane starts
below the highest floor that a lane of these queues has stored.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from leaseway.domain.exchange import Admit, Gate
from leaseway.domain.ids import Instant
from leaseway.domain.validators import check_name

SCALE = 1_000_000
"""How far one job advances the virtual time of a lane of weight 1."""

EQUAL: Mapping[int, int] = {}
"""Every lane has weight 1."""


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

    @property
    def pending(self) -> int:
        return self.ready + self.scheduled

    @property
    def unfinished(self) -> int:
        return self.ready + self.scheduled + self.leased


class LaneTurn(Struct, frozen=True):
    """A lane with ready jobs, during a claim."""

    lane: int
    ready: int
    weight: int
    gate: Gate | None
    place: int
    """Its virtual time, or the floor if that is higher."""

    def moved(self, count: int) -> int:
        """Its virtual time after this many jobs."""
        return self.place + count * SCALE // self.weight


def divide_claim(count: int, turns: Iterable[LaneTurn], admits: Mapping[Gate, int]) -> dict[int, int]:
    """How many jobs to claim from each of these lanes, in their order."""
    turns = list(turns)
    return share(count, usable(turns, admits), {turn.lane: turn.weight for turn in turns})


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


def share(count: int, ready: Mapping[int, int], weights: Mapping[int, int] = EQUAL) -> dict[int, int]:
    """Divide `count` among the lanes by weight. What one lane cannot use goes to the others."""
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
