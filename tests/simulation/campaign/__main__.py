"""`./dev simulate`: run campaigns, and replay single seeds.

Exit codes: 0 every promise held, 1 a promise was broken, 2 wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from tests.simulation.campaign.run import SABOTAGES, SCENARIOS, Findings, run_campaign, run_one

from leaseway.simulation.coverage import CATALOGUES

EPILOG = "Safeguards that --sabotage can remove:\n" + "\n".join(
    f"  {name:26}{sabotage.removes}" for name, sabotage in SABOTAGES.items()
)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev simulate",
        description="Run the real worker and the real SQLite store in virtual time, under faults, and judge them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", choices=SCENARIOS, help="one of them only")
    parser.add_argument("--seeds", type=count, default=200, metavar="N", help="how many seeds (default 200)")
    parser.add_argument("--first", type=number, default=0, metavar="K", help="the first of them (default 0)")
    parser.add_argument("--jobs", type=count, default=2, metavar="N", help="on how many processes (default 2)")
    parser.add_argument("--seed", type=number, metavar="K", help="replay this seed and write its trace to stderr")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="with --seed: write the trace here instead")
    parser.add_argument("--sabotage", choices=SABOTAGES, metavar="NAME", help="remove a safeguard first, see below")
    return parser


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 (is {value})")
    return value


def number(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative (is {value})")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    sabotage = SABOTAGES.get(given.sabotage)
    if sabotage is not None and given.scenario not in (None, sabotage.scenario):
        parser().error(f"--sabotage {given.sabotage} belongs to --scenario {sabotage.scenario}")
    scenario = given.scenario if sabotage is None else sabotage.scenario
    if given.seed is not None:
        return replay(given.seed, scenario or "jobs", given.sabotage, given.trace)
    if given.trace is not None:
        parser().error("--trace needs --seed: the traces of a campaign would be too long to read")
    seeds = range(given.first, given.first + given.seeds)
    codes = []
    for name in SCENARIOS if scenario is None else (scenario,):
        findings = run_campaign(
            seeds,
            scenario=name,
            sabotage=given.sabotage,
            processes=given.jobs,
            tell=partial(show_progress, given.sabotage),
        )
        print(file=sys.stderr)
        codes.append(show(findings))
    return max(codes)


def replay(seed: int, scenario: str, sabotage: str | None, trace: Path | None) -> int:
    with nullcontext(sys.stderr) if trace is None else trace.open("w") as file:
        report = run_one(seed, scenario, sabotage, file.write)
    states = ", ".join(f"{count} {state}" for state, count in report.states.items())
    print(f"seed {seed}: {report.trace_lines} steps in {report.seconds:.1f} virtual seconds; {states}")
    print(f"trace {report.trace_hash}")
    for violation in report.violations:
        print(f"violated: {violation}")
    return 0 if report.is_ok else 1


SHOWN: set[int] = set()
"""Seeds whose violations were printed."""


def show_progress(sabotage: str | None, findings: Findings) -> None:
    """Violations are shown when they are found, because a campaign may take hours or be interrupted."""
    report = findings.violations[-1] if findings.violations else None
    if report is not None and report.seed not in SHOWN:
        SHOWN.add(report.seed)
        again = f"./dev simulate --seed {report.seed}"
        again += "" if findings.scenario == "jobs" else f" --scenario {findings.scenario}"
        print(f"seed {report.seed} violated: {'; '.join(report.violations)}")
        print(f"  replay: {again}{f' --sabotage {sabotage}' if sabotage else ''}", flush=True)
    if findings.seeds % 10 == 0:
        rate = findings.seeds / findings.seconds
        line = f"\r{findings.seeds} seeds, {len(findings.violations)} violated, {rate:.1f} seeds/s"
        print(line, end="", file=sys.stderr, flush=True)


def show(findings: Findings) -> int:
    print(f"{'seeds':>7}  in which it happened that ({findings.scenario})")
    for what in CATALOGUES[findings.scenario]:
        print(f"{findings.reached[what]:7}  {what}")
    for what in findings.never:
        print(f"never reached: {what}")
    rate = findings.seeds / findings.seconds
    print(
        f"{findings.seeds} seeds, {len(findings.violations)} violated; {findings.seconds:.1f} s, {rate:.1f} seeds/s, "
        f"{findings.virtual_seconds / findings.seconds:.0f} virtual seconds per second"
    )
    return 0 if findings.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
