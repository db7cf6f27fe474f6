"""snapshots of the store ─► [jobs that finished in between] ─► counters that never decrease

The counts of lanes decrease when jobs are pruned, discarded or retried. So each snapshot is compared with the previous
one in two ways: by how much the counts of lanes have increased, and by what the store reports as finished since then.
The first misses jobs that were pruned meanwhile, the second jobs that were written late or exceed what a store reports.
The larger number counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from leaseway.domain.ids import Instant
from leaseway.domain.job import State
from leaseway.domain.lane import LaneCount
from leaseway.ports.reads import Inspection

OUTCOMES = (State.DONE, State.FAILED, State.CANCELLED)

QueueOutcome = tuple[str, str]
"""Queue and outcome."""


class OutcomeCounters:
    """Since the first snapshot of this process. All processes count the same store: use the maximum, not the sum."""

    def __init__(self) -> None:
        self._lanes: Counter[QueueOutcome] | None = None
        self._at: Instant = 0
        self.totals: Counter[QueueOutcome] = Counter()

    async def update(self, stats: Inspection, lanes: Iterable[LaneCount], at: Instant) -> Mapping[QueueOutcome, int]:
        now = count_outcomes(lanes)
        before, self._lanes = self._lanes, now
        since, self._at = self._at, at
        if before is not None and at > since:
            _, ended = await stats.ended(since)
            reported: Counter[QueueOutcome] = Counter()
            for each in ended:
                reported[each.queue, each.state.value] += each.count
            for name in {*now, *reported}:
                self.totals[name] += max(now[name] - before[name], reported[name], 0)
        return self.totals


def count_outcomes(lanes: Iterable[LaneCount]) -> Counter[QueueOutcome]:
    counts: Counter[QueueOutcome] = Counter()
    for lane in lanes:
        for state in OUTCOMES:
            counts[lane.queue, state.value] += getattr(lane, state.value)
    return counts
