"""One run per number of workers: the real workers, in virtual time, against the modelled provider."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from leaseway.capacity.import_model import import_cost, modelled_parts
from leaseway.capacity.job_mix import JobMix, RateText, WhatIf, change_limit, check_changes
from leaseway.capacity.provider_model import URL, ModelledProvider, ProviderModel, check_number, check_provider
from leaseway.capacity.report import WORTH, CapacityReport, SimulatedRun, Spent
from leaseway.domain.budgets.budget import MICRO
from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US, Instant, JobId
from leaseway.domain.job import Submitted
from leaseway.domain.kind import Kind, declared_limits
from leaseway.domain.limits.limit import size_limit
from leaseway.domain.schedule import Schedule
from leaseway.domain.validators import check_int
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.plan import Plan
from leaseway.imports.run.shard_jobs import LEASE_SECONDS, register_jobs
from leaseway.imports.run.start import start_planned
from leaseway.imports.sinks.sqlite.sink import SqliteSink
from leaseway.imports.sources.files import FileSource
from leaseway.job_registry import JobRegistry
from leaseway.stores.memory.state import Place
from leaseway.system import SystemIds
from leaseway.telemetry.log import NoEvents
from leaseway.virtual_time.world import VirtualWorld
from leaseway.worker.context import Context
from leaseway.worker.environment import Environment, WorkerSettings
from leaseway.worker.loop import Worker
from leaseway.worker.submit import KEY_KEEP_US, Bound, submit_many

START_US: Instant = 1_767_225_600 * SECOND_US
"""1 January 2026, 00:00 UTC: simulations begin with their windows."""
WORKERS_MAX = 256
RUNS_MAX = 20
CONCURRENCY_MAX = 10_000
DAYS_MAX = 366.0
OVER_SECONDS_MAX = 86_400.0 * 30
AUTO_WORKERS = (1, 2, 4, 8, 16, 32, 64)
IMPORT_CONCURRENCY = 4
SETTLE_SECONDS = 0.25
"""Simulated jobs are never cancelled, so workers react to everything sooner than in a test."""
KEEP_US = int(2 * DAYS_MAX) * 86_400 * SECOND_US
"""Nothing is pruned, because jobs are counted at the end."""
OnRun = Callable[[int], None]
"""Called with the number of workers of the run that begins."""


class SimulationSettings(Struct, frozen=True, kw_only=True):
    """`workers`: how many workers to try; empty: 1, 2, 4 … until more do not help. `concurrency`: jobs that a worker
    runs at a time. `over_seconds`: the time over which jobs arrive; 0: all at the beginning. `days_max`: the longest
    time that is simulated. The same `seed` gives the same runs."""

    workers: Sequence[int] = ()
    concurrency: int = 20
    provider: ProviderModel = ProviderModel()
    changes: WhatIf = WhatIf()
    over_seconds: float = 0.0
    days_max: float = 30.0
    seed: int = 0


def make_settings(
    workers: Iterable[int],
    concurrency: int,
    provider: ProviderModel | None,
    limits: Mapping[str, RateText] | None,
    budgets: Mapping[str, float | str] | None,
    over_seconds: float,
    seed: int,
) -> SimulationSettings:
    return SimulationSettings(
        workers=tuple(workers),
        concurrency=concurrency,
        provider=provider or ProviderModel(),
        changes=WhatIf(limits=limits or {}, budgets=budgets or {}),
        over_seconds=over_seconds,
        seed=seed,
    )


def check_settings(settings: SimulationSettings) -> SimulationSettings:
    for count in settings.workers:
        check_int("workers", count, 1, WORKERS_MAX)
    if len(settings.workers) > RUNS_MAX:
        raise BadValue("workers", f"must be at most {RUNS_MAX} different numbers (are {len(settings.workers)})")
    check_int("concurrency", settings.concurrency, 1, CONCURRENCY_MAX)
    check_number("over", settings.over_seconds, OVER_SECONDS_MAX)
    check_number("days_max", settings.days_max, DAYS_MAX)
    check_provider(settings.provider)
    return settings


def repeat(
    what: str, settings: SimulationSettings, run: Callable[[int], SimulatedRun], on_run: OnRun | None
) -> CapacityReport:
    """A run per number of workers. Without numbers, until twice the workers are not faster by 5 %."""
    runs: list[SimulatedRun] = []
    for count in sorted(set(settings.workers)) or AUTO_WORKERS:
        if on_run is not None:
            on_run(count)
        runs.append(run(count))
        is_auto = not settings.workers and len(runs) > 1
        if is_auto and (runs[-1].left or runs[-1].seconds > runs[-2].seconds * (1 - WORTH)):
            break
    return CapacityReport(what=what, runs=runs)


def simulate_jobs(
    kinds: Mapping[str, Kind], loads: Mapping[str, Any], settings: SimulationSettings, on_run: OnRun | None = None
) -> CapacityReport:
    """`loads`: by kind, how many jobs there are, or a `JobLoad`."""
    check_settings(settings)
    mix = JobMix(kinds, loads, settings.provider, settings.changes)
    return repeat(mix.what, settings, lambda count: run_mix(mix, settings, count), on_run)


def run_mix(mix: JobMix, settings: SimulationSettings, workers: int) -> SimulatedRun:
    with closing(MeasuredFleet(settings, workers)) as fleet:
        kinds = mix.kinds()
        for kind in kinds.values():
            kind.on_start, kind.on_end = fleet.started, fleet.ended
        jobs = mix.jobs(kinds, round(settings.over_seconds * SECOND_US))
        queues = tuple(sorted({kind.defaults.queue for kind in kinds.values()}))
        return fleet.run(kinds, queues, settings.concurrency, lambda: submit_all(fleet, jobs))


async def submit_all(fleet: "MeasuredFleet", jobs: Iterable[Bound]) -> None:
    bound = list(jobs)
    for job, submitted in zip(bound, await submit_many(fleet.environment, bound, KEY_KEEP_US), strict=True):
        fleet.ready_at[submitted.id] = job.options.delay_us / SECOND_US


def simulate_import(
    parts: ImportParts, plan: Plan, settings: SimulationSettings, rows: int | None = None, on_run: OnRun | None = None
) -> CapacityReport:
    """`rows`: how many rows there are, if the source does not say or others are to be assumed."""
    check_settings(settings)
    limit = parts.source.limit
    check_changes(settings.changes, set() if limit is None else {limit.name}, set())
    changed = None if limit is None else change_limit(limit, settings.changes.limits.get(limit.name))

    def run(workers: int) -> SimulatedRun:
        with (
            TemporaryDirectory(prefix="leaseway-simulate-") as folder,
            closing(MeasuredFleet(settings, workers)) as fleet,
        ):
            sink = temporary_sink(parts, Path(folder), fleet.world.now_us)
            modelled = modelled_parts(parts, plan, rows, sink, changed)
            return run_import(fleet, modelled, plan, settings.concurrency)

    return repeat(parts.spec.source.name, settings, run, on_run)


def temporary_sink(parts: ImportParts, folder: Path, now_us: Callable[[], Instant]) -> SqliteSink:
    """Modelled rows have no columns; those of a file have the columns of the spec."""
    is_real = isinstance(parts.source, FileSource)
    columns = {name: column.type for name, column in parts.spec.resource.columns.items()} if is_real else {}
    return SqliteSink(str(folder / "rows.db"), "simulated", columns, now_us, inline=True)


def run_import(fleet: "MeasuredFleet", parts: ImportParts, plan: Plan, concurrency: int) -> SimulatedRun:
    host = SimulationHost(fleet)
    with host.using(fleet.environment):
        jobs = register_jobs(host, parts, LEASE_SECONDS, fleet.world)
        for kind in host.kinds.values():
            kind.function = fleet.watched(kind.function)

        async def start() -> None:
            await parts.sink.open()
            shards = fleet.workers * concurrency
            await start_planned(parts, jobs, "simulated", plan, fleet.world.now_us(), concurrency=shards)

        run = fleet.run(host.kinds, (parts.queue,), concurrency, start)
        fleet.world.run(parts.sink.close())
        return replace(run, costs=import_cost(parts, run.requests))


class SimulationHost(JobRegistry):
    """What imports need of an app."""

    def __init__(self, fleet: "MeasuredFleet") -> None:
        super().__init__("memory://", None, None, NoEvents())
        self.kinds: dict[str, Kind] = {}
        self.schedules: dict[str, Schedule] = {}
        self._fleet = fleet

    async def submit_many(self, jobs: Iterable[Bound]) -> list[Submitted]:
        submitted = await submit_many(self._fleet.environment, jobs, KEY_KEEP_US)
        self._fleet.ready_at.update({each.id: self._fleet.now() for each in submitted})
        return submitted


class MeasuredFleet:
    """Workers in one world, and what is measured of their jobs."""

    def __init__(self, settings: SimulationSettings, workers: int) -> None:
        self.workers = workers
        self.world = VirtualWorld(START_US, max(settings.days_max * 86_400, 1.0), starts_full=True)
        self.world.loop.settle_seconds = SETTLE_SECONDS
        self.provider = ModelledProvider(settings.provider, Random(settings.seed + 1))
        base = Environment(
            self.world.store, self.world.limiter, self.world.ledger, self.world, Random(), SystemIds(), NoEvents()
        )
        self.environment = self.world.environment(base, lambda: self.provider, settings.seed)
        self.ready_at: dict[JobId, float] = {}
        self._waits: dict[JobId, float] = {}
        self._ended_at = 0.0

    def now(self) -> float:
        return self.world.monotonic()

    def close(self) -> None:
        self.world.close()

    # -- measuring ----------------------------------------------------------------------------------------------------

    def started(self, ctx: Context) -> None:
        self._waits.setdefault(ctx.id, self.now() - self.ready_at.get(ctx.id, 0.0))

    def ended(self) -> None:
        self._ended_at = self.now()

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(ctx: Context, **arguments: Any) -> Any:
            self.started(ctx)
            try:
                return await function(ctx, **arguments)
            finally:
                self.ended()

        return run

    # -- running ------------------------------------------------------------------------------------------------------

    def run(
        self, kinds: Mapping[str, Kind], queues: tuple[str, ...], concurrency: int, start: Callable[[], Any]
    ) -> SimulatedRun:
        why_left = ""
        settings = WorkerSettings(queues=queues, concurrency=concurrency, until_empty=True, keep_us=KEEP_US)
        try:
            self.world.run(self._work(kinds, settings, start))
        except TimeoutError as error:
            why_left = str(error)
        return self._measure(kinds, why_left)

    async def _work(self, kinds: Mapping[str, Kind], settings: WorkerSettings, start: Callable[[], Any]) -> None:
        await start()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(Worker(self.environment, kinds, settings).run())

    def _measure(self, kinds: Mapping[str, Kind], why_left: str) -> SimulatedRun:
        lanes = self.world.run(self.world.store.reads.lanes())
        waits = sorted(self._waits.values()) or [0.0]
        seconds = self.now() if why_left else self._ended_at
        left = sum(1 for _ in self.world.store.state.at(Place.READY, Place.SCHEDULED, Place.LEASED))
        return SimulatedRun(
            workers=self.workers,
            seconds=seconds,
            requests=self.provider.requests,
            throttled=self.provider.throttled,
            errors=self.provider.errors,
            done=sum(lane.done for lane in lanes),
            failed=sum(lane.failed for lane in lanes),
            left=left,
            costs=self._costs(),
            wait_p50_seconds=waits[len(waits) // 2],
            wait_p95_seconds=waits[min(int(len(waits) * 0.95), len(waits) - 1)],
            limits_used=self._limits_used(kinds, seconds),
            why_left=why_left,
        )

    def _costs(self) -> dict[str, Spent]:
        spent = Counter[tuple[str, str]]()
        for window in self.world.run(self.world.ledger.reads.balances(since=START_US)):
            spent[window.budget, window.unit] += window.balance.spent_micros
        return {name: Spent(micros / MICRO, unit) for (name, unit), micros in spent.items()}

    def _limits_used(self, kinds: Mapping[str, Kind], seconds: float) -> dict[str, float]:
        """Of the window that is used most. A name with fields stands for many limits, which are not told apart."""
        definitions = [each for each in declared_limits(kinds.values()) if "{" not in each.name and each.rates]
        granted = {
            each.name: min(bucket.burst + seconds * 1e9 / bucket.permit_ns for bucket in size_limit(each).windows)
            for each in definitions
        }
        used = self._permits(kinds)
        return {name: used[name] / most for name, most in granted.items()}

    def _permits(self, kinds: Mapping[str, Kind]) -> Counter[str]:
        """By limit. The jobs of an import send their requests to one URL and share one limit."""
        used = Counter[str]()
        for kind in kinds.values():
            for use in kind.requirements.uses:
                used[use.limit.name] += use.cost * self.provider.by_url[f"{URL}{kind.name}"]
        for kind in kinds.values():
            for use in kind.requirements.uses:
                used[use.limit.name] = used[use.limit.name] or self.provider.by_url[URL]
        return used
