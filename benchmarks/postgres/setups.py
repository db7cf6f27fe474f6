"""The peers, and the setups of each: leaseway is compared with the fastest one found."""

import os
from collections.abc import Sequence
from typing import NamedTuple


class RawSetup(NamedTuple):
    batch: int = 500

    def __str__(self) -> str:
        return f"batches of {self.batch}, asyncpg with one connection"


class PgqueuerSetup(NamedTuple):
    """asyncpg throughout, which its own benchmarks found faster than psycopg."""

    batch_size: int = 500
    pool: int = 0
    """Connections; 0: one connection without a pool."""
    uvloop: bool = True

    def __str__(self) -> str:
        connections = f"a pool of {self.pool}" if self.pool else "one connection"
        return f"batch_size={self.batch_size}, asyncpg with {connections}, {'uvloop' if self.uvloop else 'asyncio'}"


class ProcrastinateSetup(NamedTuple):
    concurrency: int = 10
    delete_jobs: str = "never"
    uvloop: bool = True

    def __str__(self) -> str:
        loop = "uvloop" if self.uvloop else "asyncio"
        return f"concurrency={self.concurrency}, delete_jobs={self.delete_jobs}, {loop}"


class CelerySetup(NamedTuple):
    pool: str = "prefork"
    concurrency: int = 2
    prefetch_multiplier: int = 1_000
    """Celery's default is 4, with which this broker sleeps for a second whenever that many tasks are in transit."""

    def __str__(self) -> str:
        return f"pool={self.pool}, concurrency={self.concurrency}, prefetch_multiplier={self.prefetch_multiplier}"


Setup = RawSetup | PgqueuerSetup | ProcrastinateSetup | CelerySetup


class Peer(NamedTuple):
    """A peer to measure. The setups that usually win come first."""

    name: str
    module: str
    setups: Sequence[Setup]
    has_own_server: bool = False
    """It runs on a Valkey server and not on PostgreSQL."""


RAW = Peer("raw", "benchmarks.postgres.raw", [RawSetup(batch) for batch in (500, 1_000, 250, 100)])
PGQUEUER = Peer(
    "PgQueuer",
    "benchmarks.postgres.pgqueuer_peer",
    [
        PgqueuerSetup(500),
        *(PgqueuerSetup(batch_size, pool=4) for batch_size in (250, 100, 500, 1_000)),
        *(PgqueuerSetup(batch_size) for batch_size in (250, 1_000, 2_500)),
        PgqueuerSetup(2_500, pool=4),
        PgqueuerSetup(uvloop=False),
    ],
)
PROCRASTINATE = Peer(
    "Procrastinate",
    "benchmarks.postgres.procrastinate_peer",
    [
        *(ProcrastinateSetup(concurrency) for concurrency in (10, 20, 5, 50)),
        *(ProcrastinateSetup(concurrency, delete_jobs="always") for concurrency in (10, 20)),
        ProcrastinateSetup(uvloop=False),
    ],
)
CELERY = Peer(
    "Celery",
    "benchmarks.postgres.celery_peer",
    [
        *(CelerySetup("threads", concurrency) for concurrency in (1, 4)),
        *(CelerySetup("prefork", concurrency) for concurrency in (1, 2, 4)),
        CelerySetup("solo", 1),
        CelerySetup("prefork", 2, prefetch_multiplier=4),
    ],
)
CELERY_ON_REDIS = Peer(
    "Celery on Redis",
    "benchmarks.postgres.celery_peer",
    [CelerySetup("prefork", os.cpu_count() or 1, prefetch_multiplier=4)],
    has_own_server=True,
)
"""As `celery worker` starts: a child for each CPU, four tasks ahead for each of them. Nothing of it is durable."""
