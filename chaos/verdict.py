"""The checker: all rules over all evidence, and a report."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from chaos.evidence import Evidence
from chaos.rules import Rule, books, leases, liveness, results, submissions

RULES: list[Rule] = [*submissions.RULES, *results.RULES, *leases.RULES, *books.RULES, *liveness.RULES]
SHOWN_MAX = 10
"""Violations of one rule that are shown; a missing safeguard breaks it hundreds of times."""
LASTING_SECONDS = 10.0
"""A fault that lasted longer is reported separately, with the time to recover from it."""


class Lasting(NamedTuple):
    fault: str
    seconds: float
    returned: float
    """The slowest recovery after it, in seconds."""


class Verdict(NamedTuple):
    violations: dict[str, list[str]]
    """By rule."""
    recovered: dict[str, float]
    """The slowest recovery after each kind of fault, in seconds."""
    lasting: list[Lasting]
    reached: dict[str, int]
    """How often the campaign reached each critical situation; a zero means that it proved nothing about it."""

    @property
    def is_good(self) -> bool:
        return not self.violations


def judged(evidence: Evidence) -> Verdict:
    found = {rule.__name__: list(rule(evidence)) for rule in RULES}
    violations = {rule: each for rule, each in found.items() if each}
    slowest: dict[str, float] = defaultdict(float)
    returned: dict[int, float] = defaultdict(float)
    for fault, _, seconds in liveness.recoveries(evidence):
        slowest[fault.fault] = max(slowest[fault.fault], seconds)
        returned[fault.number] = max(returned[fault.number], seconds)
    lasting = [
        Lasting(fault.fault, fault.ended - fault.began, returned[fault.number])
        for fault in liveness.ended(evidence)
        if fault.number in returned and fault.ended - fault.began > LASTING_SECONDS
    ]
    return Verdict(violations, dict(slowest), lasting, reached(evidence))


def reached(evidence: Evidence) -> dict[str, int]:
    calls = list(evidence.calls.values())
    settlements = [each for some in evidence.settlements.values() for each in some]
    runs = [run for some in evidence.runs.values() for run in some]
    return {
        "submissions acknowledged": sum(call.acknowledged is not None for call in calls),
        "submissions refused": sum(call.refused is not None for call in calls),
        "submissions unknown": sum(call.unknown is not None for call in calls),
        "submissions without an answer": sum(
            call.acknowledged is None and call.refused is None and call.unknown is None for call in calls
        ),
        "jobs stored": len(evidence.stored.jobs),
        "leases granted": sum(len(grants) for grants in evidence.grants.values()),
        "handlers run": len(runs),
        "handlers stopped": sum(run.how == "stopped" for run in runs),
        "handlers run again": sum(len(some) > 1 for some in evidence.runs.values()),
        "exchanges repeated": evidence.repeats,
        "settlements refused": sum(not each.said.is_accepted for each in settlements),
        "cursors kept": sum(bool(each.is_kept) for some in evidence.checkpoints.values() for each in some),
        "runs resumed at a cursor": sum(run.cursor > 0 for run in runs),
        "store unavailable": evidence.heard["store_unavailable"],
    }


def page(verdict: Verdict) -> Iterator[str]:
    yield "reached: " + ", ".join(f"{what} {count:,}" for what, count in verdict.reached.items())
    yield "slowest return after each fault: " + ", ".join(
        f"{fault} {shown(seconds)}" for fault, seconds in sorted(verdict.recovered.items())
    )
    for fault, seconds, returned in verdict.lasting:
        yield f"after {seconds:.1f} s of {fault} everything was back in: {shown(returned)}"
    for rule, violations in verdict.violations.items():
        yield f"VIOLATED {rule}: {len(violations)}"
        yield from (f"    {violation}" for violation in violations[:SHOWN_MAX])
    if verdict.is_good:
        yield "nothing lost, nothing doubled, nobody held what another one held, everything came back"


def shown(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.1f} s"
