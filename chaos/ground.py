"""Where a round takes place: a PostgreSQL server with proxies, a SQLite file on a disk of its own, or a MongoDB replica
set of three members."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import psycopg

from chaos import sabotage
from chaos.fleet import Fleet
from chaos.proxy import Proxy
from chaos.stage import GROUPS, ROLE, FileStage, MembersStage, Scale, ServerStage, SmallDisk, Stage, admin_url, role_url
from chaos.wire import MongoTraffic
from leaseway.testing.mongodb import MongoReplicaSet
from leaseway.testing.postgres import PostgresServer, postgres_server

CONNECTIONS = "100"
DISK_MB = 1_024
MEMBERS = 3


class Ground(Protocol):
    @property
    def url(self) -> str:
        """The store, for the supervisor."""
        ...

    @property
    def urls(self) -> dict[str, str]:
        """The store, for the processes of each group."""
        ...

    def stage(self, fleet: Fleet, scale: Scale) -> Stage: ...

    async def prepare(self, sabotage_name: str) -> None:
        """Called when the schema exists, and before the first process starts."""
        ...


# -- PostgreSQL -------------------------------------------------------------------------------------------------------


class ServerGround:
    def __init__(self, server: PostgresServer, proxies: dict[str, Proxy]) -> None:
        self._server = server
        self._proxies = proxies
        self.url = role_url(server)
        self.urls = {group: f"postgresql://{ROLE}@127.0.0.1:{proxy.port}/{ROLE}" for group, proxy in proxies.items()}

    def stage(self, fleet: Fleet, scale: Scale) -> Stage:
        return ServerStage(self._server, self._proxies, fleet, scale)

    async def prepare(self, sabotage_name: str) -> None:
        await sabotage.apply_sql(sabotage_name, admin_url(self._server))


@asynccontextmanager
async def on_postgres() -> AsyncIterator[Ground]:
    with server_with_role() as server:
        async with Proxy(server.port) as east, Proxy(server.port) as west:
            yield ServerGround(server, dict(zip(GROUPS, (east, west), strict=True)))


@contextmanager
def server_with_role() -> Iterator[PostgresServer]:
    """A durable server; workers and submitters use an ordinary role."""
    with postgres_server(durable=True, max_connections=CONNECTIONS) as server:
        with psycopg.connect(admin_url(server, "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN")
            connection.execute(f"CREATE DATABASE {ROLE} OWNER {ROLE}")
        yield server


# -- SQLite -----------------------------------------------------------------------------------------------------------


class FileGround:
    def __init__(self, path: Path, disk: SmallDisk | None) -> None:
        self._path = path
        self._disk = disk
        self.url = f"sqlite:///{path}"
        self.urls = dict.fromkeys(GROUPS, self.url)

    def stage(self, fleet: Fleet, scale: Scale) -> Stage:
        return FileStage(self._path, self._disk, fleet, scale)

    async def prepare(self, sabotage_name: str) -> None:
        """Nothing to do: a sabotage of a file changes only the processes."""


@asynccontextmanager
async def on_sqlite() -> AsyncIterator[Ground]:
    folder = Path(tempfile.mkdtemp(prefix="leaseway-chaos-file-"))
    try:
        with small_disk(folder) as disk:
            yield FileGround(folder / "work.db", disk)
    finally:
        shutil.rmtree(folder)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk | None]:
    """A file system whose size can be changed, or None without the right to mount one: then no disk gets full."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        yield None
        return
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield SmallDisk(folder, DISK_MB << 20)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a killed process may still be ending


# -- MongoDB ----------------------------------------------------------------------------------------------------------


class MembersGround:
    def __init__(
        self, members: MongoReplicaSet, disks: Sequence[SmallDisk | None], proxies: Mapping[str, Sequence[Proxy]]
    ) -> None:
        self._members = members
        self._disks = disks
        self._proxies = proxies
        self.url = members.url
        self.urls = {group: url_through(self.url, members, of_group) for group, of_group in proxies.items()}

    def stage(self, fleet: Fleet, scale: Scale) -> Stage:
        return MembersStage(self._members, self._disks, self._proxies, fleet, scale)

    async def prepare(self, sabotage_name: str) -> None:
        """Nothing to do: no sabotage changes the schema."""


def url_through(url: str, members: MongoReplicaSet, proxies: Sequence[Proxy]) -> str:
    for member, proxy in zip(members.members, proxies, strict=True):
        url = url.replace(f":{member.port}", f":{proxy.port}")
    return url


@asynccontextmanager
async def on_mongodb() -> AsyncIterator[Ground]:
    with (
        ExitStack() as mounted,
        tempfile.TemporaryDirectory(prefix="leaseway-chaos-", ignore_cleanup_errors=True) as at,
    ):
        folders = [Path(at, str(number)) for number in range(MEMBERS)]
        for folder in folders:
            folder.mkdir()
        disks = [mounted.enter_context(small_disk(folder)) for folder in folders]
        members = MongoReplicaSet(Path(at), (), MEMBERS)
        try:
            members.create()
            async with AsyncExitStack() as open_:
                proxies = {group: await proxies_of(members, open_) for group in GROUPS}
                yield MembersGround(members, disks, proxies)
        finally:
            members.kill()


async def proxies_of(members: MongoReplicaSet, open_: AsyncExitStack) -> list[Proxy]:
    """One for each member. Their clients never learn the members' own addresses."""
    addresses: dict[bytes, bytes] = {}
    proxies: list[Proxy] = []
    for member in members.members:
        proxy = await open_.enter_async_context(Proxy(member.port, lambda: MongoTraffic(addresses)))
        address, instead = (f"127.0.0.1:{port}".encode() for port in (member.port, proxy.port))
        assert len(address) == len(instead), "replies must keep their length"
        addresses[address] = instead
        proxies.append(proxy)
    return proxies


GROUNDS: dict[str, Callable[[], AbstractAsyncContextManager[Ground]]] = {
    "postgres": on_postgres,
    "sqlite": on_sqlite,
    "mongodb": on_mongodb,
}
