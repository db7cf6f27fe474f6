"""Counters of jobs: those that passed through this process, and those that finished in the store."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from leaseway.api.metrics.prometheus_text import Family, Sample, counter
from leaseway.domain.errors import UsageError
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.domain.ids import Instant
from leaseway.domain.job import State, Submitted
from leaseway.domain.lane import LaneCount
from leaseway.ports.reads import Inspection
from leaseway.stores.http import protocol
from leaseway.stores.http.protocol import Verb

SUBMISSIONS = ("accepted", "replayed", "refused", "failed")
SETTLEMENTS = (*(state.value for state in (State.DONE, State.FAILED, State.CANCELLED, State.PENDING)), "lost")


class WorkCounters:
    """All series exist from the start, so that Prometheus sees their first increase."""

    def __init__(self) -> None:
        self.submissions = dict.fromkeys(SUBMISSIONS, 0)
        self.settlements = dict.fromkeys(SETTLEMENTS, 0)
        self.exchanges = 0
        self.leases = 0

    def count_submissions(self, results: Sequence[Submitted | Exception]) -> None:
        for result in results:
            if isinstance(result, Submitted):
                self.submissions["replayed" if result.replayed else "accepted"] += 1
            else:
                self.submissions["refused" if isinstance(result, UsageError) else "failed"] += 1

    def count_call(self, verb: Verb[Any, Any], body: Any, reply: Any) -> None:
        """A call of the worker protocol."""
        if verb is protocol.EXCHANGE:
            self.count_exchange(body, reply)
        elif verb is protocol.SUBMIT:
            self.count_submissions(reply)

    def count_exchange(self, call: Exchange, reply: ExchangeReply) -> None:
        self.exchanges += 1
        self.leases += len(reply.leases)
        lost = set(reply.lost)
        for settlement in call.settlements:
            self.settlements["lost" if settlement.id in lost else settlement.state.value] += 1

    def families(self) -> Iterator[Family]:
        yield counter(
            "submissions_total", "Jobs submitted through this process.",
            [Sample(count, {"answer": answer}) for answer, count in self.submissions.items()],
        )  # fmt: skip
        yield counter("exchanges_total", "Exchanges of workers through this process.", [Sample(self.exchanges)])
        yield counter("leases_granted_total", "Leases granted through this process.", [Sample(self.leases)])
        yield counter(
            "settlements_total", "Leases settled through this process; pending: to be run again.",
            [Sample(count, {"state": state}) for state, count in self.settlements.items()],
        )  # fmt: skip


OUTCOMES = (State.DONE, State.FAILED, State.CANCELLED)

QueueOutcome = tuple[str, str]
"""Queue and outcome."""


class OutcomeCounters:
    """Finished jobs since the first snapshot of this process. All processes count the same store: use the maximum, not
    the sum.

    The counts of lanes decrease when jobs are pruned, discarded or retried. So each snapshot is compared with the
    previous one in two ways: by how much the counts of lanes have increased, and by what the store reports as finished
    since then. The first misses jobs that were pruned meanwhile, the second jobs that were written late or exceed what
    a store reports. The larger number counts.
    """

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
