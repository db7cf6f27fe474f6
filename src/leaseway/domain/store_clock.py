"""The store's clock: it follows the machine's clock forward, but does not go back with it.

    the machine's clock ─► [hold] ─► the time that leases, retries, schedules and limits are judged by

A clock that is set back by ten minutes would stop everything that was stamped before for ten minutes: limits stay
closed, retries and schedules wait. The store's clock goes on instead, and loses a tenth of its pace until the machine's
clock has caught up. It therefore advances by at least nine tenths of the time that passes.

A clock that was set forward by mistake and is set back looks the same. So that the store does not stay in the future
for long, it holds its time for an hour at most, and makes up for it in ten hours. A clock that is set back by more is
followed.

Ticks are microseconds of a clock that nobody can set. SQLite and memory compare the machine's clock with them.
PostgreSQL and Redis implement the same rule in SQL and Lua, without ticks: the clients of PostgreSQL watch its clock
with theirs (`ClockWatch`), and Redis remembers the last time that it has used.
"""

from msgspec import Struct

from leaseway.domain.ids import SECOND_US, Instant

STEP_US_MAX = SECOND_US
"""A smaller step is followed. It is not recorded, so one forward and one back can add up to twice this."""
HELD_US_MAX = 3_600 * SECOND_US
RECENT_SECONDS = 1.0
"""How long an observation of a store's clock is good for an estimate."""
SLOWER = 10
"""While time is held, one in this many microseconds is left out."""


class ClockState(Struct, frozen=True):
    ahead_us: int
    """The machine's clock minus ticks; while time is held, the store's clock minus ticks when that began."""
    held_since: int | None = None
    """In ticks; None: the store's clock is the machine's."""


def start_clock(wall: Instant, ticks: int, seen: Instant = 0) -> ClockState:
    """`seen`: the newest time that is stored."""
    if STEP_US_MAX < seen - wall <= HELD_US_MAX:
        return ClockState(seen - ticks, ticks)
    return ClockState(wall - ticks)


def advance_clock(state: ClockState, wall: Instant, ticks: int) -> tuple[Instant, ClockState]:
    """The time, and the state from now on: the same object if it has not changed."""
    since = ticks if state.held_since is None else state.held_since
    held = ticks + state.ahead_us - (ticks - since) // SLOWER
    back_us = held - wall
    if back_us > HELD_US_MAX or (state.held_since is not None and back_us <= 0):
        return wall, ClockState(wall - ticks)
    if state.held_since is not None:
        return held, state
    if back_us > STEP_US_MAX:
        return held, ClockState(state.ahead_us, ticks)
    return wall, state if back_us >= -STEP_US_MAX else ClockState(wall - ticks)


class ClockWatch:
    """Watches a store's clock with the monotonic clock of this process."""

    def __init__(self) -> None:
        self._instant: Instant | None = None
        self._received = 0.0
        self._may_estimate = False

    def least_now(self, sent: float) -> Instant | None:
        """What the store's clock must have reached when a call is sent; None before the first observation."""
        if self._instant is None:
            return None
        passed_us = int((sent - self._received) * SECOND_US)
        return self._instant + passed_us - passed_us // SLOWER

    def estimate(self, now: float) -> Instant | None:
        """The store's time, as long as the last observation is recent: clocks differ by less than a millisecond in this
        time. None: it must be asked.
        """
        if self._instant is None or not self._may_estimate or now - self._received > RECENT_SECONDS:
            return None
        return self._instant + int((now - self._received) * SECOND_US)

    def forget(self) -> None:
        """No estimate until the next observation: another server may answer then."""
        self._may_estimate = False

    def observe(self, instant: Instant, received: float) -> None:
        self._instant, self._received, self._may_estimate = instant, received, True
