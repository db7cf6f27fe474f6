"""The operator of an import: starts it, checks how it ended, corrects what was wrong, and resumes it until it is
complete.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial, wraps
from typing import Any, TypeVar

from tests.simulation.campaign.scenario_jobs import attempt
from tests.simulation.campaign.source_api import ATTEMPT

from leaseway.app import App
from leaseway.domain.errors import TransientError
from leaseway.domain.job import Submitted
from leaseway.domain.redact import Redactor
from leaseway.imports.domain.run_state import RunMode, RunState
from leaseway.imports.run.assembly import ImportParts
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import Plan, load_history
from leaseway.imports.run.shard_jobs import ImportJobs, register_jobs, submit_open_shards
from leaseway.imports.run.start import start_planned
from leaseway.imports.run.watermark import RunHistory
from leaseway.simulation.faulty_link import FaultyStore
from leaseway.simulation.fleet import Silence
from leaseway.simulation.process import HERE, Process
from leaseway.simulation.swarm import LEASE_SECONDS
from leaseway.simulation.world import SimulatedWorld
from leaseway.worker.context import Context
from leaseway.worker.environment import Environment
from leaseway.worker.submit import KEY_KEEP_US, Bound, submit_many

T = TypeVar("T")

RUN, SECOND_RUN = "run", "again"
REQUESTS_ENOUGH = 10_000
PAUSE_SECONDS = 0.2


class SimHost:
    """As much of an App as imports need: its kinds are real, and its store is that of the simulated world."""

    def __init__(self, universe: SimulatedWorld, process: Process) -> None:
        self._app = App("memory://")
        self._store = FaultyStore(universe, process)
        self._world = Environment(
            store=self._store,
            limiter=universe.limiter,
            ledger=universe.ledger,
            clock=process.clock,
            chance=process.chance,
            ids=process.ids,
            events=Silence(),
        )

    @property
    def kinds(self) -> Any:
        return self._app.kinds

    @property
    def world(self) -> Environment:
        return self._world

    @property
    def redactor(self) -> Redactor:
        return self._app.redactor

    def job(self, /, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: self._app.job(**options)(watched(function))

    async def submit_many(self, jobs: Iterable[Bound]) -> list[Submitted]:
        return await submit_many(self._world, jobs, KEY_KEEP_US)

    async def store(self) -> Any:
        return self._store

    async def open(self) -> None:
        await self._store.open()


def watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tells the judge when it starts and ends, and the API which handler sends a request."""

    @wraps(function)
    async def tell(ctx: Context, **arguments: Any) -> Any:
        with attempt(ctx):
            ATTEMPT.set((ctx.id, ctx.fence))
            return await function(ctx, **arguments)

    return tell


class Operator:
    def __init__(self, universe: SimulatedWorld, requests_max: int | None) -> None:
        self.process = universe.process("operator")
        self.host = SimHost(universe, self.process)
        self._universe = universe
        self._handle: ImportJobs | None = None
        self._parts: ImportParts | None = None
        self.is_busy = False
        self.run = RUN
        self.mode: RunMode | None = None
        """Of the second run, once it has started."""
        self.requests_max = requests_max
        """The budget of the run, until the operator raises it."""
        self.state: RunState | None = None
        """The result of the last attempt to finish the run."""

    def take(self, parts: ImportParts) -> None:
        self._parts = parts
        self._handle = register_jobs(self.host, parts, LEASE_SECONDS)

    async def begin(self, plan: Plan, concurrency: int) -> None:
        HERE.set(self.process)
        self.is_busy = True
        await self.host.open()
        await self._insist(
            lambda: start_planned(*self._mine, self.run, plan, self._universe.now_us(), concurrency=concurrency)
        )
        self.is_busy = False

    async def begin_again(
        self, plan_of: Callable[[RunHistory, RunMode], Plan], mode: RunMode, concurrency: int
    ) -> None:
        HERE.set(self.process)
        self.run, self.mode, self.requests_max = SECOND_RUN, mode, None
        parts = self._mine[0]
        history = await self._insist(lambda: load_history(parts.sink, parts.source.name, parts.task.spec_hash))
        plan, now = plan_of(history, mode), self._universe.now_us()
        await self._insist(
            lambda: start_planned(
                *self._mine, self.run, plan, now, concurrency=concurrency, requests_max=REQUESTS_ENOUGH
            )
        )
        self.is_busy = False

    async def resume(self, raises_budget: bool = False) -> None:
        HERE.set(self.process)
        self.is_busy = True
        if raises_budget:
            self.requests_max = None
            await self._insist(lambda: self._mine[0].sink.runs.set_budget(self.run, None))
        await self._insist(lambda: submit_open_shards(*self._mine, self.run))
        self.is_busy = False

    async def look(self) -> None:
        HERE.set(self.process)
        self.is_busy = True
        assert self._parts is not None
        self.state = await self._insist(partial(finish_run, self._parts, self.run))
        self.is_busy = False

    @property
    def _mine(self) -> tuple[ImportParts, ImportJobs]:
        assert self._parts is not None
        assert self._handle is not None
        return self._parts, self._handle

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:  # ends with a reply: every fault ends
            try:
                return await call()
            except TransientError:
                await asyncio.sleep(PAUSE_SECONDS)
