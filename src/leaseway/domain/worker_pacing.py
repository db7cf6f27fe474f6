"""How much a worker takes at once, and how long it waits when there is nothing."""

import math

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US

PREFETCH_SECONDS = 0.1
"""Jobs are leased ahead of their start only as far as the worker gets in this time."""
PREFETCH_ROOT = 5.0
"""Fast workers look ahead less far: by the root of their rate, so that a lead over others shrinks and does not grow."""
STALE_SHARE = 1 / 3
"""A leased job that has not started after this share of its lease goes back to the others."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 20
    grace_seconds: float = 30.0
    """How long running jobs may go on after the first signal to stop."""
    poll_seconds: float = 1.0
    """The longest time between two looks into the store when nothing hints at work."""
    settle_batch: int = 500
    settle_linger_seconds: float = 0.005
    """A settlement waits this long for company, if other jobs are running."""
    until_empty: bool = False
    keep_us: int = 7 * 86_400 * SECOND_US
    """Finished jobs are pruned when they are older than this."""
    key_keep_us: int = 7 * 86_400 * SECOND_US

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= 10_000:
            raise BadValue("concurrency", f"must lie in 1 … 10,000 (is {self.concurrency})")
        if not self.queues:
            raise BadValue("queues", "name at least one")
        if not 0 <= self.grace_seconds <= 86_400:
            raise BadValue("grace", f"must lie in 0 … 86,400 seconds (is {self.grace_seconds})")
        if not 0.01 <= self.poll_seconds <= 60:
            raise BadValue("poll", f"must lie in 0.01 … 60 seconds (is {self.poll_seconds})")


def prefetch_count(finished_per_second: float) -> int:
    """How many jobs to lease beyond the free slots: what this worker starts within a moment."""
    return int(min(finished_per_second * PREFETCH_SECONDS, PREFETCH_ROOT * math.sqrt(finished_per_second)))


def smooth_rate(before: float, now: float) -> float:
    """A rate that follows a fall at once and a rise by halves: leasing too much is the worse mistake."""
    return now if now < before else (before + now) / 2


def jitter(seconds: float, chance: float) -> float:
    """Spread over the second half, so that processes that started together do not poll together."""
    return seconds * (0.5 + chance / 2)


def retry_delay_seconds(failures: int, chance: float) -> float:
    """The pause before a call to a store that failed this often in a row."""
    return jitter(min(0.05 * 2 ** min(failures, 10), 2.0), chance)
