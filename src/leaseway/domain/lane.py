"""Whose turn it is: how a claim is divided among the lanes that have work.

A lane has a virtual time: how much it has been served, each job divided by the weight of its tenant. The lane that is
furthest behind comes first. Virtual time goes on while a lane has no work or is behind a closed gate: the floor of a
claim is the place of the first lane in it, every lane that is served remembers that, and nobody starts before the
highest floor that a lane of these queues remembers. So what was not used is not made up for later.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from leaseway.domain.exchange import Admit, Gate
from leaseway.domain.ids import Instant
from leaseway.domain.validators import check_name

SCALE = 1_000_000
"""How far a job moves a lane of weight 1."""

EQUAL: Mapping[int, int] = {}
"""Every lane weighs one."""


class LaneCount(Struct, frozen=True, kw_only=True):
    """What one lane holds, by counters that every write keeps; never by counting rows."""

    queue: str
    tenant: str
    needs: str = ""
    ready: int
    """Pending and due."""
    scheduled: int
    """Pending, with a time to start that has not come."""
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
    """A lane with work, as a claim sees it."""

    lane: int
    ready: int
    weight: int
    gate: Gate | None
    place: int
    """Its virtual time, or the floor if it is behind that."""

    def moved(self, count: int) -> int:
        """Its virtual time after so many jobs."""
        return self.place + count * SCALE // self.weight


def divide_claim(count: int, turns: Iterable[LaneTurn], admits: Mapping[Gate, int]) -> dict[int, int]:
    """How many jobs each of these lanes gives, in their order."""
    turns = list(turns)
    return share(count, usable(turns, admits), {turn.lane: turn.weight for turn in turns})


def usable(turns: Iterable[LaneTurn], admits: Mapping[Gate, int]) -> dict[int, int]:
    """What each lane has, as far as its gate lets it out: first come, first served among lanes behind one gate."""
    left = dict(admits)
    found: dict[int, int] = {}
    for turn in turns:
        found[turn.lane] = turn.ready
        if turn.gate is not None:
            found[turn.lane] = min(turn.ready, left.get(turn.gate, 0))
            left[turn.gate] = left.get(turn.gate, 0) - found[turn.lane]
    return found


def admits_by_gate(admits: Iterable[Admit]) -> dict[Gate, int]:
    """By gate, as far as there is something to admit."""
    counts: dict[Gate, int] = {}
    for admit in admits:
        if admit.count > 0:
            counts[admit.gate] = counts.get(admit.gate, 0) + admit.count
    return counts


def share(count: int, ready: Mapping[int, int], weights: Mapping[int, int] = EQUAL) -> dict[int, int]:
    """Give each lane, in their order, its share of `count` by weight, and what one cannot use to the others."""
    shares = dict.fromkeys(ready, 0)
    while count > 0:
        hungry = [lane for lane, given in shares.items() if given < ready[lane]]
        if not hungry:
            break
        total = sum(weights.get(lane, 1) for lane in hungry)
        portions = {lane: min(count * weights.get(lane, 1) // total, ready[lane] - shares[lane]) for lane in hungry}
        if not any(portions.values()):
            portions = dict.fromkeys(hungry[:count], 1)  # what cannot be divided goes to those in front
        for lane, portion in portions.items():
            shares[lane] += portion
            count -= portion
    return {lane: given for lane, given in shares.items() if given}


# -- pauses ---------------------------------------------------------------------------------------------------------

PAUSES_MAX = 1_000


class Pause(Struct, frozen=True, order=True):
    """All lanes of a queue, whatever their jobs need: those of one tenant, or of all, also of those who come later."""

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
    """The pause in which this lane is; the wider one, if there are two."""
    return next(
        (pause for pause in sorted(pauses, key=lambda each: each.tenant or "") if pause.covers(queue, tenant)), None
    )
