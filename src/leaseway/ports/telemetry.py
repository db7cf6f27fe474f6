"""Events and traces: what happened, and which request or job caused it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from leaseway.domain.job import Lease, NewJob
from leaseway.domain.outcome import Outcome


class TracedAttempt(Protocol):
    def end(self, outcome: Outcome) -> None:
        """What became of it."""
        ...


class Served(Protocol):
    def end(self, route: str | None, status: int, facts: Mapping[str, str]) -> None:
        """What became of it; the route as it is declared, None: no route was reached."""
        ...


class Tracing(Protocol):
    """None of these raises or waits; what happens inside passes through."""

    @property
    def has_traces(self) -> bool:
        """Whether anything is traced: otherwise only log lines learn of it."""
        ...

    def submitting(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        """Around one submission: the same jobs, which say from now on where they came from."""
        ...

    def origin(self) -> str | None:
        """What goes on at present, as `NewJob.trace` has it."""
        ...

    def running(self, lease: Lease, origin: str | None) -> AbstractContextManager[TracedAttempt]:
        """Around one attempt of a job that came from there."""
        ...

    def serving(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Served]:
        """Around one request to the service, with the headers that the client sent."""
        ...


class Events(Protocol):
    def emit(self, name: str, /, **facts: object) -> None:
        """Never raises, never waits."""
        ...
