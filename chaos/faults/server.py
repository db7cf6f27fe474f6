"""Faults of the server: crashed, refusing, slow."""

import asyncio
import contextlib
import random
from typing import ClassVar, Self

import psycopg

from chaos.faults.fault import Fault, between
from chaos.stage import ROLE, Admin, Scale, ServerStage, admin_url

CONNECTIONS_MAX = 500
"""More than any test server allows."""


class OfServer(Fault[ServerStage], frozen=True):
    seconds: float


class Crash(OfServer, frozen=True):
    """The whole server crashes; after the restart it has to recover first."""

    name: ClassVar[str] = "crash"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(round(chance.uniform(0, scale.outage), 2))

    def what(self) -> str:
        return f"the server is killed and started again after {self.seconds} s"

    async def strike(self, stage: ServerStage) -> str:
        await asyncio.to_thread(stage.server.crash)
        await asyncio.sleep(self.seconds)
        await asyncio.to_thread(stage.server.start)
        return ""


class Restart(OfServer, frozen=True):
    """The server ends its sessions in order, as for an update."""

    name: ClassVar[str] = "restart"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(round(chance.uniform(0, scale.outage), 2))

    def what(self) -> str:
        return f"the server is stopped and started again after {self.seconds} s"

    async def strike(self, stage: ServerStage) -> str:
        await asyncio.to_thread(stage.server.stop)
        await asyncio.sleep(self.seconds)
        await asyncio.to_thread(stage.server.start)
        return ""


class Terminate(Fault[ServerStage], frozen=True):
    times: int
    name: ClassVar[str] = "terminate"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(chance.randint(1, 4))

    def what(self) -> str:
        return f"pg_terminate_backend of every session, {self.times} times"

    async def strike(self, stage: ServerStage) -> str:
        ended = 0
        async with stage.admin() as admin:
            for _ in range(self.times):
                ended += await stage.terminate(admin)
                await asyncio.sleep(0.2)
        return f"{ended} sessions"


class Cancel(OfServer, frozen=True):
    """Cancel every running statement, as a statement timeout does."""

    name: ClassVar[str] = "cancel"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 0.3, scale.squeeze))

    def what(self) -> str:
        return f"pg_cancel_backend of every statement that is caught, for {self.seconds} s"

    async def strike(self, stage: ServerStage) -> str:
        caught = 0
        async with stage.admin() as admin:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.seconds):
                    while True:  # until the time is over
                        caught += await cancel_statements(admin)
                        await asyncio.sleep(0.002)
        return f"{caught} caught"


async def cancel_statements(admin: Admin) -> int:
    cancelled = await admin.execute(
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE usename = %s AND state = 'active'", [ROLE]
    )
    row = await cancelled.fetchone()
    assert row is not None
    return int(str(row[0]))


class Timeouts(OfServer, frozen=True):
    """New sessions get a statement timeout that almost no statement meets; existing sessions are ended."""

    limit_ms: int
    name: ClassVar[str] = "timeouts"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 0.3, scale.squeeze), chance.choice([1, 3, 10]))

    def what(self) -> str:
        return f"statement_timeout is {self.limit_ms} ms for {self.seconds} s"

    async def strike(self, stage: ServerStage) -> str:
        async with stage.admin() as admin:
            await admin.execute(f"ALTER ROLE {ROLE} SET statement_timeout = '{self.limit_ms}ms'")
            try:
                await stage.terminate(admin)
                await asyncio.sleep(self.seconds)
            finally:
                await admin.execute(f"ALTER ROLE {ROLE} RESET statement_timeout")
                await stage.terminate(admin)
        return ""


LOCKED_TABLES = ("jobs", "payloads", "lanes", "idempotency_keys", "history")


class Lock(OfServer, frozen=True):
    """A long transaction of another client holds an exclusive lock on a table."""

    table: str
    name: ClassVar[str] = "lock"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 0.3, scale.squeeze), chance.choice(LOCKED_TABLES))

    def what(self) -> str:
        return f"the table {self.table} is locked for {self.seconds} s"

    async def strike(self, stage: ServerStage) -> str:
        try:
            async with stage.admin() as admin, admin.transaction():
                await admin.execute(f"LOCK TABLE leaseway.{self.table} IN ACCESS EXCLUSIVE MODE")
                await asyncio.sleep(self.seconds)
        except psycopg.errors.DeadlockDetected:
            return "the server ended our transaction, because it was part of a deadlock"
        return ""


class Refuse(OfServer, frozen=True):
    """Other clients have taken every connection that the server allows, and the campaign's sessions are ended."""

    name: ClassVar[str] = "refuse"

    @classmethod
    def drawn(cls, chance: random.Random, scale: Scale) -> Self:
        return cls(between(chance, 0.3, scale.squeeze))

    def what(self) -> str:
        return f"the server has no connection left for {self.seconds} s"

    async def strike(self, stage: ServerStage) -> str:
        url = admin_url(stage.server)
        async with stage.admin() as admin, contextlib.AsyncExitStack() as held:
            taken = await take_all(url, held)
            loop = asyncio.get_running_loop()
            until = loop.time() + self.seconds
            while loop.time() < until:  # ended clients reconnect, and are sometimes faster than this fault
                await stage.terminate(admin)
                taken += await take_all(url, held)
                await asyncio.sleep(0.05)
        return f"{taken} taken"


async def take_all(url: str, held: contextlib.AsyncExitStack) -> int:
    """Open sessions until the server refuses; returns how many."""
    for count in range(CONNECTIONS_MAX):
        try:
            await held.enter_async_context(await psycopg.AsyncConnection.connect(url))
        except psycopg.OperationalError:
            return count
    return CONNECTIONS_MAX
