"""How long a failed job waits for its next attempt."""

from msgspec import Struct

from leaseway.domain.errors import BadValue
from leaseway.domain.ids import SECOND_US


class Backoff(Struct, frozen=True):
    """Exponential, bounded, spread by chance so that jobs that failed together do not return together."""

    first_seconds: float = 1.0
    factor: float = 2.0
    seconds_max: float = 3_600.0
    jitter: float = 0.25
    """The share of the delay that chance may take away: 0 none, 1 all of it."""

    def __post_init__(self) -> None:
        if not 0 <= self.first_seconds <= self.seconds_max:
            raise BadValue("backoff.first_seconds", f"must lie in 0 … seconds_max (is {self.first_seconds})")
        if self.factor < 1:
            raise BadValue("backoff.factor", f"must be at least 1 (is {self.factor})")
        if not 0 <= self.jitter <= 1:
            raise BadValue("backoff.jitter", f"must lie in 0 … 1 (is {self.jitter})")

    def delay_us(self, attempts: int, chance: float) -> int:
        """The wait after this many attempts; `chance` lies in [0, 1)."""
        # The exponent is bounded: a float overflows long after every sensible maximum is reached.
        grown = self.first_seconds * self.factor ** min(max(attempts - 1, 0), 64)
        return int(min(grown, self.seconds_max) * (1 - self.jitter * chance) * SECOND_US)
