"""Virtual time for the jobs of an app: a run over days takes milliseconds.

with virtual_time(app) as time:
    job = await send.submit(to="ada")       # stored in memory, whatever the URL of the app
    time.run_until_empty()                  # limits per day, budgets, retries and delays cost no real time
    assert time.elapsed < timedelta(days=3)
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from leaseway.app import App
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.http import HttpReply, HttpRequest
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.validators import Seconds, parse_duration_us, parse_instant
from leaseway.testing.clock import START_US
from leaseway.virtual_time.skipping_loop import NO_NETWORK
from leaseway.virtual_time.world import VirtualWorld
from leaseway.worker.environment import WorkerSummary
from leaseway.worker.provider_http import AnswerFunction, FunctionTransport

AT_MOST = timedelta(days=100)


@contextmanager
def virtual_time(
    app: App,
    *,
    start: datetime | None = None,
    transport: AnswerFunction | None = None,
    seed: int = 0,
    at_most: Seconds = AT_MOST,
) -> "Iterator[VirtualTime]":
    """Give an app an empty store in memory and a clock that runs only inside `run…`, until the end of the block.

    `start`: the first instant; default: a fixed one in June 2025. `transport`: a function that answers the requests of
    `ctx.http`: it takes an `HttpRequest` and returns an `HttpReply`; there is no network. `seed`: for the jitter of
    retries. `at_most`: a run that takes longer raises TimeoutError and names the jobs that are left. It works in plain
    and in async tests.
    """
    if not isinstance(app, App):
        raise UsageError(f"virtual_time takes an app (is {type(app).__name__})")
    if transport is not None and not callable(transport):
        raise BadValue(
            "transport", f"must be a function of an HttpRequest that returns an HttpReply (is {transport!r})"
        )
    start_us = START_US if start is None else parse_instant("start", start)
    time = VirtualTime(app, start_us, parse_duration_us("at_most", at_most) / SECOND_US)
    with app.using(time.environment(app.world, lambda: FunctionTransport(transport or no_network), seed)):
        try:
            yield time
        finally:
            time.close()


class VirtualTime(VirtualWorld):
    """The clock of a test, and the loop in which its workers run."""

    def __init__(self, app: App, start_us: Instant, at_most_seconds: float) -> None:
        super().__init__(start_us, at_most_seconds)
        self._app = app

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_us() / SECOND_US, UTC)

    @property
    def elapsed(self) -> timedelta:
        """The virtual time since the start."""
        return timedelta(microseconds=self.now_us() - self.start_us)

    def advance(self, duration: Seconds) -> None:
        """Let time pass while no worker runs."""
        self.loop.skip(parse_duration_us("duration", duration) / SECOND_US)

    def run_until_empty(self, **settings: Any) -> WorkerSummary:
        """Run a worker until no unfinished job is left. For the settings see `App.worker`."""
        return self.run(self._app.run_worker(until_empty=True, **settings))

    def run_for(self, duration: Seconds, **settings: Any) -> WorkerSummary:
        """Run a worker for this time, and drain it. Schedules fire meanwhile."""
        return self.run(self._work_for(parse_duration_us("duration", duration) / SECOND_US, settings))

    async def _work_for(self, seconds: float, settings: dict[str, Any]) -> WorkerSummary:
        worker = self._app.worker(**settings)
        async with asyncio.TaskGroup() as group:
            work = group.create_task(self._app.run_worker(worker))
            await self.sleep(seconds)
            worker.drain()
        return work.result()


def no_network(request: HttpRequest) -> HttpReply:
    raise UsageError(f"{request!r}: {NO_NETWORK}")
