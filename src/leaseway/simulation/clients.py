"""Clients that submit, cancel and retry jobs. They repeat a call after every transient error."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from leaseway.domain.errors import KeyConflict, StoreBusy, StoreFull, TransientError, UnknownOutcome
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import NewJob, State, Submitted
from leaseway.simulation.faulty_link import FaultyStore
from leaseway.simulation.process import HERE, Process
from leaseway.simulation.world import SimulatedWorld
from leaseway.worker import submit as submitting
from leaseway.worker.submit import Bound

T = TypeVar("T")

PAUSE_SECONDS = 0.2
REPLAYED_KINDS = ("hopeless", "hopeless", "shaky", "quick")
REPLAYS_MAX = 3


@dataclass(slots=True)
class Intent:
    """One submit call that a client will make."""

    at: float
    client: int
    jobs: list[Bound] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    """Identifies each job: jobs with the same label must become one job."""
    cancel_after: float | None = None


class Client:
    """A process that submits its part of the plan."""

    def __init__(self, universe: SimulatedWorld, name: str) -> None:
        self.process: Process = universe.process(name)
        self._books = universe.books
        self._store = FaultyStore(universe, self.process)
        self._universe = universe
        self.is_done = False
        self.is_replaying = False

    async def run(self, intents: Sequence[Intent]) -> None:
        HERE.set(self.process)
        await self._store.open()
        async with asyncio.TaskGroup() as group:
            for intent in intents:
                group.create_task(self._carry_out(intent))
        self.is_done = True

    async def _carry_out(self, intent: Intent) -> None:
        await asyncio.sleep(intent.at - self.process.loop.time())
        try:
            answers = await self._submit(intent)
        except KeyConflict:
            self._books.conflicts.update(intent.labels)
            self._books.reach("a key was refused for other arguments")
            return
        self._books.acknowledged.update(zip(intent.labels, answers, strict=True))
        if intent.cancel_after is not None:
            await asyncio.sleep(intent.cancel_after)
            await self._cancel(answers[0].id)

    async def _submit(self, intent: Intent) -> list[Submitted]:
        """`StoreBusy` and `StoreFull` guarantee that nothing was written, so the next try may use new ids."""
        while True:
            new = [job.new(self.process.ids) for job in intent.jobs]
            self._books.announced.update({job.id: label for job, label in zip(new, intent.labels, strict=True)})
            try:
                return await self._submit_once(new)
            except (StoreBusy, StoreFull):
                await asyncio.sleep(PAUSE_SECONDS)

    async def _submit_once(self, new: list[NewJob]) -> list[Submitted]:
        """After an unknown outcome, a later refusal says nothing about the first try, so the ids must stay the same."""
        unknown: UnknownOutcome | None = None
        while True:
            try:
                return await submitting.submit(self._store.jobs, new, self.process.clock, unknown)
            except (StoreBusy, StoreFull):
                if unknown is None:
                    raise
            except TransientError as error:
                unknown = UnknownOutcome(str(error))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _cancel(self, job: JobId) -> None:
        await self._insist(partial(self._store.operations.cancel, job))

    # -- the operator -----------------------------------------------------------------------------------------------

    async def replay_sometimes(self) -> None:
        """Retry failed jobs until the calm phase begins."""
        every = self._universe.swarm.replay_every
        chance = self._universe.streams.of("replay")
        self.is_replaying = bool(every)
        while every:
            await asyncio.sleep(chance.expovariate(1 / every))
            if self._universe.is_calm:
                self.is_replaying = False
                break
            which = JobFilter(states=(State.FAILED, State.CANCELLED), kind=chance.choice(REPLAYED_KINDS))
            await self._insist(partial(self._store.operations.retry, which, REPLAYS_MAX))

    async def pause(self, schedules: Sequence[str]) -> None:
        """Pause schedules; otherwise they would submit new jobs for ever."""
        for name in schedules:
            await self._insist(partial(self._store.schedules.pause, name, True))

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:  # ends with the store's reply: every fault ends
            try:
                return await call()
            except TransientError:
                await asyncio.sleep(PAUSE_SECONDS)
