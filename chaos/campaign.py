"""One round: start the store and the processes; inject faults; then heal, drain, read and check."""

import asyncio
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from chaos.evidence import gathered
from chaos.fleet import Fleet, places
from chaos.ground import GROUNDS, Ground
from chaos.history import Drained, Journal, now, read
from chaos.nemesis import play
from chaos.plan import Planned
from chaos.stage import GROUPS, Scale, Stage
from chaos.stored import Stored, read_all
from chaos.verdict import Verdict, judged
from chaos.worker import Orders
from leaseway import App, TransientError

WARM_SECONDS_MAX = 120.0
"""Not a rule: on a busy machine, six processes take long to start."""
DRAIN_SECONDS_MAX = 90.0
STATUS_SECONDS = 5.0
LOAD_MAX = 3.0
"""Processes that want to run, for each processor. Above that, a transaction may stand still for longer than a lease."""
STORED = "stored.json"


class Round(Struct, frozen=True, kw_only=True):
    """Everything that is decided before the round starts."""

    seed: str
    plan: Iterable[Planned]
    scale: Scale
    folder: Path
    seconds: float = math.inf
    """The last fault begins before this time, unless the plan ends earlier."""
    workers: int = 4
    sabotage: str = ""
    store: str = "postgres"


class Silent:
    """The supervisor's own app emits no events."""

    def emit(self, name: str, /, **facts: object) -> None: ...


class Campaign:
    def __init__(self, round_: Round, say: Callable[[str], None]) -> None:
        self._round = round_
        self._journal = Journal(round_.folder, "supervisor")
        self._began = now()
        self._print = say
        self._load = 0.0
        """The highest load of the machine during the round, for each processor."""

    def _say(self, text: str) -> None:
        self._print(f"{now() - self._began:7.1f} s  {text}")

    async def run(self) -> Verdict:
        async with GROUNDS[self._round.store]() as ground:
            app = App(ground.url, events=Silent())
            await app.store()  # creates the schema, so that no worker has to
            await ground.prepare(self._round.sabotage)
            with self._stage(ground) as stage:
                await self._work_under_faults(stage, app)
                stored = await self._end(stage, app)
            await app.close()
        keep(self._round.folder, stored)
        if self._load > LOAD_MAX:
            self._say(f"the machine was busy: {self._load:.0f} processes for each processor; rules of time say little")
        self._say("judging")
        return judge(self._round.folder)

    @contextmanager
    def _stage(self, ground: Ground) -> Iterator[Stage]:
        round_ = self._round
        orders = Orders(name="", url="", folder=str(round_.folder), lease_seconds=round_.scale.lease, seed=round_.seed)
        fleet = Fleet(self._journal, orders, ground.urls, round_.sabotage)
        try:
            yield ground.stage(fleet, round_.scale)
        finally:
            fleet.end()

    # -- faults ----------------------------------------------------------------------------------------------------

    async def _work_under_faults(self, stage: Stage, app: App) -> None:
        round_ = self._round
        for place in [*places("worker", round_.workers, GROUPS), *places("submitter", len(GROUPS), GROUPS)]:
            stage.fleet.start(place)
        await self._await_work(app)
        self._say(f"{round_.workers} workers and {len(GROUPS)} submitters are at work")
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(self._watch(stage)), group.create_task(self._tell(app))]
            await play(round_.plan, stage, self._journal, self._say, round_.seconds)
            stage.heal()
            await asyncio.sleep(round_.scale.calm)
            for task in watching:
                task.cancel()

    async def _await_work(self, app: App) -> None:
        async with asyncio.timeout(WARM_SECONDS_MAX):
            while not any(lane.done for lane in await (await app.store()).reads.lanes()):  # noqa: ASYNC110 - others do the work
                await asyncio.sleep(0.1)

    async def _watch(self, stage: Stage) -> None:
        """A process that ends on its own is a violation, but the round continues and may find more."""
        while True:  # until cancelled
            for name in stage.fleet.look():
                self._say(f"{name} ENDED BY ITSELF:\n{stage.fleet.said(name)[-2000:]}")
            await asyncio.sleep(0.2)

    async def _tell(self, app: App) -> None:
        finished_before = 0
        while True:  # until cancelled
            await asyncio.sleep(STATUS_SECONDS)
            self._load = max(self._load, os.getloadavg()[0] / (os.cpu_count() or 1))
            try:
                lanes = await (await app.store()).reads.lanes()
            except TransientError as error:
                self._say(f"· the server does not answer us: {error}")
                continue
            finished = sum(lane.done + lane.failed + lane.cancelled for lane in lanes)
            ready, leased = sum(lane.ready for lane in lanes), sum(lane.leased for lane in lanes)
            rate = (finished - finished_before) / STATUS_SECONDS
            finished_before = finished
            self._say(f"· {finished:,} finished ({rate:.0f}/s), {ready:,} ready, {leased:,} leased")

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _end(self, stage: Stage, app: App) -> Stored:
        self._say("all is healed; the submitters leave, the workers drain")
        await asyncio.to_thread(stage.fleet.leave, "submitter")
        left = await self._drained(app)
        self._journal.write(Drained(left=left))
        await asyncio.to_thread(stage.fleet.leave, "worker")
        return await read_all(app)

    async def _drained(self, app: App) -> int:
        """How many jobs are unfinished when no progress is possible, or after the time for a drain is over."""
        until = now() + DRAIN_SECONDS_MAX
        while True:  # ends with the work, or after the time for a drain
            try:
                left = sum(lane.unfinished for lane in await (await app.store()).reads.lanes())
            except TransientError:  # a busy machine; the rules judge the workers, not this poll
                if now() > until:
                    raise
                continue
            if not left or now() > until:
                return left
            await asyncio.sleep(0.1)


def keep(folder: Path, stored: Stored) -> None:
    """Stored beside the histories, so that they can be checked again with a newer checker."""
    (folder / STORED).write_bytes(msgspec.json.encode(stored))


def judge(folder: Path) -> Verdict:
    stored = msgspec.json.decode((folder / STORED).read_bytes(), type=Stored)
    return judged(gathered(read(folder), stored))
