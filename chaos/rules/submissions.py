"""No acknowledged job is lost, no refused job exists, and every job exists once."""

from collections import defaultdict
from collections.abc import Iterator

from chaos.evidence import Call, Evidence
from chaos.jobs import CHILD, ENDS
from chaos.rules import Rule


def by_label(evidence: Evidence) -> dict[str, list[str]]:
    """The jobs that are stored under each label."""
    found: dict[str, list[str]] = defaultdict(list)
    for job in evidence.stored.jobs.values():
        if job.kind != CHILD:
            found[job.label].append(job.id)
    return found


def calls_by_label(evidence: Evidence) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = defaultdict(list)
    for call in evidence.calls.values():
        for label in call.sent.labels:
            found[label].append(call)
    return found


def acknowledged_is_stored(evidence: Evidence) -> Iterator[str]:
    """I3"""
    for call in evidence.calls.values():
        if call.acknowledged is None:
            continue
        for label, id_ in zip(call.sent.labels, call.acknowledged.jobs, strict=True):
            job = evidence.stored.jobs.get(id_)
            if job is None:
                yield f"I3 job {id_} ({label}) was acknowledged and is lost"
            elif job.label != label:
                yield f"I3 job {id_} was acknowledged for {label}, but it is {job.label}"


def refused_left_nothing(evidence: Evidence) -> Iterator[str]:
    """I22: a client that was told that nothing happened may do it again in another way."""
    stored = by_label(evidence)
    for label, calls in calls_by_label(evidence).items():
        if label in stored and all(call.refused for call in calls):
            error = calls[-1].refused.error if calls[-1].refused else ""
            yield f"I22 {label} was refused ({error}) and is stored all the same, as {stored[label][0]}"


def one_job_for_each_label(evidence: Evidence) -> Iterator[str]:
    """I5, I19: however often a submission was sent, and whatever happened to its replies."""
    calls = calls_by_label(evidence)
    for label, jobs in by_label(evidence).items():
        if len(jobs) > 1:
            yield f"I5 {label} is stored {len(jobs)} times: {', '.join(jobs)}"
        if label not in calls:
            yield f"I3 job {jobs[0]} ({label}) is stored though nobody submitted it"


def all_or_nothing(evidence: Evidence) -> Iterator[str]:
    """I3: a bulk submission is one transaction."""
    stored = by_label(evidence)
    for call in evidence.calls.values():
        count = sum(label in stored for label in call.sent.labels)
        if 0 < count < len(call.sent.labels):
            yield f"I3 of submission {call.sent.call} {count} of {len(call.sent.labels)} jobs are stored"


def a_key_names_one_job(evidence: Evidence) -> Iterator[str]:
    """I5"""
    named: dict[str, set[str]] = defaultdict(set)
    for call in evidence.calls.values():
        if call.sent.key is not None and call.acknowledged is not None:
            named[call.sent.key].update(call.acknowledged.jobs)
    for key, jobs in named.items():
        if len(jobs) > 1:
            yield f"I5 key {key} was answered with {len(jobs)} jobs: {', '.join(sorted(jobs))}"


def every_job_ends_as_it_must(evidence: Evidence) -> Iterator[str]:
    """I3, I12: done or failed as its kind requires; cancelled if a client requested it, and then certainly if
    acknowledged.
    """
    for job in evidence.stored.jobs.values():
        wishes = evidence.cancellings.get(job.id, [])
        wanted = {ENDS.get(job.kind, "done")}
        if "cancelled" in wishes:
            wanted = {"cancelled"}
        elif None in wishes or "requested" in wishes:
            wanted.add("cancelled")
        if job.state not in wanted:
            yield f"I3 job {job.id} ({job.kind} {job.label}) is {job.state}, should be {' or '.join(sorted(wanted))}"


def cancelling_finds_its_job(evidence: Evidence) -> Iterator[str]:
    """I3, I24: only acknowledged jobs are cancelled here."""
    for job, answers in evidence.cancellings.items():
        if "unknown" in answers:
            yield f"I3 job {job} was acknowledged, and unknown to the store when somebody wanted to cancel it"


RULES: list[Rule] = [
    acknowledged_is_stored,
    refused_left_nothing,
    one_job_for_each_label,
    all_or_nothing,
    a_key_names_one_job,
    every_job_ends_as_it_must,
    cancelling_finds_its_job,
]
