"""The environment of the faults: server, proxies, processes; and how hard faults may be."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psycopg
from msgspec import Struct

from chaos.fleet import Fleet
from chaos.proxy import Proxy
from leaseway.testing.postgres import PostgresServer

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
    squeeze: float = 6.0
    """How long locks, refusals, timeouts and delays last at most."""
    calm: float = 6.0
    """After the last fault, so that its aftermath is recorded, too."""


SHORT = Scale(lease=2.0, pause=(0.3, 0.8), outage=0.5, blackhole=1.5, squeeze=0.8)
"""Every fault once within half a minute."""


class Stage:
    def __init__(self, server: PostgresServer, proxies: dict[str, Proxy], fleet: Fleet, scale: Scale) -> None:
        self.server = server
        self.proxies = proxies
        self.fleet = fleet
        self.scale = scale

    def proxies_of(self, groups: Sequence[str]) -> list[Proxy]:
        return [self.proxies[group] for group in groups]

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


def admin_url(server: PostgresServer, database: str = ROLE) -> str:
    return f"postgresql://postgres@127.0.0.1:{server.port}/{database}"


def role_url(server: PostgresServer) -> str:
    return f"postgresql://{ROLE}@127.0.0.1:{server.port}/{ROLE}"
