"""What a worker is given: the ports it works through, its settings, and the rules for its pace."""

import math
from typing import NamedTuple

from msgspec import Struct

from leaseway.domain.errors import BadValue, TransientError
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.ports.clock import Chance, Clock, Ids
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Events, Tracing

PREFETCH_SECONDS = 0.1
"""A worker leases jobs ahead only as far as it can start them within this time."""
PREFETCH_ROOT = 5.0
"""Fast workers prefetch less in proportion: this factor times the square root of their rate. A worker that is ahead of
the others therefore does not get further ahead."""
STALE_SHARE = 1 / 3
"""A prefetched job that has not started after this share of its lease is released to other workers."""


class Environment(NamedTuple):
    """The ports through which a worker reaches everything outside it."""

    store: Store
    limiter: Limiter
    ledger: Ledger
    clock: Clock
    chance: Chance
    ids: Ids
    events: Events
    tracing: Tracing | None = None
    """None: tracing is off."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 20
    grace_seconds: float = 30.0
    """How long running jobs may continue after the first signal to stop."""
    poll_seconds: float = 1.0
    """The longest time between two polls of the store when no notification arrives."""
    settle_batch: int = 500
    settle_linger_seconds: float = 0.005
    """How long a settlement waits for others to join its transaction, if other jobs are running."""
    until_empty: bool = False
    keep_us: int = 7 * 86_400 * SECOND_US
    """Finished jobs older than this are pruned."""
    key_keep_us: int = 7 * 86_400 * SECOND_US

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= 10_000:
            raise BadValue("concurrency", f"must be between 1 and 10,000 (is {self.concurrency})")
        if not self.queues:
            raise BadValue("queues", "must name at least one queue")
        if not 0 <= self.grace_seconds <= 86_400:
            raise BadValue("grace", f"must be between 0 and 86,400 seconds (is {self.grace_seconds})")
        if not 0.01 <= self.poll_seconds <= 60:
            raise BadValue("poll", f"must be between 0.01 and 60 seconds (is {self.poll_seconds})")


def prefetch_count(finished_per_second: float) -> int:
    """How many jobs to lease beyond the free slots."""
    return int(min(finished_per_second * PREFETCH_SECONDS, PREFETCH_ROOT * math.sqrt(finished_per_second)))


def smooth_rate(before: float, now: float) -> float:
    """Follow a falling rate at once and a rising rate by halves, because leasing too many jobs costs more than leasing
    too few."""
    return now if now < before else (before + now) / 2


def jitter(seconds: float, chance: float) -> float:
    """Spread a wait over its second half, so that processes that started together do not poll together."""
    return seconds * (0.5 + chance / 2)


def retry_delay_seconds(failures: int, chance: float) -> float:
    """The pause before the next call to a store that failed this many times in a row."""
    return jitter(min(0.05 * 2 ** min(failures, 10), 2.0), chance)


async def pause(environment: Environment, failures: int) -> None:
    """Wait before the next call to a store that failed this many times in a row."""
    await environment.clock.sleep(retry_delay_seconds(failures, environment.chance.random()))


def emit_unavailable(
    environment: Environment, worker: WorkerId, doing: str, failures: int, error: TransientError
) -> None:
    environment.events.emit("store_unavailable", worker=worker, doing=doing, failures=failures, error=error)
