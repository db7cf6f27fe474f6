"""How long a failed job waits for its next attempt."""

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US
from leaseway.domain.times import SECONDS_MAX

FACTOR_MAX = 1_000
DOUBLINGS_MAX = 64
"""Later attempts wait as long as this one: by then every sensible factor has reached the maximum."""


class Backoff(Struct, frozen=True):
    """Exponential, bounded, spread by chance so that jobs that failed together do not return together."""

    first_seconds: float = 1.0
    factor: float = 2.0
    seconds_max: float = 3_600.0
    jitter: float = 0.25
    """The share of the delay that chance may take away: 0 none, 1 all of it."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds_max <= SECONDS_MAX:
            raise BadValue("backoff.seconds_max", f"must lie in 0 … {SECONDS_MAX:,} (is {self.seconds_max})")
        if not 0 <= self.first_seconds <= self.seconds_max:
            raise BadValue("backoff.first_seconds", f"must lie in 0 … seconds_max (is {self.first_seconds})")
        if not 1 <= self.factor <= FACTOR_MAX:
            raise BadValue("backoff.factor", f"must lie in 1 … {FACTOR_MAX:,} (is {self.factor})")
        if not 0 <= self.jitter <= 1:
            raise BadValue("backoff.jitter", f"must lie in 0 … 1 (is {self.jitter})")

    def delay_us(self, attempts: int, chance: float) -> int:
        """The wait after this many attempts; `chance` lies in [0, 1)."""
        seconds = self.first_seconds
        for _ in range(min(attempts - 1, DOUBLINGS_MAX)):
            seconds = min(seconds * self.factor, self.seconds_max)
        return int(seconds * (1 - self.jitter * chance) * SECOND_US)
