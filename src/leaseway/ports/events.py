"""What happened, for logs, metrics and tests."""

from typing import Protocol


class Events(Protocol):
    def emit(self, name: str, /, **facts: object) -> None:
        """Never raises, never waits."""
        ...
