"""The jobs scenario with an autoscaler as one more process: it starts and drains the workers, lags, and crashes."""

import asyncio
from collections.abc import Callable, Mapping

from tests.simulation.campaign.scenario_jobs import KINDS
from tests.simulation.campaign.submissions import QUEUES, draw_plan

from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.scaling.decision import ScalingState, decide_workers
from leaseway.domain.scaling.demand import PoolObservation, ScalingSettings, WorkGroup
from leaseway.ports.reads import JobReads
from leaseway.simulation.faulty_link import FaultyStore
from leaseway.simulation.fleet import SimulatedFleet
from leaseway.simulation.process import HERE, Process
from leaseway.simulation.scenario import Load, Scenario, SimulationReport, run_load
from leaseway.simulation.swarm import Streams, draw
from leaseway.simulation.world import SimulatedWorld
from leaseway.stores.sqlite.database import statements

SETTINGS = ScalingSettings(
    workers_min=0, workers_max=5, wait_seconds=0.5, lead_seconds=2.0, step_seconds=0.0, down_window_seconds=0.5,
    idle_seconds=0.5, stale_seconds=1.0, down_step_ratio=1.0,
)  # fmt: skip
"""As nervous as it can be: a run takes twenty seconds."""
LOOK_SECONDS, LAG_SECONDS = (0.1, 0.6), (0.0, 1.0)
CRASH_SECONDS, RESTART_SECONDS = 4.0, (0.2, 1.5)


class ScaledFleet(SimulatedFleet):
    """No supervisor restarts a worker: that is for the autoscaler to decide."""

    def _replace(self, process: Process) -> None:
        if process in self.crew:
            self.crew.remove(process)


class Autoscaler:
    def __init__(self, universe: SimulatedWorld, fleet: ScaledFleet, slots: int) -> None:
        self._universe, self._fleet, self._slots = universe, fleet, slots
        self._chance = universe.streams.of("autoscaler")
        self._reach = universe.books.reach
        self._drained: set[str] = set()
        self._started = 0

    def start(self) -> None:
        """A new process knows nothing of what the last one decided."""
        self._started += 1
        process = self._universe.process(f"autoscaler-{self._started}")
        process.main = self._universe.start(process, self._run(process))
        self._universe.loop.call_later(self._chance.expovariate(1 / CRASH_SECONDS), self._crash, process)

    def _crash(self, process: Process) -> None:
        if not self._universe.is_calm:
            self._reach("an autoscaler crashed")
            process.crash()
            self._universe.loop.call_later(self._chance.uniform(*RESTART_SECONDS), self.start)

    async def _run(self, process: Process) -> None:
        HERE.set(process)
        store, state = FaultyStore(self._universe, process), ScalingState()
        await store.open()
        while True:  # until the world ends
            await asyncio.sleep(self._chance.uniform(*LOOK_SECONDS))
            try:
                seen = await self._observe(store.reads)
            except LeasewayError:
                continue  # it holds
            decision = decide_workers(seen, state, SETTINGS)
            state = decision.state
            await asyncio.sleep(self._chance.uniform(*LAG_SECONDS))  # the world moves on before it acts
            self._universe.loop.call_soon(self._resize, decision.workers)

    async def _observe(self, reads: JobReads) -> PoolObservation:
        now, lanes = await reads.now(), await reads.lanes()
        return PoolObservation(
            at=now / SECOND_US,
            groups=[WorkGroup(ready=lane.ready, running=lane.leased, service_seconds=1.0) for lane in lanes],
            scheduled=sum(lane.scheduled for lane in lanes),
            slots_per_worker=self._slots,
            workers=len(self._active()),
        )

    def _active(self) -> list[Process]:
        return [process for process in self._fleet.crew if process.is_up and process.name not in self._drained]

    def _resize(self, workers: int) -> None:
        active = self._active()
        for _ in range(workers - len(active)):
            if self._fleet.start() is not None:
                self._reach("an autoscaler started a worker")
        for process in active[workers:]:
            self._reach("an autoscaler drained a worker")
            self._drained.add(process.name)
            self._fleet.drain(process)


class ScaledScenario(Scenario):
    def __init__(self, universe: SimulatedWorld, load: Load) -> None:
        super().__init__(universe, load)
        fleet = ScaledFleet(universe, load.kinds, self._settings, load.schedules, self._meter)
        self._fleet = fleet
        self._autoscaler = Autoscaler(universe, fleet, self._settings.concurrency)

    async def _story(self) -> None:
        self._autoscaler.start()
        await super()._story()


def run_scaled(
    seed: int, *, sql: Mapping[str, str] | None = None, write: Callable[[str], object] | None = None
) -> SimulationReport:
    """Run the scaled scenario. `sql` replaces the store's statements; `write` receives the trace, line by line."""
    swarm = draw(seed)
    load = Load(kinds=KINDS, plan=draw_plan(Streams(seed).of("plan"), swarm), queues=QUEUES)
    return run_load(seed, swarm, load, sql=statements() if sql is None else sql, write=write, story=ScaledScenario)
