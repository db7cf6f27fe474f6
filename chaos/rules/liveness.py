"""After a fault the work resumes by itself, soon, in the same processes."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from chaos.evidence import Evidence, Process, Struck
from chaos.rules import FINAL, Rule

BACK_SECONDS_MAX = 5.0
CALL_SECONDS_MAX = 20.0
"""How long the store waits for a reply before it abandons a connection."""
ALLOWED_SECONDS = {"forget": CALL_SECONDS_MAX + BACK_SECONDS_MAX}
"""Faults to which the five seconds cannot apply: a client on a silently dead connection can only wait for its timeout.
"""
WORTH_SECONDS = 0.5
"""The work as a whole has resumed when as many settlements have arrived as usual in this time."""
CALM_SECONDS_MIN = 3.0
"""A shorter time without faults does not show the usual rate."""
OPEN_SECONDS_MAX = 3.0
"""A process that had loaded its code less than this before the end of a fault is not judged: it was still opening the
store."""
DRAINED, KILLED = 0, -9


class Recovery(NamedTuple):
    fault: Struck
    """The first fault from which it had not recovered: a second one that hits a process that is still down is not to
    blame.
    """
    what: str
    seconds: float
    """Infinite: it did not resume, although there was time enough."""

    @property
    def is_late(self) -> bool:
        return self.seconds > allowed(self.fault)


def allowed(fault: Struck) -> float:
    return ALLOWED_SECONDS.get(fault.fault, BACK_SECONDS_MAX)


def recoveries(evidence: Evidence) -> list[Recovery]:
    """How long everything took to resume after each fault, as far as the next fault left time to see it."""
    return [*of_the_whole(evidence), *of_each(evidence, "worker"), *of_each(evidence, "submitter")]


def of_the_whole(evidence: Evidence) -> Iterator[Recovery]:
    times = settled_at(evidence)
    worth = max(int(usual_rate(evidence, times) * WORTH_SECONDS), 1)
    yield from recovered(ended(evidence), "the work", times, worth, submitters_left_at(evidence))


def of_each(evidence: Evidence, role: str) -> Iterator[Recovery]:
    """A process that survived a fault must do again what it did before; so must one that opened the store during the
    fault. How long a process takes to load its code depends on the machine alone.
    """
    for process in evidence.processes.values():
        if process.role != role:
            continue
        times = worked_at(evidence, process.name) if role == "worker" else acknowledged_at(evidence, process.name)
        hits = [fault for fault in ended(evidence) if is_survived(fault, process)]
        end = min(fell_at(evidence, process), submitters_left_at(evidence))
        yield from recovered(hits, process.name, times, 1, end)


def is_survived(fault: Struck, process: Process) -> bool:
    was_there = process.name in fault.hits and process.loaded < fault.began
    is_hit = was_there or fault.began < process.loaded < fault.ended - OPEN_SECONDS_MAX
    return is_hit and process.ended > fault.ended


def fell_at(evidence: Evidence, process: Process) -> float:
    """When it ended, or when the fault began during which it was killed: from then on it could do nothing."""
    fatal = [each.began for each in ended(evidence) if each.touches(process.name, process.ended, process.ended)]
    return min([process.ended, *fatal])


def recovered(faults: list[Struck], what: str, times: list[float], worth: int, end: float) -> Iterator[Recovery]:
    """After each of these faults, as far as there was time until the next one, or until the end."""
    first_of_all: Struck | None = None
    ends = [*(fault.began for fault in faults[1:]), end]
    for number, (fault, until) in enumerate(zip(faults, ends, strict=False)):
        first = bisect_left(times, fault.ended)
        back = times[first + worth - 1] if first + worth <= len(times) else math.inf
        to_blame, since = first_of_all or fault, fault.ended
        if min(back, until) - since > allowed(to_blame):
            patient = still_waiting(faults[:number], fault)
            to_blame, since = (patient, patient.ended) if patient else (to_blame, since)
        if back <= until:
            yield Recovery(to_blame, what, back - since)
            first_of_all = None
        else:
            first_of_all = first_of_all or fault
            if until - since > allowed(to_blame):
                yield Recovery(to_blame, what, math.inf)


def still_waiting(before: list[Struck], fault: Struck) -> Struck | None:
    """The last earlier fault whose recovery time was not over when this one ended. Activity in between does not prove
    recovery: a settlement that was answered already says nothing about a call that hangs.
    """
    patient = (each for each in reversed(before) if each.ended + allowed(each) > fault.ended + allowed(fault))
    return next(patient, None)


def ended(evidence: Evidence) -> list[Struck]:
    """In the order of time: a fault begins when the one before it has ended."""
    return [fault for _, fault in sorted(evidence.faults.items()) if fault.ended < math.inf]


def settled_at(evidence: Evidence, process: str | None = None) -> list[float]:
    """When jobs were finished. Releases do not count: lease renewal releases jobs of a worker that hangs."""
    return sorted(
        each.answered
        for settlements in evidence.settlements.values()
        for each in settlements
        if each.said.is_accepted and each.said.state in FINAL and process in (None, each.process)
    )


def worked_at(evidence: Evidence, process: str) -> list[float]:
    """When a worker settled a job, or started one that it ran to its end.

    After a fault the jobs with expired leases are claimed first, and most of those are long: they can fill every slot
    of a worker, and it settles nothing until the first of them has ended.
    """
    runs = (run for some in evidence.runs.values() for run in some if run.process == process)
    return sorted([*settled_at(evidence, process), *(run.started for run in runs if run.how in ("done", "failed"))])


def acknowledged_at(evidence: Evidence, process: str) -> list[float]:
    return sorted(
        call.acknowledged.at for call in evidence.calls.values() if call.acknowledged is not None and call.by == process
    )


def submitters_left_at(evidence: Evidence) -> float:
    """A process cannot be judged when no job is left."""
    ends = [each.ended for each in evidence.processes.values() if each.role == "submitter" and each.code == DRAINED]
    return min(ends, default=math.inf)


def usual_rate(evidence: Evidence, times: list[float]) -> float:
    """Settlements per second without faults; of all seconds, if those are too few."""
    faults = sorted(evidence.faults.values(), key=lambda fault: fault.began)
    spans = [(before.ended + 1, after.began) for before, after in pairwise(faults) if after.began > before.ended + 1]
    calm = sum(end - start for start, end in spans)
    if calm >= CALM_SECONDS_MIN:
        return sum(bisect_left(times, end) - bisect_left(times, start) for start, end in spans) / calm
    return len(times) / max(times[-1] - times[0], 1.0) if times else 0.0


# -- rules ----------------------------------------------------------------------------------------------------------


def everything_comes_back(evidence: Evidence) -> Iterator[str]:
    """I28: within five seconds, without a restart of any worker."""
    for recovery in recoveries(evidence):
        fault, what, seconds = recovery
        if recovery.is_late:
            took = "not" if math.isinf(seconds) else f"only after {seconds:.1f} s"
            yield f"I28 after fault {fault.number} ({fault.fault}: {fault.what}) {what} came back {took}"


def nobody_leaves(evidence: Evidence) -> Iterator[str]:
    """A process ends when the campaign kills it, or when it is asked to, and then in order."""
    for process in evidence.processes.values():
        if process.code is None:
            continue
        if not process.is_wanted:
            yield f"I28 {process.name} ended by itself, with code {process.code}"
        elif process.code not in (DRAINED, KILLED):
            yield f"I25 {process.name} was asked to leave and ended with code {process.code}"


def what_the_dead_held_runs_again(evidence: Evidence) -> Iterator[str]:
    """I12: within a lease and five seconds, unless the next fault affects every process meanwhile."""
    for fault, job, waited, lease_seconds in orphans(evidence):
        if waited > lease_seconds + BACK_SECONDS_MAX:
            yield f"I12 job {job}, held by {fault.hits[0]} when it was killed, did not run again for {waited:.1f} s"


def orphans(evidence: Evidence) -> Iterator[tuple[Struck, str, float, float]]:
    """The jobs of killed workers, and how long each waited until another worker ran it."""
    for fault in ended(evidence):
        if fault.fault != "kill":
            continue
        dead = evidence.processes[fault.hits[0]]
        for job, runs in evidence.runs.items():
            held = next((run for run in runs if run.process == dead.name and math.isinf(run.ended)), None)
            grant = None if held is None else evidence.grant_behind(held)
            if held is None or grant is None or job in evidence.cancellings:
                continue
            again = min((run.started for run in runs if run.fence > held.fence), default=math.inf)
            until = min(again, dead.ended + grant.lease_seconds + BACK_SECONDS_MAX)
            if not another_hits_everybody(evidence, fault, dead.ended, until):
                yield fault, job, again - dead.ended, grant.lease_seconds


def another_hits_everybody(evidence: Evidence, kill: Struck, start: float, end: float) -> bool:
    """Whether another fault in this time hits every worker that is there when it begins. A worker that replaces one of
    them during the fault is hit as well: it starts in the same place.
    """
    workers = [each for each in evidence.processes.values() if each.role == "worker" and each.ended > end]
    return any(
        fault is not kill
        and fault.began <= end
        and start <= fault.ended + BACK_SECONDS_MAX
        and all(worker.name in fault.hits for worker in workers if worker.started < fault.began)
        for fault in evidence.faults.values()
    )


RULES: list[Rule] = [everything_comes_back, nobody_leaves, what_the_dead_held_runs_again]
