"""The environment of the faults: server, proxies, processes; and how hard faults may be."""

import asyncio
import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
from msgspec import Struct

from chaos.fleet import Fleet
from chaos.link import Trap
from chaos.proxy import Proxy
from leaseway.stores.sqlite.errors import BUSY_SECONDS_MAX
from leaseway.testing.mongodb import MongoReplicaSet, MongoServer
from leaseway.testing.postgres import PostgresServer

RESIZES_MAX = 100
ROLE = "chaos"
"""The role of workers and submitters, and the name of their database."""
GROUPS = ("east", "west")
"""Each group has a proxy, half of the workers and a submitter: while one is cut off, the other one still has work."""

Admin = psycopg.AsyncConnection[tuple[object, ...]]


class Scale(Struct, frozen=True, kw_only=True):
    """How long things last, in seconds."""

    lease: float = 3.0
    pause: tuple[float, float] = (0.5, 8.0)
    outage: float = 3.0
    """How long a crashed server stays down at most."""
    blackhole: float = 60.0
    patience: float = 20.0
    """No client waits for a reply any longer than this: the store's own timeout, used for the lengths of faults."""
    busy: float = BUSY_SECONDS_MAX
    """No client waits for the lock of a SQLite file any longer than this."""
    hold: float = 1.3 * BUSY_SECONDS_MAX
    """How long another program holds the lock of a SQLite file at most."""
    squeeze: float = 6.0
    """How long locks, refusals, timeouts and delays last at most."""
    calm: float = 6.0
    """After the last fault, so that its aftermath is recorded, too."""


SHORT = Scale(lease=3.0, pause=(0.3, 0.8), outage=0.5, blackhole=1.5, squeeze=0.8, hold=1.5)
"""Every fault once within a minute."""


MEMBERS_LEASE_SECONDS = 8.0
"""On a replica set, leases must outlast an election, during which they cannot be renewed."""


class Stage:
    """The processes of a round, and how hard faults may be."""

    def __init__(self, fleet: Fleet, scale: Scale) -> None:
        self.fleet = fleet
        self.scale = scale

    def heal(self) -> None:
        """End what faults may have left behind."""


class NetworkStage(Stage):
    """One or more servers, and for each group a proxy in front of each of them."""

    def __init__(self, proxies: Mapping[str, Sequence[Proxy]], fleet: Fleet, scale: Scale) -> None:
        super().__init__(fleet, scale)
        self._proxies = proxies

    def heal(self) -> None:
        for proxy in self.proxies_of(list(self._proxies)):
            proxy.heal()

    def proxies_of(self, groups: Sequence[str]) -> list[Proxy]:
        return [proxy for group in groups for proxy in self._proxies[group]]

    def trap(self, groups: Sequence[str], text: str, cut_seconds: float) -> list[Trap]:
        """A trap for each group, in which the first client falls, whichever server it talks to."""
        traps = {group: Trap(text, cut_seconds) for group in groups}
        for group, trap in traps.items():
            for proxy in self._proxies[group]:
                proxy.arm(trap)
        return list(traps.values())


class ServerStage(NetworkStage):
    """A PostgreSQL server."""

    def __init__(self, server: PostgresServer, proxies: Mapping[str, Proxy], fleet: Fleet, scale: Scale) -> None:
        super().__init__({group: [proxy] for group, proxy in proxies.items()}, fleet, scale)
        self.server = server

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        """A session that bypasses the proxies, in the database of the jobs, with all rights."""
        async with await psycopg.AsyncConnection.connect(admin_url(self.server), autocommit=True) as connection:
            yield connection

    async def terminate(self, admin: Admin) -> int:
        """End every session of the workers and submitters; returns how many."""
        ended = await admin.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %s", [ROLE]
        )
        row = await ended.fetchone()
        assert row is not None
        return int(str(row[0]))


class MembersStage(NetworkStage):
    """The members of a MongoDB replica set, each with its own disk if the campaign may mount one."""

    def __init__(
        self,
        members: MongoReplicaSet,
        disks: Sequence["SmallDisk | None"],
        proxies: Mapping[str, Sequence[Proxy]],
        fleet: Fleet,
        scale: Scale,
    ) -> None:
        super().__init__(proxies, fleet, scale)
        self.members = members
        self._disks = disks

    def disk_of(self, member: MongoServer) -> "SmallDisk | None":
        return self._disks[self.members.members.index(member)]

    async def start(self, *members: MongoServer) -> None:
        """In other threads, so that the proxies go on. Servers end with their threads, which end with the campaign."""
        await asyncio.gather(*(asyncio.to_thread(member.start) for member in members))

    async def await_primary(self) -> MongoServer:
        return await asyncio.to_thread(self.members.await_primary)

    def heal(self) -> None:
        super().heal()
        for member in self.members.members:
            member.resume()
        for disk in self._disks:
            if disk is not None:
                disk.empty()


def admin_url(server: PostgresServer, database: str = ROLE) -> str:
    return f"postgresql://postgres@127.0.0.1:{server.port}/{database}"


def role_url(server: PostgresServer) -> str:
    return f"postgresql://{ROLE}@127.0.0.1:{server.port}/{ROLE}"


class SmallDisk:
    """A file system in memory that becomes full when its size is set to what is in use."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._folder = folder
        self._size_bytes = size_bytes

    def fill(self) -> None:
        for _ in range(RESIZES_MAX):
            found = os.statvfs(self._folder)
            if self._resize((found.f_blocks - found.f_bfree) * found.f_frsize):
                return  # otherwise the files have grown meanwhile
        raise RuntimeError(f"{self._folder}: its size could not be set to what is in use")

    def empty(self) -> None:
        assert self._resize(self._size_bytes)

    def _resize(self, size_bytes: int) -> bool:
        command = ["mount", "-o", f"remount,size={size_bytes}", str(self._folder)]
        return subprocess.run(command, capture_output=True).returncode == 0


class FileStage(Stage):
    """A SQLite file. Every process opens it by itself."""

    def __init__(self, path: Path, disk: SmallDisk | None, fleet: Fleet, scale: Scale) -> None:
        super().__init__(fleet, scale)
        self.path = path
        self.disk = disk

    def connect(self, wait_seconds: float) -> sqlite3.Connection:
        """A connection of another program, which waits so long for a lock."""
        return sqlite3.connect(self.path, timeout=wait_seconds, isolation_level=None, check_same_thread=False)

    def heal(self) -> None:
        if self.disk is not None:
            self.disk.empty()
