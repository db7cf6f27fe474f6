"""The state of one limit, as every limiter stores it."""

from collections.abc import Mapping

from msgspec import Struct, field

from leaseway.domain.ids import Instant


class Use(Struct, frozen=True):
    """What calls used of a limit that is logged, and until when it counts in one window."""

    window_us: int
    until: Instant
    amount: int


Uses = tuple[Use, ...]


class Bucket(Struct, frozen=True):
    tat: Instant
    turn: Instant
    """When the next refused caller should come back. Each refusal moves it on, so that callers return one by one."""
    permit_ns: int
    """The pace under which `tat` was written."""


class InFlight(Struct, frozen=True):
    """The calls that one holder has in flight, and until when they are counted."""

    count: int
    until: Instant


class Breaker(Struct, frozen=True, omit_defaults=True):
    """The state of a circuit breaker (`breaker.py`)."""

    failures: int = 0
    """In a row, without an answer between them."""
    failed_at: Instant = 0
    trips: int = 0
    """How often it has opened since it was closed."""
    open_until: Instant = 0
    """After this time one call may leave as a probe. 0: the breaker is closed."""
    probe_until: Instant = 0
    number: int = 0
    """Counts the changes of state. A report of a call that was granted under another number is late."""


CLOSED = Breaker()


class Level(Struct, frozen=True):
    """The state of one limit: a bucket per window, calls in flight, and what the provider reported."""

    buckets: Mapping[int, Bucket] = field(default_factory=dict)
    """By the length of the window, in microseconds."""
    since: Instant = -1
    """The fence under which this was written."""
    blocked_until: Instant = 0
    percent: int = 100
    generation: int = 0
    """Counts throttling events. Many workers report the same event, and it slows the limit once."""
    slowed_at: Instant = 0
    in_flight: Mapping[str, InFlight] = field(default_factory=dict)
    """Calls in flight, by holder; under a limit that is logged, what they have reserved."""
    used: Uses = ()
    """What calls used, if the limit is logged."""
    breaker: Breaker = CLOSED


NEW = Level()
