"""A job is finished once, by its last holder, and an accepted result stays."""

from collections import Counter
from collections.abc import Iterator

from chaos.evidence import Evidence
from chaos.jobs import CHILD
from chaos.rules import FINAL, Rule


def one_accepted_result(evidence: Evidence) -> Iterator[str]:
    """I4"""
    for job, settlements in evidence.settlements.items():
        accepted = {each.said.token for each in settlements if each.said.is_accepted and each.said.state in FINAL}
        if len(accepted) > 1:
            yield f"I4 job {job} was finished {len(accepted)} times, by different attempts, and each was accepted"


def accepted_stands(evidence: Evidence) -> Iterator[str]:
    """I3, I4: an acknowledgement is a promise, which a server that crashes afterwards keeps."""
    for job, settlements in evidence.settlements.items():
        stored = evidence.stored.jobs.get(job)
        for each in settlements:
            if not each.said.is_accepted or each.said.state not in FINAL:
                continue
            grant = evidence.grant_of(job, each.said.token)
            if stored is None:
                yield f"I3 job {job} was settled as {each.said.state} and is lost"
            elif stored.state != each.said.state:
                yield f"I4 job {job} was accepted as {each.said.state} and is {stored.state}"
            elif grant is not None and grant.fence != stored.fence:
                yield f"I4 job {job} was accepted as {stored.state} at fence {grant.fence} and has fence {stored.fence}"


def late_settlements_are_refused(evidence: Evidence) -> Iterator[str]:
    """I2: settled for the first time when another worker already held the job."""
    for job, settlements in evidence.settlements.items():
        for each in settlements:
            grant = evidence.grant_of(job, each.said.token)
            if not each.said.is_accepted or grant is None:
                continue
            newer = [other for other in evidence.grants[job] if other.fence > grant.fence]
            if newer and newer[0].granted < each.said.sent:
                yield (
                    f"I2 job {job}: {each.process} settled fence {grant.fence} as {each.said.state}, and was accepted, "
                    f"{each.said.sent - newer[0].granted:.2f} s after {newer[0].process} got fence {newer[0].fence}"
                )


def the_result_is_the_last_holders(evidence: Evidence) -> Iterator[str]:
    """I4: the stored result names the attempt with the highest fence, and that attempt recorded that it finished."""
    for job in evidence.stored.jobs.values():
        fences = [each.fence for each in evidence.grants.get(job.id, [])]
        if fences and max(fences) > job.fence:
            yield f"I4 job {job.id} has fence {job.fence}, but fence {max(fences)} was granted"
        if job.state != "done":
            continue
        if job.result_fence != job.fence:
            yield f"I4 job {job.id} has the result of fence {job.result_fence}, but was last held at {job.fence}"
        runs = evidence.runs.get(job.id, [])
        if not any(run.how == "done" and run.fence == job.result_fence for run in runs):
            yield f"I4 job {job.id} is done, but no handler says that it finished at fence {job.result_fence}"


def children_follow_their_parent(evidence: Evidence) -> Iterator[str]:
    """Children exist once if their parent is done, from the attempt that was accepted, and not at all otherwise."""
    jobs = evidence.stored.jobs
    children = Counter((job.parent, job.index) for job in jobs.values() if job.kind == CHILD)
    for (parent, index), count in children.items():
        if count > 1:
            yield f"I4 child {index} of job {parent} exists {count} times"
    for child in jobs.values():
        if child.kind != CHILD:
            continue
        parent_job = jobs.get(child.parent)
        if parent_job is None or parent_job.state != "done":
            yield f"I4 child {child.id} exists though its parent {child.parent} is not done"
        elif parent_job.fence != child.parent_fence:
            yield f"I2 child {child.id} is of fence {child.parent_fence}, its parent was done at {parent_job.fence}"
    for job in jobs.values():
        if job.kind == "parent" and job.state == "done":
            there = sum(children[job.id, index] > 0 for index in range(job.children))
            if there < job.children:
                yield f"I3 job {job.id} is done, but only {there} of its {job.children} children exist"


RULES: list[Rule] = [
    one_accepted_result,
    accepted_stands,
    late_settlements_are_refused,
    the_result_is_the_last_holders,
    children_follow_their_parent,
]
