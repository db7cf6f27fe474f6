"""What a provider receives under "20 per 2 s": the most that arrived in any two seconds, under faults.

Several processes ask without a pause and record when they were allowed to send, on the clock that they share.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.limits.failover import pair
from benchmarks.limits.hammer import COUNT, OURS, WINDOW_SECONDS
from benchmarks.limits.peers import IN_PROCESS
from benchmarks.postgres.database import new_database
from benchmarks.processes import run_together
from leaseway.testing.provider import most_within
from leaseway.testing.valkey import valkey_server

WORKERS = 3
SKEW_SECONDS = 3.0
KILL_AFTER_SECONDS = 2.8
PART_AFTER_SECONDS = 1.75
"""Before any worker is busy again, so that the replica lacks a whole burst."""


class Seen(NamedTuple):
    """What one limiter let through in one scenario."""

    most: int
    sent: int
    errors: int

    @property
    def ratio(self) -> float:
        return self.most / COUNT

    def __str__(self) -> str:
        return f"{self.most} of {COUNT}, {self.sent} sent"


class Stage(NamedTuple):
    """A scenario: where limits are stored, and what happens while the workers are busy."""

    address: str
    meanwhile: Callable[[], None] = lambda: None
    skew_seconds: float = 0.0


@contextmanager
def steady(skew_seconds: float = 0.0) -> Iterator[Stage]:
    with valkey_server() as server:
        yield Stage(server.url, skew_seconds=skew_seconds)


@contextmanager
def killed() -> Iterator[Stage]:
    """Killed, and started again at once without data."""
    with valkey_server() as server:

        def kill() -> None:
            time.sleep(KILL_AFTER_SECONDS)
            server.kill()
            server.start()

        yield Stage(server.url, kill)


@contextmanager
def failed_over() -> Iterator[Stage]:
    with pair() as servers:

        def fail_over() -> None:
            time.sleep(PART_AFTER_SECONDS)
            servers.part()
            time.sleep(KILL_AFTER_SECONDS - PART_AFTER_SECONDS)
            servers.fail_over()

        yield Stage(servers.url, fail_over)


SCENES = {
    "steady": steady,
    f"one clock {SKEW_SECONDS:g} s ahead": lambda: steady(SKEW_SECONDS),
    f"one clock {SKEW_SECONDS:g} s behind": lambda: steady(-SKEW_SECONDS),
    "the store killed and empty": killed,
    "failover that lost 1 s": failed_over,
}
CLOCKS = list(SCENES)[:3]
"""Faults of a store that keeps its state."""


def seen(who: str, stage: Stage, seconds: float) -> Seen:
    skews = [stage.skew_seconds, *[0.0] * (WORKERS - 1)] if who != IN_PROCESS else [0.0]
    hammer = [sys.executable, "-m", "benchmarks.limits.hammer", who, stage.address, str(seconds)]
    found = run_together([[*hammer, str(skew)] for skew in skews], stage.meanwhile)
    times_ns = [at_ns for each in found for at_ns in each["sent_ns"]]
    most = most_within(times_ns, WINDOW_SECONDS * 1_000_000_000)
    return Seen(most, len(times_ns), sum(each["errors"] for each in found))


def seen_on_valkey(scene: str, seconds: float, peers: Sequence[str]) -> dict[str, Seen]:
    """By limiter: leaseway first, then every peer that supports this scenario."""
    found = {}
    for who in [OURS, *(who for who in peers if who != IN_PROCESS or scene == "steady")]:
        with SCENES[scene]() as stage:
            found[who] = seen(who, stage, seconds)
    return found


def seen_on_stores(scene: str, seconds: float, postgres_url: str) -> Mapping[str, Seen]:
    """leaseway on the stores that also hold jobs."""
    skew_seconds = {CLOCKS[1]: SKEW_SECONDS, CLOCKS[2]: -SKEW_SECONDS}.get(scene, 0.0)
    with new_database(postgres_url) as url, TemporaryDirectory(prefix="leaseway-benchmarks-") as folder:
        addresses = {"PostgreSQL": url, "SQLite": f"sqlite:///{Path(folder) / 'work.db'}"}
        return {
            name: seen(OURS, Stage(address, skew_seconds=skew_seconds), seconds) for name, address in addresses.items()
        }
