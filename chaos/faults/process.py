"""Faults of a process: killed, or frozen until its leases expire."""

import asyncio
import random
from typing import ClassVar, Self

from chaos.faults.fault import Fault
from chaos.fleet import Member
from chaos.stage import Scale, Stage


class OfProcess(Fault[Stage], frozen=True):
    role: str
    victim: int
    seconds: float

    def member(self, stage: Stage) -> Member:
        members = stage.fleet.members(self.role)
        return members[self.victim % len(members)]

    def hits(self, stage: Stage) -> list[str]:
        return [self.member(stage).name]


class Kill(OfProcess, frozen=True):
    """kill -9, and a successor in its place. Submitters are included."""

    name: ClassVar[str] = "kill"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        role = chance.choices(["worker", "submitter"], [4, 1])[0]
        return cls(role, chance.randrange(100), round(chance.uniform(0, 1), 2))

    def what(self) -> str:
        return f"kill -9 of a {self.role}, another one after {self.seconds} s"

    async def strike(self, stage: Stage) -> str:
        victim = self.member(stage)
        place = stage.fleet.kill(victim)
        await asyncio.sleep(self.seconds)
        return f"{victim.name} is dead, {stage.fleet.start(place).name} replaces it"


class Freeze(OfProcess, frozen=True):
    """SIGSTOP until its leases have expired and other workers hold its jobs, then SIGCONT."""

    name: ClassVar[str] = "freeze"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls("worker", chance.randrange(100), round(scale.lease * chance.uniform(1.05, 2.0), 2))

    def what(self) -> str:
        return f"a {self.role} is frozen for {self.seconds} s"

    async def strike(self, stage: Stage) -> str:
        victim = self.member(stage)
        stage.fleet.freeze(victim)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            stage.fleet.thaw(victim)
        return victim.name
