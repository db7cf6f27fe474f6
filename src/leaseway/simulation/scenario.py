"""One run of one seed: a faulty phase, a calm phase in which every job must end, and the report."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from random import Random

import msgspec
from msgspec import Struct

from leaseway.domain.kind import Kind
from leaseway.domain.schedule import Schedule
from leaseway.simulation.clients import Client, Intent
from leaseway.simulation.fleet import SimulatedFleet
from leaseway.simulation.limit_oracles import Meter
from leaseway.simulation.process import Process
from leaseway.simulation.promises import STATES, SharedDatabase, StoredJob, new_jobs_database
from leaseway.simulation.swarm import FAULTY_SECONDS, LEASE_SECONDS, Swarm
from leaseway.simulation.trace import Trace
from leaseway.simulation.world import SimulatedWorld
from leaseway.worker.environment import WorkerSettings

OUTAGE_SECONDS = (0.3, 2 * LEASE_SECONDS)
STEP_SECONDS_MAX = 3 * LEASE_SECONDS
AT_START_SHARE = 0.3
"""So many pauses begin between the claim of a job and the first line of its handler."""


class Nemesis:
    def __init__(self, universe: SimulatedWorld, fleet: SimulatedFleet) -> None:
        self._universe = universe
        self._fleet = fleet
        self._starts = universe.streams.of("paused at start")

    async def rage(self) -> None:
        """Runs until cancelled."""
        swarm = self._universe.swarm
        async with asyncio.TaskGroup() as group:
            for purpose, every, strike in (
                ("crash", swarm.crash_every, self._crash),
                ("pause", swarm.pause_every, self._pause),
                ("drain", swarm.drain_every, self._drain),
                ("outage", swarm.outage_every, self._outage),
                ("step", swarm.step_every, self._step),
            ):
                if every:
                    group.create_task(self._keep_striking(self._universe.streams.of(purpose), every, strike))

    async def _keep_striking(self, chance: Random, every: float, strike: Callable[[Random], None]) -> None:
        while True:  # until cancelled
            await asyncio.sleep(chance.expovariate(1 / every))
            strike(chance)

    def _victim(self, chance: Random) -> Process | None:
        crew = [process for process in self._fleet.crew if process.is_up]
        return chance.choice(crew) if crew else None

    def _crash(self, chance: Random) -> None:
        victim = self._victim(chance)
        if victim is not None:
            self._fleet.kill(victim)

    def _pause(self, chance: Random) -> None:
        victim = self._victim(chance)
        if victim is not None and not victim.loop.is_frozen:
            seconds = chance.uniform(*self._universe.swarm.pause_seconds)
            self._universe.books.reach("a worker was paused")
            if self._starts.random() < AT_START_SHARE:
                self._universe.note(victim.name, f"is paused for {seconds:.3f} s when it starts a handler")
                reach, what = self._universe.books.reach, "a worker was paused before the first line of a handler"
                victim.freeze_at_start(seconds, lambda: reach(what))
            else:
                self._universe.note(victim.name, f"is paused for {seconds:.3f} s")
                victim.freeze(seconds)

    def _drain(self, chance: Random) -> None:
        victim = self._victim(chance)
        if victim is not None:
            self._fleet.drain(victim)

    def _outage(self, chance: Random) -> None:
        self._universe.fail_for(chance.uniform(*OUTAGE_SECONDS))

    def _step(self, chance: Random) -> None:
        self._universe.step_clock(chance.uniform(-STEP_SECONDS_MAX, STEP_SECONDS_MAX))


SETTLE_SECONDS = 8.0
"""How long the effects of the last fault may last: a pause ends, a stalled call arrives."""
LEAVE_SECONDS_MAX = 15.0
LOOK_SECONDS = 0.25
EXPIRE_SECONDS_MAX = 5.0
"""Workers expire overdue holds every second, if the ledger answers."""


class Load(Struct, frozen=True):
    """The kinds, schedules and submissions of a run."""

    kinds: Mapping[str, Kind]
    plan: list[Intent]
    queues: tuple[str, ...]
    schedules: tuple[Schedule, ...] = ()
    later_us: int = 0
    """How much later than others this world begins."""
    meter: Callable[[SimulatedWorld], Meter] | None = None
    calm_seconds_max: float = 120.0
    """Every job must end within this time after the last fault."""


class SimulationReport(Struct, frozen=True):
    """The result of one seed."""

    seed: int
    violations: tuple[str, ...]
    reached: dict[str, int]
    trace_hash: str
    trace_lines: int
    seconds: float
    """In virtual time."""
    states: dict[str, int]
    """The number of jobs per final state."""

    @property
    def is_ok(self) -> bool:
        return not self.violations


class Scenario:
    def __init__(self, universe: SimulatedWorld, load: Load) -> None:
        self._universe = universe
        self._load = load
        self._meter = None if load.meter is None else load.meter(universe)
        universe.judge.meter = self._meter
        swarm = universe.swarm
        self._settings = WorkerSettings(
            queues=load.queues, concurrency=swarm.concurrency, grace_seconds=swarm.grace_seconds
        )
        self._fleet = SimulatedFleet(universe, load.kinds, self._settings, load.schedules, self._meter)
        self._clients = [Client(universe, f"client-{number}") for number in range(swarm.clients)]

    def run(self) -> None:
        """The whole history, or its beginning up to the first violation."""
        loop = self._universe.loop
        story = loop.create_task(self._story())
        story.add_done_callback(lambda _: loop.stop())
        try:
            loop.run_forever()
            self._universe.raise_error()
            if story.done():
                story.result()
        finally:
            story.cancel()
            self._bury(story)

    async def _story(self) -> None:
        if self._meter is not None:
            self._meter.agree()
        for number, client in enumerate(self._clients):
            own = [intent for intent in self._load.plan if intent.client == number]
            self._universe.start(client.process, client.run(own))
        for _ in range(self._universe.swarm.workers):
            self._fleet.start()
        await self._rage()
        last = await self._come_to_an_end()
        await self._let_holds_expire()
        await self._leave(last)
        self._conclude()

    # -- the phases -------------------------------------------------------------------------------------------------

    async def _rage(self) -> None:
        if not self._universe.is_faulty:
            return
        async with asyncio.TaskGroup() as group:
            evils = [group.create_task(self._nemesis().rage())]
            if self._meter is not None:
                evils.append(group.create_task(self._meter.rage()))
            operator = self._clients[0]
            self._universe.start(operator.process, operator.replay_sometimes())
            await asyncio.sleep(FAULTY_SECONDS)
            for evil in evils:
                evil.cancel()
        self._universe.calm()
        if self._meter is not None:
            self._meter.calm()

    def _nemesis(self) -> Nemesis:
        return Nemesis(self._universe, self._fleet)

    async def _come_to_an_end(self) -> Process | None:
        """Liveness: without faults, every accepted submission becomes done, failed or cancelled within bounded time."""
        names = [schedule.name for schedule in self._load.schedules]
        self._universe.start(self._clients[0].process, self._clients[0].pause(names))
        last = self._fleet.start(msgspec.structs.replace(self._settings, until_empty=True))
        began = self._universe.loop.time()
        while not self._is_over():
            await asyncio.sleep(LOOK_SECONDS)
            if self._meter is not None:
                began += self._meter.pass_time()
            seconds = self._universe.loop.time() - began
            self._universe.books.is_settled = seconds > SETTLE_SECONDS
            if seconds > self._load.calm_seconds_max:
                left = [f"{row.id} {row.kind} {row.state}" for row in self._rows() if not row.is_final]
                self._universe.judge.accuse([f"I3 {seconds:.0f} s after the last fault there is still {left}"])
                await asyncio.sleep(LOOK_SECONDS)
        return last

    async def _let_holds_expire(self) -> None:
        """No hold stays for ever, even if its owner is gone."""
        meter = self._meter
        if meter is not None and (deadline := meter.last_deadline()):
            await self._until(lambda: not meter.has_recovering, "I25 a process does not recover from its faults")
            meter.skip_to(deadline)
            await asyncio.sleep(EXPIRE_SECONDS_MAX)

    def _is_over(self) -> bool:
        is_quiet = all(client.is_done and not client.is_replaying for client in self._clients)
        return is_quiet and all(row.is_final for row in self._rows())

    async def _leave(self, last: Process | None) -> None:
        """A worker with `until_empty` exits when all jobs are done; the others exit when asked, and hold no lease."""
        if last is not None:
            await self._until(lambda: not last.is_up, f"{last.name} works on though everything is done")
        self._fleet.is_closing = True
        for process in list(self._fleet.crew):
            self._fleet.drain(process)
        await self._until(lambda: not self._fleet.crew, "I25 workers do not leave")

    async def _until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        for _ in range(int(LEAVE_SECONDS_MAX / LOOK_SECONDS)):
            if is_so():
                return
            await asyncio.sleep(LOOK_SECONDS)
        self._universe.judge.accuse([otherwise])

    def _conclude(self) -> None:
        """I3: every accepted submission ends."""
        books, rows = self._universe.books, self._universe.table.rows
        for label, answer in books.acknowledged.items():
            if books.labels.get(label) != answer.id or answer.id not in rows:
                self._universe.judge.accuse(
                    [f"I3 {label} was acknowledged as {answer.id}, which does not stand for it"]
                )
        for row in self._rows():
            if not row.is_final or row.token is not None:
                self._universe.judge.accuse([f"I3 job {row.id} is {row.state} in the end"])
        if self._meter is not None:
            self._meter.conclude()

    def _rows(self) -> Iterator[StoredJob]:
        return iter(self._universe.table.rows.values())

    def _bury(self, story: asyncio.Task[None]) -> None:
        """End every coroutine of this world, so that none of them runs in the next one."""
        loop = self._universe.loop
        for process in self._universe.processes:
            process.is_dead = True
        while not story.done():
            loop.call_soon(loop.stop)
            loop.run_forever()
        for process in self._universe.processes:
            process.loop.bury()
        self._universe.close()


def run_load(
    seed: int,
    swarm: Swarm,
    load: Load,
    *,
    sql: Mapping[str, str],
    is_faulty: bool = True,
    write: Callable[[str], object] | None = None,
    look: Callable[[SharedDatabase], object] | None = None,
    story: "Callable[[SimulatedWorld, Load], Scenario]" = Scenario,
) -> SimulationReport:
    """Run one world to its end. `look` may then read the database before it is gone."""
    trace = Trace(write)
    with new_jobs_database() as database:
        universe = SimulatedWorld(seed, swarm, database, sql, trace, is_faulty, load.later_us)
        story(universe, load).run()
        if look is not None:
            look(database)
    books = universe.books
    states = [row.state for row in universe.table.rows.values()]
    return SimulationReport(
        seed=seed,
        violations=tuple(books.violations),
        reached=dict(books.reached),
        trace_hash=trace.hash(),
        trace_lines=trace.lines,
        seconds=universe.loop.time(),
        states={state: states.count(state) for state in STATES if state in states},
    )
