"""The store's counters agree with its rows, and no job is left over."""

from collections import Counter
from collections.abc import Iterator

from chaos.evidence import Evidence
from chaos.rules import FINAL, Rule


def nothing_is_left(evidence: Evidence) -> Iterator[str]:
    """I12: every job ends after the last fault."""
    if evidence.left:
        yield f"I12 {evidence.left} jobs did not come to an end after everything was healed"
    for job in evidence.stored.jobs.values():
        if job.state not in FINAL:
            yield f"I12 job {job.id} ({job.kind} {job.label}) is still {job.state}"


def counters_are_true(evidence: Evidence) -> Iterator[str]:
    """Dashboards and autoscaling rely on a lane's counters."""
    counted = Counter((job.lane, job.state) for job in evidence.stored.jobs.values())
    lanes = {(lane.queue, lane.tenant): lane for lane in evidence.stored.lanes}
    for name in {name for name, _ in counted} - lanes.keys():
        yield f"lane {name} holds jobs and is not listed"
    for name, lane in lanes.items():
        told = {"pending": lane.pending, "leased": lane.leased}
        told |= {state: getattr(lane, state) for state in FINAL}
        for state, count in told.items():
            if count != counted[name, state]:
                yield f"lane {name} says that {count} jobs are {state}, there are {counted[name, state]}"


RULES: list[Rule] = [nothing_is_left, counters_are_true]
