"""Time and chance, so that a simulation can own both."""

from typing import Protocol

from leaseway.domain.ids import Instant, JobId, Token, WorkerId


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back and go on while the machine is suspended. Only differences mean anything."""
        ...

    def wall_us(self) -> Instant:
        """What the machine's own clock says: to understand instants that others name, never to decide anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after this time. May be cancelled."""
        ...


class Chance(Protocol):
    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class Ids(Protocol):
    def job(self) -> JobId:
        """A new id, larger than every id that this object gave before."""
        ...

    def token(self) -> Token:
        """At least 122 random bits."""
        ...

    def worker(self) -> WorkerId:
        """Names host and process for people, and is never given twice."""
        ...
