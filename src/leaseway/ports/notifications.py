"""Hints that there may be work. They may be late, lost or wrong: a poll is always on beside them."""

from typing import Protocol


class Wakeups(Protocol):
    async def wait(self, seconds: float) -> bool:
        """Return True soon after something was written by anybody, False after this time at the latest."""
        ...
