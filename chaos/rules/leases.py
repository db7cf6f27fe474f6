"""At most one holder at any time; a healthy worker keeps its leases; a stored cursor is not lost."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from chaos.evidence import Evidence, Grant, Run
from chaos.rules import Rule

NOTICE_SECONDS = 0.5
"""How long a handler whose lease ended may go on after another one has started: two busy cores are not a clock."""
FREEZES = ("freeze", "grip")
AFTERMATH_SECONDS = 5.0
"""A process need not have recovered within this time after a fault."""


def fences_only_grow(evidence: Evidence) -> Iterator[str]:
    """I1, I20: one fence, one lease; and never a smaller one after a larger one."""
    for job, grants in evidence.grants.items():
        holders: dict[int, set[str]] = defaultdict(set)
        for grant in grants:
            holders[grant.fence].add(grant.token)
        for fence, tokens in holders.items():
            if len(tokens) > 1:
                yield f"I1 job {job}: fence {fence} was granted under {len(tokens)} tokens"
        for older, newer in combinations(grants, 2):
            if older.fence < newer.fence and newer.granted < older.asked:
                yield f"I1 job {job}: fence {older.fence} was granted after fence {newer.fence}"


def one_live_lease(evidence: Evidence) -> Iterator[str]:
    """I1: no job is granted while another worker holds it; a job is held until its handler ends or its last renewal
    expires.
    """
    for job, grants in evidence.grants.items():
        for older, newer in combinations(grants, 2):
            run = evidence.run_of(older)
            if run is None or older.fence == newer.fence:
                continue  # a job that never started may have been released at any time
            held_until = min(run.ended, older.lasts_until)
            if newer.granted < held_until:
                yield (
                    f"I1 job {job}: {newer.process} got fence {newer.fence} {held_until - newer.granted:.2f} s or more "
                    f"before the lease of {older.process} (fence {older.fence}) could end"
                )


def a_lease_is_run_once(evidence: Evidence) -> Iterator[str]:
    """I1: a job runs only in the process that holds its lease."""
    for job, runs in evidence.runs.items():
        fences = [run.fence for run in runs]
        for fence in sorted({each for each in fences if fences.count(each) > 1}):
            yield f"I1 job {job}: {fences.count(fence)} handlers ran under fence {fence}"
        for run in runs:
            if evidence.grant_behind(run) is None:
                yield f"I1 job {job}: {run.process} ran it at fence {run.fence}, which it was never granted"


def nobody_runs_on_unaware(evidence: Evidence) -> Iterator[str]:
    """I17: a handler is told before its job belongs to another worker, or as soon as its process is thawed."""
    for job, runs in evidence.runs.items():
        for older, newer in combinations(runs, 2):
            grant = evidence.grant_behind(older)
            if grant is None or older.fence == newer.fence:
                continue
            overlap = evidence.end_of(older) - max(newer.started, thawed_at(evidence, grant, newer.started))
            if overlap > NOTICE_SECONDS:
                yield (
                    f"I17 job {job}: {older.process} (fence {older.fence}) ran on for {overlap:.2f} s after "
                    f"{newer.process} had started fence {newer.fence}, {newer.started - grant.kept:.2f} s after its "
                    "last renewal, and was not told"
                )


def thawed_at(evidence: Evidence, grant: Grant, until: float) -> float:
    """When the holder could act again, if it was frozen while another worker took its job."""
    freezes = (fault for fault in evidence.faults.values() if fault.fault in FREEZES)
    frozen = (fault for fault in freezes if fault.hits[0] == grant.process)
    return max((fault.ended for fault in frozen if fault.touches(grant.process, grant.asked, until)), default=0.0)


def the_well_keep_their_leases(evidence: Evidence) -> Iterator[str]:
    """I18, I21: a process without a fault renews in time, and keeps every lease that it was granted."""
    for job, grants in evidence.grants.items():
        settled = {each.said.token for each in evidence.settlements.get(job, [])}
        for grant in grants:
            run = evidence.run_of(grant)
            until = grant.lasts_until + 1 if run is None else run.ended
            start = grant.kept - grant.lease_seconds
            if evidence.processes[grant.process].ended < until:
                continue
            if evidence.is_disturbed(grant.process, start, until, AFTERMATH_SECONDS):
                continue
            if run is None and grant.token not in settled:
                yield f"I21 job {job}: {grant.process} was granted fence {grant.fence} and neither ran nor returned it"
            elif run is not None and was_stopped(evidence, run):
                yield f"I18 job {job}: {grant.process} lost its lease of fence {grant.fence} though it was well"


def was_stopped(evidence: Evidence, run: Run) -> bool:
    return run.how == "stopped" and run.job not in evidence.cancellings


def a_kept_cursor_is_found_again(evidence: Evidence) -> Iterator[str]:
    """A later attempt starts at the last acknowledged cursor, or further on."""
    for job, checkpoints in evidence.checkpoints.items():
        kept = [(fence_of(evidence, job, each.token), each.cursor) for each in checkpoints if each.is_kept]
        furthest = max((cursor for _, cursor in kept), default=0)
        tried = {0, *(each.cursor for each in checkpoints)}
        for run in evidence.runs[job]:
            least = max((cursor for fence, cursor in kept if fence < run.fence), default=0)
            if run.cursor < least:
                yield f"I2 job {job}: fence {run.fence} began at cursor {run.cursor}, but {least} was acknowledged"
            if run.cursor not in tried:
                yield f"I2 job {job}: fence {run.fence} began at cursor {run.cursor}, which nobody ever sent"
        stored = evidence.stored.jobs.get(job)
        if stored is not None and stored.cursor < furthest:
            yield f"I2 job {job}: cursor {furthest} was acknowledged, {stored.cursor} is stored"


def late_cursors_are_refused(evidence: Evidence) -> Iterator[str]:
    """I2: a worker that lost its lease changes nothing."""
    for job, checkpoints in evidence.checkpoints.items():
        for each in checkpoints:
            fence = fence_of(evidence, job, each.token)
            newer = [grant for grant in evidence.grants[job] if grant.fence > fence and grant.granted < each.sent]
            if each.is_kept and newer:
                yield f"I2 job {job}: cursor {each.cursor} of fence {fence} was kept after {newer[0].fence} was granted"


def fence_of(evidence: Evidence, job: str, token: str) -> int:
    grant = evidence.grant_of(job, token)
    return 0 if grant is None else grant.fence


RULES: list[Rule] = [
    fences_only_grow,
    one_live_lease,
    a_lease_is_run_once,
    nobody_runs_on_unaware,
    the_well_keep_their_leases,
    a_kept_cursor_is_found_again,
    late_cursors_are_refused,
]
