"""Your own jobs in virtual time, under the same faults and the same oracles as leaseway's own campaigns."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.errors import UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import JobRecord, job_record
from leaseway.domain.kind import Kind
from leaseway.simulation.clients import Intent
from leaseway.simulation.promises import SharedDatabase
from leaseway.simulation.scenario import Load, SimulationReport, run_load
from leaseway.simulation.swarm import LEASE_SECONDS, Streams, draw
from leaseway.simulation.world import START_US
from leaseway.stores.sqlite.database import statements
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.virtual_time.loop import run_now
from leaseway.worker.submit import Bound, require_bound, require_many

SUBMIT_SECONDS = 3.0
CALM_SECONDS_MAX = 3_600.0
"""In virtual time: a handler may fail often and wait long in between."""


class HasKinds(Protocol):
    @property
    def kinds(self) -> Mapping[str, Kind]: ...


class Simulated(Struct, frozen=True):
    report: SimulationReport
    jobs: tuple[JobRecord, ...]
    """Every job in its final state, children included, in the order of submission."""


def simulate(
    app: HasKinds,
    jobs: Iterable[Bound],
    *,
    seed: int = 0,
    faults: bool = True,
    write: Callable[[str], object] | None = None,
) -> Simulated:
    """Run jobs of an app to their end, with several workers that crash, pause and lose replies.

    The same seed gives the same history. Time is virtual: `asyncio.sleep` costs nothing, and leases last two seconds,
    so that faults outlast them. Handlers must be async and must not wait for anything outside the simulation.
    `report.violations` lists the promises of leaseway that were broken. Whether the effects of your own handlers are
    right after all these interruptions is for you to check.
    """
    kinds = {name: shortened(kind) for name, kind in app.kinds.items()}
    swarm = replace(draw(seed), clients=1, cancel=0.0, replay_every=0.0)
    chance = Streams(seed).of("plan")
    plan = [
        Intent(chance.uniform(0, SUBMIT_SECONDS), 0, [of_app(job, kinds)], [f"job {number}"])
        for number, job in enumerate(require_many(jobs, "bound jobs"))
    ]
    load = Load(kinds=kinds, plan=plan, queues=used_queues(plan, kinds), calm_seconds_max=CALM_SECONDS_MAX)
    found: list[JobRecord] = []

    def look(database: SharedDatabase) -> None:
        found.extend(read(database))

    report = run_load(seed, swarm, load, sql=statements(), is_faulty=faults, write=write, look=look)
    return Simulated(report, tuple(found))


def of_app(job: Bound, kinds: Mapping[str, Kind]) -> Bound:
    name = require_bound(job).kind.name
    if name not in kinds:
        raise UsageError(f"{name} is a job of another app; give that app to simulate")
    return replace(job, kind=kinds[name])


def shortened(kind: Kind) -> Kind:
    if not kind.is_async:
        raise UsageError(f"job {kind.name}: is a plain function, and threads have no virtual time; make it async")
    return Kind(kind.name, kind.function, replace(kind.defaults, lease_us=int(LEASE_SECONDS * SECOND_US)))


def used_queues(plan: list[Intent], kinds: Mapping[str, Kind]) -> tuple[str, ...]:
    named = {job.options.queue for intent in plan for job in intent.jobs if job.options.queue}
    return tuple(sorted(named | {kind.defaults.queue for kind in kinds.values()}))


def read(database: SharedDatabase) -> list[JobRecord]:
    store = SqliteStore(database.path, lambda: START_US, inline=True, connection=database)
    found = run_now(store.reads.jobs(JobFilter(), limit=1_000))
    return [job_record(job) for job in found[::-1]]
