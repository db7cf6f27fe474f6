"""Simulated against real imports: the durations agree, because both run the same workers, limits and page loop.

A busy machine makes the real import slower than its limit, which no simulation knows: run it on an idle one.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from leaseway.app import App
from leaseway.capacity import ProviderModel, SimulatedRun
from leaseway.capacity.simulate import SimulationSettings, simulate_import
from leaseway.demo.fleet import CONCURRENCY, DemoProvider, worker_command, worker_environ
from leaseway.demo.spec import API_KEY, KEY_VARIABLE, Files, write_spec
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.plan import Plan, plan_with_history
from leaseway.imports.run.shard_jobs import register_jobs
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us

LIMIT = 40
LATENCY_SECONDS = 0.01
"""Of the provider on the same machine."""


class RealRun(NamedTuple):
    plan: Plan
    requests: int
    seconds: float


def compare(workers: int, rows: int) -> tuple[RealRun, SimulatedRun]:
    """The demo's import, for real and simulated."""
    with TemporaryDirectory(prefix="leaseway-bench-") as folder:
        files = Files(Path(folder))
        with DemoProvider(files) as provider:
            provider.start(rows, LIMIT, is_real=False)
            write_spec(files, provider.url, LIMIT, rows)
            parts = load_import(files.spec, {KEY_VARIABLE: API_KEY})
            real = asyncio.run(import_for_real(parts, files, workers))
        model = ProviderModel(seconds=LATENCY_SECONDS)
        settings = SimulationSettings(workers=(workers,), concurrency=CONCURRENCY, provider=model)
        (run,) = simulate_import(parts, real.plan, settings, rows=rows).runs
    return real, run


async def import_for_real(parts: ImportParts, files: Files, workers: int) -> RealRun:
    """The time from the first shard's start to the end of the last one: starting processes is not simulated."""
    app = App(files.store_url)
    await parts.sink.open()
    try:
        plan = await plan_with_history(parts)
        jobs = register_jobs(app, parts)
        await start_planned(parts, jobs, "real", plan, wall_clock_us(), concurrency=workers * CONCURRENCY)
        command, environ = worker_command(files, "until-empty"), worker_environ(files)
        processes = [await asyncio.create_subprocess_exec(*command, env=environ) for _ in range(workers)]
        await asyncio.gather(*(process.wait() for process in processes))
        shards = await parts.sink.shards.find_all("real")
    finally:
        await parts.sink.close()
        await app.close()
    began = min(row.started_at for row in shards if row.started_at is not None)
    ended = max(row.finished_at for row in shards if row.finished_at is not None)
    return RealRun(plan, sum(row.requests for row in shards), (ended - began) / 1_000_000)
