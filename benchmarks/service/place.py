"""What all cases share: their sizes, and a service in a process of its own."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from leaseway import App
from leaseway.domain.identity import KeyRequest, Role
from leaseway.system import random_text
from leaseway.testing.postgres import PostgresServer
from leaseway.worker.api_keys import make

STOP_SECONDS = 15
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
LEASEWAY = [sys.executable, "-m", "leaseway.cli"]
UNLIMITED = ["--requests-per-minute", "100000000", "--requests-at-once", "10000"]
"""The rate limits of tenants are raised, because the capacity of the service is measured; requests are still
counted.
"""


class Size(NamedTuple):
    repeats: int = 2
    seconds: float = 5.0
    """Of each round."""
    connections: int = 64
    bulk_jobs: int = 1_000
    bulk_calls: int = 100
    peer_seconds: float = 4.0
    jobs: int = 1_000_000
    asked: int = 6
    """How often each request of the dashboard is repeated."""
    changes: int = 60
    listeners: int = 1_000


FULL = Size()
QUICK = Size(
    repeats=1, seconds=0.3, connections=8, bulk_jobs=50, bulk_calls=4, peer_seconds=0.3, jobs=2_000, asked=1, changes=3,
    listeners=20,
)  # fmt: skip


class Place(NamedTuple):
    server: PostgresServer
    folder: Path


class Served(NamedTuple):
    url: str
    pid: int
    key: str
    """The key of an operator or of the submitting tenant; empty without authentication."""


@contextmanager
def served(store_url: str, *, role: Role | None = Role.TENANT) -> Iterator[Served]:
    """`leaseway serve` over this store, with a key of this role. None: without authentication."""
    key = "" if role is None else asyncio.run(key_at(store_url, role))
    command = [*LEASEWAY, "serve", "--quiet", "--port", "0", "--store", store_url, *UNLIMITED]
    command += ["--no-auth"] if role is None else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield Served(address_said_by(process), process.pid, key)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


async def key_at(store_url: str, role: Role) -> str:
    """Creates a key, and the store if it does not exist."""
    app = App(store_url)
    try:
        tenant = "bench" if role is Role.TENANT else None
        return (await make(await app.store(), KeyRequest(tenant=tenant, role=role), random_text)).text
    finally:
        await app.close()


def address_said_by(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    said = []
    for line in process.stdout:  # ends with the process
        said.append(line)
        found = ADDRESS.search(line)
        if found is not None:
            return found[0]
    raise RuntimeError(f"the service did not start: {''.join(said)}")


# -- resources of a process -------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def memory_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
