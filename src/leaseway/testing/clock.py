"""A clock that stands still until a test moves it."""

from leaseway.domain.ids import SECOND_US, Instant

START_US = 1_750_000_000 * SECOND_US
"""June 2025: an instant of realistic size, so that arithmetic overflows in tests if it can overflow at all."""


class FakeClock:
    """Pass `clock.now_us` to a store to control the store's time."""

    def __init__(self, start_us: Instant = START_US) -> None:
        self._now_us = start_us

    def now_us(self) -> Instant:
        return self._now_us

    def advance(self, seconds: float) -> None:
        self.advance_us(round(seconds * SECOND_US))

    def advance_us(self, duration_us: int) -> None:
        self._now_us += duration_us

    def set_us(self, now_us: Instant) -> None:
        """Any instant, also an earlier one: real clocks are set back, too."""
        self._now_us = now_us
