"""The imports scenario: one import of a provider's table, by shards, under all faults, until it is complete.

The provider's own table is the oracle: every row that it had when the run began and still has is in the sink at the
end, not older than it was then, inserted once and counted once; and there are no other rows.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace
from tests.simulation.campaign.faulty_sink import FaultySink
from tests.simulation.campaign.import_judge import TableJudge
from tests.simulation.campaign.import_operator import Operator
from tests.simulation.campaign.import_settings import Terms, draw_world
from tests.simulation.campaign.sabotage import replaced
from tests.simulation.campaign.scenario_jobs import BACKOFF
from tests.simulation.campaign.sink_oracles import Place, Shelf
from tests.simulation.campaign.source_api import UNKNOWN_COUNTRY, Api, Cable

from leaseway.domain.ids import SECOND_US
from leaseway.imports.domain.run_state import RunMode, RunState, ShardState
from leaseway.imports.run import import_shard, shard_jobs
from leaseway.imports.run.assembly import ImportParts, make_shard_task
from leaseway.imports.run.plan import Plan, build_plan
from leaseway.imports.run.watermark import RunHistory
from leaseway.imports.sinks.port import Sink
from leaseway.imports.sources.http_json import JsonSource
from leaseway.imports.sources.port import SourceProbe
from leaseway.simulation.process import HERE
from leaseway.simulation.scenario import LOOK_SECONDS, Load, Scenario, SimulationReport, run_load
from leaseway.simulation.swarm import FaultRates
from leaseway.simulation.world import SimulatedWorld
from leaseway.stores.sqlite.database import statements
from leaseway.testing.fake_open_charge_map import API_KEY
from leaseway.worker import provider_http
from leaseway.worker.provider_http import HttpEnvironment
from leaseway.worker.run_handler import HandlerRunner

LATER_US = 2 * 365 * 86_400 * SECOND_US
"""Worlds begin after the last change of the table."""
READ_SECONDS = 1.0
RAGE_SECONDS = 8.0
"""The faults end when the run is complete, or after this time."""
ROUNDS_MAX = 8
"""How many times the operator resumes, in the calm phase, before the run must be complete."""

NO_HISTORY = RunHistory()


class Import(Scenario):
    """One simulated world."""

    def __init__(self, universe: SimulatedWorld, load: Load, terms: Terms) -> None:
        self._terms = terms
        spec = terms.spec
        self.operator = Operator(universe, None if spec.budget is None else spec.budget.requests_max)
        source = self._source = JsonSource(spec, {"OCM_API_KEY": API_KEY})
        limit = None if source.limit is None else source.limit.definition
        columns = {name: column.type for name, column in spec.resource.columns.items()}
        self.shelf = Shelf(universe, columns, terms.sink_faults)
        if not universe.is_faulty:
            self.shelf.faults = FaultRates()
        self.api = Api(universe, terms.manners, terms.pois, limit)
        sink = cast(Sink, FaultySink(self.shelf))
        self.operator.take(ImportParts(Path("simulated.toml"), spec, source, sink, make_shard_task(spec, source, sink)))
        super().__init__(universe, replace(load, kinds=self.operator.host.kinds))
        self._table = TableJudge(universe, self.api, self.shelf, self.operator)
        universe.judge.meter = self._table

    def _plan(self, history: RunHistory = NO_HISTORY, mode: RunMode | None = None) -> Plan:
        spec, table = self._terms.spec, self.api.fake.table
        countries = [str(each) for each in spec.resource.filters["country"].values or []]
        probe = SourceProbe(id_max=table.id_max, server_time=self.api.now_us(), values={"country": countries})
        source = self._source
        return build_plan(spec, source.caps, probe, source.limit, source.page_limit, **history._asdict(), wanted=mode)

    async def _story(self) -> None:
        swarm = self._universe.swarm
        self._do(self.operator.begin(self._plan(), swarm.workers * swarm.concurrency))
        for _ in range(self._universe.swarm.workers):
            self._fleet.start()
        await self._rage()
        await self._complete()
        if self._terms.comes_again is not None and self.operator.state is RunState.COMPLETE:
            await self._come_again(self._terms.comes_again)
        await self._leave(None)
        self._conclude()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """The operator does one thing at a time."""
        self.operator.is_busy = True
        self._universe.start(self.operator.process, work)

    # -- the phases -------------------------------------------------------------------------------------------------

    async def _rage(self) -> None:
        if not self._universe.is_faulty:
            return
        async with asyncio.TaskGroup() as group:
            evils = [group.create_task(evil) for evil in (self._nemesis().rage(), self.api.rage(), self._interfere())]
            for _ in range(int(RAGE_SECONDS / LOOK_SECONDS)):
                await asyncio.sleep(LOOK_SECONDS)
                if self._is_quiet() and self._is_complete():
                    break
            for evil in evils:
                evil.cancel()
        self._universe.calm()
        self.api.calm()
        self.shelf.faults = FaultRates(latency_seconds=self.shelf.faults.latency_seconds)

    async def _interfere(self) -> None:
        """The operator resumes a run that is still active, or corrects the API key first, if that stopped the run."""
        every, chance = self._terms.resume_every, self._universe.streams.of("resume")
        while every:  # until cancelled
            await asyncio.sleep(chance.expovariate(1 / every))
            if not self.operator.is_busy:
                self.api.mend_key()
                self._do(self.operator.resume())

    async def _complete(self) -> None:
        """Liveness: without faults, a few calls of the operator complete the run."""
        for number in range(ROUNDS_MAX):
            await self._until_quiet()
            self._do(self.operator.look())
            await self._until_quiet()
            if self._is_over_well():
                return
            if number:
                self._universe.books.reach("a run was resumed more than once")
            self._do(self.operator.resume(raises_budget=number > 0))
        self._accuse(f"I3 after {ROUNDS_MAX} times resume the run is {self.operator.state}: {self._unfinished()}")

    async def _come_again(self, mode: RunMode) -> None:
        """Incremental: rows that were missed have a newer timestamp. Full: rows that are gone are marked as deleted,
        and no others, whatever happens meanwhile.
        """
        await asyncio.sleep(self._terms.manners.lag_seconds + LOOK_SECONDS)
        swarm = self._universe.swarm
        self.api.begin_again()
        self._do(self.operator.begin_again(self._plan, mode, swarm.workers * swarm.concurrency))
        self._universe.books.reach(f"a second run was {mode}")
        if mode is RunMode.FULL:
            self._arouse()
            await self._rage()
        await self._complete()
        if mode is RunMode.FULL:
            # Requests that were impossible during the faults are repeated now.
            self._do(self.operator.resume())
            await self._complete()

    def _arouse(self) -> None:
        if self._universe.is_faulty:
            self._universe.faults = self._universe.swarm.faults
            self.api.manners, self.shelf.faults = self._terms.manners, self._terms.sink_faults

    async def _until_quiet(self) -> None:
        began = self._universe.loop.time()
        while not self._is_quiet():
            await asyncio.sleep(LOOK_SECONDS)
            if self._universe.loop.time() - began > self._load.calm_seconds_max:
                self._accuse(f"I3 the run does not come to rest: {self._unfinished()}")
                await asyncio.sleep(LOOK_SECONDS)

    def _is_quiet(self) -> bool:
        return not self.operator.is_busy and all(row.is_final for row in self._rows())

    def _is_complete(self) -> bool:
        shards = self.shelf.contents.shards.values()
        return bool(shards) and all(place.state in ENDED for place in shards)

    def _is_over_well(self) -> bool:
        if self.operator.state is RunState.COMPLETE:
            return True
        # A country that the source does not know stays parked, and the run reports it.
        open_ones = [place for place in self.shelf.contents.shards.values() if place.state not in ENDED]
        return self.operator.state is RunState.PARTIAL and all(is_hopeless(place) for place in open_ones)

    def _unfinished(self) -> list[str]:
        places = self.shelf.contents.shards.items()
        return [f"{key} {place.state} at {place.cursor}" for (_, key), place in places if place.state not in ENDED][:5]

    def _conclude(self) -> None:
        super()._conclude()
        self._table.conclude()

    def _accuse(self, wrong: str) -> None:
        self._universe.judge.accuse([wrong])


ENDED = (ShardState.DONE, ShardState.SPLIT)


def is_hopeless(place: Place) -> bool:
    return place.state == ShardState.PARKED and str(UNKNOWN_COUNTRY) in place.predicate


def run_imports(
    seed: int,
    *,
    sql: Mapping[str, str] | None = None,
    write: Callable[[str], object] | None = None,
    faults: bool = True,
) -> SimulationReport:
    """Run the imports scenario. `sql` replaces the store's statements; `write` receives the trace, line by line."""
    terms, swarm = draw_world(seed)
    load = Load(kinds={}, plan=[], queues=("imports:ocm",), later_us=LATER_US, calm_seconds_max=300.0)
    with in_virtual_time() as stage:
        return run_load(
            seed,
            swarm,
            load,
            sql=statements() if sql is None else sql,
            is_faulty=faults,
            write=write,
            story=lambda universe, load: stage.set(Import(universe, load, terms)),
        )


class Stage:
    """The world that is being simulated."""

    def __init__(self) -> None:
        self._world: Import | None = None

    def set(self, world: Import) -> Import:
        self._world = world
        return world

    def http(self, runner: HandlerRunner) -> HttpEnvironment:
        assert self._world is not None
        ports = runner._environment
        return HttpEnvironment(Cable(self._world.api), ports.clock, ports.chance)


@contextmanager
def in_virtual_time() -> Iterator[Stage]:
    """Replaces the machine's clock, network and delays by those of the simulated world."""
    stage = Stage()
    with ExitStack() as stack:
        for owner, name, value in (
            (HandlerRunner, "_shared_http", lambda runner: stage.http(runner)),
            (shard_jobs, "SystemClock", lambda: HERE.get().clock),
            (shard_jobs, "BACKOFF", BACKOFF),
            (provider_http, "READ_SECONDS", READ_SECONDS),
            (import_shard, "IDLE_CHECK_SECONDS", 0.1),
            (import_shard, "PAGES_SHARED_MIN", 2),
        ):
            stack.enter_context(replaced(owner, name, value))
        yield stage
