"""Autoscaling rules on the same modelled pool, in virtual time: the speed of the machine does not matter.

The peers follow their documented rules with their defaults where they have them: backlog per worker as KEDA's scalers
are usually set up, queue time as Judoscale, and reserved jobs as Celery's autoscaler.
"""

import math
from collections.abc import Callable, Sequence

from benchmarks.harness import AT_LEAST, AT_MOST, Figure, Measured, Target, median, say
from benchmarks.reality import compare
from benchmarks.results import versions
from leaseway.domain.scaling.demand import PoolObservation, ScalingSettings
from leaseway.scaling.plant import Controller, Plant, PlantReport, PlantSpec, Steps, law

WORKERS_MAX = 50
SETTINGS = ScalingSettings(workers_min=1, workers_max=WORKERS_MAX)
BURST: Steps = ((0.0, 1.0), (600.0, 5.0), (1_800.0, 1.0))
SEEDS = 5
JOBS_PER_WORKER = 5
"""KEDA's examples and its default for many queues."""
QUEUE_UP_SECONDS, QUEUE_DOWN_SECONDS = 5.0, 1.0
QUEUE_STEP_SECONDS, QUEUE_CALM_SECONDS = 60.0, 600.0
"""Judoscale adds one worker at a time, and removes one after ten calm minutes."""
ROWS, ROWS_QUICK = 4_000, 1_000
"""Of the import that is compared with its simulation."""
KEEPALIVE_SECONDS = 30.0
"""Celery does not shrink within this time of a step up."""


def bounded(workers: int) -> int:
    return min(max(workers, 1), WORKERS_MAX)


def backlog_per_worker() -> Controller:
    return lambda seen, _: (bounded(math.ceil(seen.ready / JOBS_PER_WORKER)), "")


def queue_time() -> Controller:
    up_at, busy_at = -math.inf, 0.0

    def decide(seen: PoolObservation, oldest_seconds: float) -> tuple[int, str]:
        nonlocal up_at, busy_at
        busy_at = seen.at if oldest_seconds > QUEUE_DOWN_SECONDS else busy_at
        if oldest_seconds > QUEUE_UP_SECONDS and seen.at - up_at >= QUEUE_STEP_SECONDS:
            up_at = seen.at
            return bounded(seen.workers + 1), ""
        if seen.at - busy_at >= QUEUE_CALM_SECONDS:
            busy_at = seen.at
            return bounded(seen.workers - 1), ""
        return seen.workers, ""

    return decide


def reserved_jobs() -> Controller:
    up_at = -math.inf

    def decide(seen: PoolObservation, oldest_seconds: float) -> tuple[int, str]:
        nonlocal up_at
        wanted = bounded(math.ceil((seen.ready + seen.running) / seen.slots_per_worker))
        if wanted > seen.workers:
            up_at = seen.at
            return wanted, ""
        return (wanted if seen.at - up_at > KEEPALIVE_SECONDS else seen.workers), ""

    return decide


PEERS: dict[str, tuple[Callable[[], Controller], float]] = {
    "backlog per worker": (backlog_per_worker, 15.0),
    "queue time": (queue_time, 10.0),
    "Celery's rule": (reserved_jobs, 1.0),
}
"""With the seconds between two decisions."""


def describe(report: PlantReport) -> str:
    return (
        f"{report.workers_max} workers at most, {report.worker_hours:.1f} worker hours, p95 {report.wait(0.95):.1f} s, "
        f"{report.changes} changes, {report.done:,} done"
    )


def scale_limit(quick: bool, repeats: int | None) -> list[Figure]:
    """An hour behind a limit of 1/s with 3,600 jobs waiting."""
    behind = PlantSpec(load=((0.0, 0.0),), limit=((0.0, 1.0),), backlog=3_600)
    ours, fixed = Plant(behind).run(law(SETTINGS)), Plant(behind).run(lambda seen, _: (WORKERS_MAX, ""))
    peers = {name: Plant(behind).run(rule()) for name, (rule, _) in PEERS.items()}
    note = "; ".join(f"{name}: {describe(report)}" for name, report in {"leaseway": ours, **peers}.items())
    what = "workers behind a limit of 1/s, 3,600 jobs waiting"
    return [
        Figure(what, ours.workers_max, "workers", Target(AT_MOST, 2), note),
        Figure("the same: throughput of a fixed 50", ours.done / fixed.done, "×", Target(AT_LEAST, 0.98)),
    ]


def scale_burst(quick: bool, repeats: int | None) -> list[Figure]:
    """1 → 5 jobs per second for twenty minutes, 2 s each, 4 slots, 30 s to start a worker, no limit."""
    seeds = range(1 if quick else repeats or SEEDS)
    ours = [Plant(PlantSpec(load=BURST, seed=seed)).run(law(SETTINGS)) for seed in seeds]
    figures = [Figure("burst 1 → 5 jobs/s: changes", median([each.changes for each in ours]), "per hour",
                      Target(AT_MOST, 20), describe(ours[0]))]  # fmt: skip
    for name, (rule, period) in PEERS.items():
        theirs = [Plant(PlantSpec(load=BURST, seed=seed, period_seconds=period)).run(rule()) for seed in seeds]
        waits = [mine.wait(0.95) / its.wait(0.95) for mine, its in zip(ours, theirs, strict=True)]
        hours = [mine.worker_hours / its.worker_hours for mine, its in zip(ours, theirs, strict=True)]
        figures += [
            Figure(f"burst: p95 wait against {name}", median(waits), "×", Target(AT_MOST, 1 / 3), describe(theirs[0])),
            Figure(f"burst: worker hours against {name}", median(hours), "×", Target(AT_MOST, 1.5)),
        ]
    return figures


def scale_reality(quick: bool, repeats: int | None) -> list[Figure]:
    """The demo's import under a limit with 1, 2 and 4 workers: what `leaseway simulate` says, and what it takes."""
    figures = []
    for workers in (1,) if quick else (1, 2, 4):
        real, simulated = compare(workers, ROWS_QUICK if quick else ROWS)
        note = (
            f"{real.seconds:.1f} s and {real.requests:,} requests; simulated {simulated.seconds:.1f} s and "
            f"{simulated.requests:,}"
        )
        off, missed = abs(simulated.seconds / real.seconds - 1), abs(simulated.requests / real.requests - 1)
        what = f"simulated import against a real one, {workers} workers"
        figures.append(Figure(f"{what}: duration off by", off * 100, "%", Target(AT_MOST, 10), note))
        figures.append(Figure(f"{what}: requests off by", missed * 100, "%", Target(AT_MOST, 10)))
    return figures


CASES: dict[str, Callable[[bool, int | None], list[Figure]]] = {
    "scale_limit": scale_limit,
    "scale_burst": scale_burst,
    "scale_reality": scale_reality,
}


def run(names: Sequence[str], quick: bool, repeats: int | None) -> Measured:
    figures: list[Figure] = []
    for name in names:
        say(name)
        figures += CASES[name](quick, repeats)
    return Measured(figures, versions("msgspec"))
