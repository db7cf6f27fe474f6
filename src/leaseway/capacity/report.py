"""What the runs of a simulation took, and the knee where more workers stop helping."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

WORTH = 0.05
"""More workers help if they shorten the run by this part at least."""
BINDS = 0.85
"""A limit binds if the run used this part of what it grants, or more."""


class Spent(Struct, frozen=True):
    amount: float
    unit: str


class SimulatedRun(Struct, frozen=True, kw_only=True):
    """One load with one number of workers."""

    workers: int
    seconds: float
    """From the first submission to the end of the last job, in virtual time."""
    requests: int
    throttled: int
    """Requests that were answered with 429."""
    errors: int
    """Requests that were answered with 503."""
    done: int
    failed: int
    left: int
    """Jobs that had not ended after the longest time that is simulated."""
    costs: Mapping[str, Spent]
    """What was spent, by budget; of an import, by source."""
    wait_p50_seconds: float
    wait_p95_seconds: float
    """How long jobs waited for their first start."""
    limits_used: Mapping[str, float]
    """By limit: the part that was used of what it grants within the time of the run."""
    why_left: str = ""

    @property
    def worker_hours(self) -> float:
        return self.workers * self.seconds / 3_600


class CapacityReport(Struct, frozen=True, kw_only=True):
    """`print(report)` shows the table."""

    what: str
    runs: Sequence[SimulatedRun]
    """By number of workers, the smallest first."""

    @property
    def knee(self) -> SimulatedRun:
        """The run with the fewest workers that is within 5 % of the fastest one."""
        ended = [run for run in self.runs if not run.left] or list(self.runs)
        fastest = min(run.seconds for run in ended)
        return next(run for run in ended if run.seconds <= fastest * (1 + WORTH))

    @property
    def is_knee_known(self) -> bool:
        """Whether a run with more workers shows that they do not help."""
        return self.knee.workers < max(run.workers for run in self.runs)

    @property
    def reason(self) -> str:
        """Why more workers than at the knee do or do not help."""
        knee, workers = self.knee, count_workers(self.knee.workers)
        if knee.left:
            return knee.why_left
        if not self.is_knee_known:
            return f"{workers}: the most that were simulated; more may be faster"
        binding = [f"{name} {used:.0%}" for name, used in knee.limits_used.items() if used >= BINDS]
        why = f"they wait for a limit (used: {', '.join(binding)})" if binding else "there is not enough work at a time"
        return f"{workers}: more do not help, because {why}"

    def __str__(self) -> str:
        lines = [self.what, *table_lines(self.runs), f"knee     {self.reason}"]
        return "\n".join(lines)


def count_workers(count: int) -> str:
    return f"{count:,} worker{'' if count == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """Two units: people compare days with hours and minutes with seconds."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def costs_text(costs: Mapping[str, Spent]) -> str:
    return ", ".join(f"{spent.amount:,.2f} {spent.unit}" for _, spent in sorted(costs.items())) or "–"


def table_cells(run: SimulatedRun) -> list[str]:
    used = ", ".join(f"{name} {share:.0%}" for name, share in run.limits_used.items()) or "–"
    return [
        f"{run.workers:,}",
        duration_text(run.seconds) + (" +" if run.left else ""),
        f"{run.requests:,}",
        costs_text(run.costs),
        duration_text(run.wait_p50_seconds),
        duration_text(run.wait_p95_seconds),
        used,
    ]


TITLES = ("workers", "duration", "requests", "cost", "wait p50", "wait p95", "limits used")


def table_lines(runs: Sequence[SimulatedRun]) -> list[str]:
    rows = [list(TITLES), *(table_cells(run) for run in runs)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(TITLES))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
