"""looks at the store ─► [what ended since] ─► counters that only grow.

The counters of lanes fall again when old jobs are pruned, discarded or retried, so a look is compared with the one
before: by what the lanes have more, and by what the store says has ended meanwhile. Each may miss something: the first
what was pruned at the same time, the second what was written late or is more than a store looks at in passing. The
larger one counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from leaseway.domain.ids import Instant
from leaseway.domain.job import LaneCount, State
from leaseway.ports.store_stats import Pulse

OUTCOMES = (State.DONE, State.FAILED, State.CANCELLED)

Name = tuple[str, str]
"""Queue and outcome."""


class Ends:
    """Since this process began to look. Several processes see the same store: take the largest, not the sum."""

    def __init__(self) -> None:
        self._lanes: Counter[Name] | None = None
        self._at: Instant = 0
        self.totals: Counter[Name] = Counter()

    async def look(self, pulse: Pulse, lanes: Iterable[LaneCount], at: Instant) -> Mapping[Name, int]:
        now = counted(lanes)
        before, self._lanes = self._lanes, now
        since, self._at = self._at, at
        if before is not None and at > since:
            _, ended = await pulse.ended(since)
            told: Counter[Name] = Counter()
            for each in ended:
                told[each.queue, each.state.value] += each.count
            for name in {*now, *told}:
                self.totals[name] += max(now[name] - before[name], told[name], 0)
        return self.totals


def counted(lanes: Iterable[LaneCount]) -> Counter[Name]:
    counts: Counter[Name] = Counter()
    for lane in lanes:
        for state in OUTCOMES:
            counts[lane.queue, state.value] += getattr(lane, state.value)
    return counts
