"""Faults of a SQLite file: locked, read for a long time, rewritten, on a full disk."""

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import ClassVar, Self

from chaos.faults.fault import Fault, between
from chaos.faults.process import Freeze
from chaos.fleet import Member
from chaos.stage import FileStage, Scale, Stage

GRIP_TRIES_MAX = 100
LOOKS_MAX = 10_000
GRIP_SECONDS = 0.5
"""Longer than any transaction of a running process lasts."""
LOCK_SECONDS_MAX = 60.0
"""How long a fault waits for the lock that it wants to take."""


class OfFile(Fault[FileStage], frozen=True):
    seconds: float


class Hold(OfFile, frozen=True):
    """Another program holds the write lock: a backup tool, or a shell with an open transaction."""

    name: ClassVar[str] = "hold"

    @classmethod
    def dealt(cls, chance: random.Random, scale: Scale) -> Iterator[Self]:
        """Each length once before a length repeats: in short ones no lease is lost; in middle ones all leases are lost;
        in long ones every call gives up.
        """
        ends = [0.1, *(end for end in (scale.lease, scale.busy) if end < scale.hold), scale.hold]
        lengths = list(pairwise(ends))
        while True:
            for least, most in chance.sample(lengths, len(lengths)):
                yield cls(between(chance, least, most))

    def what(self) -> str:
        return f"another program holds the write lock for {self.seconds} s"

    async def strike(self, stage: FileStage) -> str:
        with closing(stage.connect(LOCK_SECONDS_MAX)) as connection:
            await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
            await asyncio.sleep(self.seconds)
        return ""


class Read(OfFile, frozen=True):
    """Another program reads one snapshot for a while, so that the log cannot be reused."""

    name: ClassVar[str] = "read"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 0.3, scale.squeeze))

    def what(self) -> str:
        return f"another program reads one snapshot for {self.seconds} s, and then empties the log"

    async def strike(self, stage: FileStage) -> str:
        with closing(stage.connect(LOCK_SECONDS_MAX)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM lanes").fetchall()
            await asyncio.sleep(self.seconds)
            connection.execute("COMMIT")
            await asyncio.to_thread(connection.execute, "PRAGMA wal_checkpoint(TRUNCATE)")
        return ""


class Vacuum(OfFile, frozen=True):
    """Another program rewrites the whole file."""

    name: ClassVar[str] = "vacuum"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(0.0)

    def what(self) -> str:
        return "another program rewrites the file with VACUUM"

    async def strike(self, stage: FileStage) -> str:
        with closing(stage.connect(LOCK_SECONDS_MAX)) as connection:
            try:
                await asyncio.to_thread(connection.execute, "VACUUM")
            except sqlite3.OperationalError as error:
                return f"it gave up: {error}"
        return ""


class Full(OfFile, frozen=True):
    """The disk is full: reads succeed, and writes do not."""

    name: ClassVar[str] = "full"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 0.3, scale.squeeze))

    def what(self) -> str:
        return f"the disk is full for {self.seconds} s"

    async def strike(self, stage: FileStage) -> str:
        if stage.disk is None:
            return "left out: it needs the right to mount a file system"
        await asyncio.to_thread(stage.disk.fill)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            await asyncio.to_thread(stage.disk.empty)
        return ""


class FreezeWriter(Freeze, frozen=True):
    """A frozen worker may hold the write lock, and then every other process waits for it."""

    name: ClassVar[str] = "freeze"

    def hits(self, stage: Stage) -> list[str]:
        victim = self.member(stage).name
        return [victim, *(name for name in stage.fleet.names() if name != victim)]


class Grip(FreezeWriter, frozen=True):
    """SIGSTOP of a worker in the middle of a transaction, so that it certainly holds the write lock."""

    name: ClassVar[str] = "grip"

    def what(self) -> str:
        return f"a {self.role} is frozen for {self.seconds} s in the middle of a transaction"

    async def strike(self, stage: Stage) -> str:
        assert isinstance(stage, FileStage)
        victim = self.member(stage)
        for tries in range(1, GRIP_TRIES_MAX + 1):
            try:
                if await asyncio.to_thread(self._is_caught, stage, victim):
                    await asyncio.sleep(self.seconds)
                    return f"{victim.name}, at the {tries}. try"
            finally:
                stage.fleet.thaw(victim)
            await asyncio.sleep(0)
        return f"{victim.name} was never caught in a transaction"

    def _is_caught(self, stage: FileStage, victim: Member) -> bool:
        """Freeze it in a moment in which some process holds the lock."""
        with closing(stage.connect(0)) as connection:
            for _ in range(LOOKS_MAX):
                if not may_write(connection):
                    break
        stage.fleet.freeze(victim)
        with closing(stage.connect(GRIP_SECONDS)) as connection:
            return not may_write(connection)


def may_write(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    connection.execute("ROLLBACK")
    return True
