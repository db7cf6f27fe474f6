"""Faults of a MongoDB replica set: its primary is killed, replaced, frozen or without disk space; the majority or all
members are lost."""

import asyncio
import random
from typing import ClassVar, Self

from chaos.faults.fault import Fault, between
from chaos.stage import MembersStage, Scale

FROZEN_SECONDS_MAX = 6.0
ALONE_SECONDS_MAX = 8.0


class OfMembers(Fault[MembersStage], frozen=True):
    seconds: float


class KillPrimary(OfMembers, frozen=True):
    """kill -9 of the primary. The others elect a new one while it is down."""

    name: ClassVar[str] = "kill-primary"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(round(chance.uniform(0, scale.outage), 2))

    def what(self) -> str:
        return f"the primary is killed and started again after {self.seconds} s"

    async def strike(self, stage: MembersStage) -> str:
        primary = await stage.await_primary()
        primary.kill()
        await asyncio.sleep(self.seconds)
        await stage.start(primary)
        await stage.await_primary()
        return ""


class StepDown(OfMembers, frozen=True):
    """The primary gives up its role, as for an update. All its connections are closed."""

    name: ClassVar[str] = "step-down"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(chance.randint(2, 6))

    def what(self) -> str:
        return f"the primary steps down for {self.seconds} s"

    async def strike(self, stage: MembersStage) -> str:
        primary = await stage.await_primary()
        await asyncio.to_thread(primary.command, {"replSetStepDown": int(self.seconds), "force": True})
        await stage.await_primary()
        return ""


class FreezePrimary(OfMembers, frozen=True):
    """SIGSTOP until the others have elected a new primary, then SIGCONT: for a moment there are two."""

    name: ClassVar[str] = "freeze-primary"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 0.3, FROZEN_SECONDS_MAX))

    def what(self) -> str:
        return f"the primary is frozen for {self.seconds} s, and until there is another one"

    async def strike(self, stage: MembersStage) -> str:
        primary = await stage.await_primary()
        primary.pause()
        try:
            await asyncio.sleep(self.seconds)
            await stage.await_primary()
        finally:
            primary.resume()
        return ""


class PowerCut(OfMembers, frozen=True):
    """All members are killed at once. There is no majority until two of them are back."""

    name: ClassVar[str] = "power-cut"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(round(chance.uniform(0, scale.outage), 2))

    def what(self) -> str:
        return f"all members are killed and started again after {self.seconds} s"

    async def strike(self, stage: MembersStage) -> str:
        stage.members.kill()
        await asyncio.sleep(self.seconds)
        await stage.start(*stage.members.members)
        await stage.await_primary()
        return ""


class LoseMajority(OfMembers, frozen=True):
    """The primary is alone. It accepts writes that it cannot acknowledge, until it gives up its role."""

    is_killed: bool
    name: ClassVar[str] = "lose-majority"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 0.5, ALONE_SECONDS_MAX), chance.random() < 0.5)

    def what(self) -> str:
        how = "kill -9 of" if self.is_killed else "SIGSTOP of"
        return f"{how} all members but the primary, for {self.seconds} s"

    async def strike(self, stage: MembersStage) -> str:
        primary = await stage.await_primary()
        others = [member for member in stage.members.members if member is not primary]
        for member in others:
            member.kill() if self.is_killed else member.pause()
        await asyncio.sleep(self.seconds)
        if self.is_killed:
            await stage.start(*others)
        for member in others:
            member.resume()
        await stage.await_primary()
        return ""


class FillPrimary(OfMembers, frozen=True):
    """The disk of the primary is full: it ends itself as soon as its journal needs space. Then the disk is freed, and
    it is restarted."""

    name: ClassVar[str] = "full"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 1.0, scale.squeeze))

    def what(self) -> str:
        return f"the disk of the primary is full for {self.seconds} s, and then it is restarted"

    async def strike(self, stage: MembersStage) -> str:
        primary = await stage.await_primary()
        disk = stage.disk_of(primary)
        if disk is None or primary.process is None:
            return "left out: it needs the right to mount a file system"
        process = primary.process
        await asyncio.to_thread(disk.fill)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            await asyncio.to_thread(disk.empty)
        has_ended = process.poll() is not None
        primary.kill()
        await stage.start(primary)
        await stage.await_primary()
        return "the server had ended itself" if has_ended else "the server had enough space for this time"
