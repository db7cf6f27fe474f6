"""The jobs scenario: jobs, clients and schedules that depend on every promise of the store and the worker."""

from collections.abc import Callable, Mapping

from tests.simulation.campaign.scenario_jobs import KINDS
from tests.simulation.campaign.submissions import QUEUES, draw_plan

from leaseway.domain.schedule import Missed, Schedule
from leaseway.simulation.scenario import Load, SimulationReport, run_load
from leaseway.simulation.swarm import Streams, draw
from leaseway.stores.sqlite.database import statements

CRON = "42,45,48,51,54,57 6 * * * *"
"""Six fields, seconds first. A run begins at six minutes and forty seconds past an hour."""


def run_seed(
    seed: int, *, sql: Mapping[str, str] | None = None, write: Callable[[str], object] | None = None
) -> SimulationReport:
    """Run the jobs scenario. `sql` replaces the store's statements; `write` receives the trace, line by line."""
    swarm = draw(seed)
    chance = Streams(seed).of("plan")
    ticking = Schedule(name="ticking", kind="tick", cron=CRON, missed=chance.choice(tuple(Missed)))
    load = Load(kinds=KINDS, plan=draw_plan(chance, swarm), queues=QUEUES, schedules=(ticking,))
    return run_load(seed, swarm, load, sql=statements() if sql is None else sql, write=write)
