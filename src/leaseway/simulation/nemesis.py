"""Faults of processes and of the machine; each kind has its own schedule and its own random stream."""

import asyncio
from collections.abc import Callable
from random import Random

from leaseway.simulation.fleet import SimulatedFleet
from leaseway.simulation.process import Process
from leaseway.simulation.swarm import LEASE_SECONDS
from leaseway.simulation.world import SimulatedWorld

OUTAGE_SECONDS = (0.3, 2 * LEASE_SECONDS)
STEP_SECONDS_MAX = 3 * LEASE_SECONDS


class Nemesis:
    def __init__(self, universe: SimulatedWorld, fleet: SimulatedFleet) -> None:
        self._universe = universe
        self._fleet = fleet

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
