"""Hints that there may be work. They may be late, lost or wrong: workers poll as well."""

from typing import Protocol


class Notifications(Protocol):
    async def wait(self, seconds: float) -> bool:
        """Return True soon after any process has written, and False after this time at the latest."""
        ...
