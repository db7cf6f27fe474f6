"""The jobs of the campaign. Each kind has a required outcome, and each handler records when it starts and ends."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from chaos.history import Ended, Journal, Started
from leaseway import App, Backoff, Bound, Context, Fail, LeaseLost, Snooze, SyncContext, TransientError
from leaseway.ports.telemetry import Events

ATTEMPTS_PLENTY = 1_000
"""More attempts than kills can use up: a job that ends failed is a violation, unless it is of the kind that must fail.
"""
CHILD = "child"
ENDS = {"doomed": "failed"}
"""The required outcome of a kind; every other kind must be done."""
BACKOFF = Backoff(first_seconds=0.1, seconds_max=1.0)


class Jobs:
    """An app whose handlers record what they do. `by` is the process in which they run."""

    def __init__(self, url: str, lease_seconds: float, journal: Journal, by: str, events: Events | None = None) -> None:
        self.app = App(url, events=events)
        self._lease_seconds = lease_seconds
        self._journal = journal
        self._by = by
        self._declare_short()
        self._declare_long()
        self._declare_family()

    def _job(self, function: Callable[..., Any]) -> Any:
        return self.app.job(lease=self._lease_seconds, attempts=ATTEMPTS_PLENTY, backoff=BACKOFF)(function)

    @contextmanager
    def _recorded(self, ctx: Context | SyncContext) -> Iterator[dict[str, Any]]:
        """Wraps a handler's body; yields the value that the handler must return, so that a result names its attempt."""
        started = Started(
            job=ctx.id, kind=ctx.kind, fence=ctx.fence, attempt=ctx.attempt, cursor=ctx.cursor if ctx.cursor else 0
        )
        self._journal.write(started)
        how = "failed"
        try:
            yield {"fence": ctx.fence, "by": self._by}
            how = "done"
        except (asyncio.CancelledError, LeaseLost):
            how = "stopped"
            raise
        except Snooze:
            how = "snoozed"
            raise
        finally:
            self._journal.write(Ended(job=ctx.id, fence=ctx.fence, how=how))

    def _declare_short(self) -> None:
        @self._job
        async def quick(ctx: Context, label: str, seconds: float) -> dict[str, Any]:
            with self._recorded(ctx) as result:
                await asyncio.sleep(seconds)
                return result

        @self._job
        async def flaky(ctx: Context, label: str, failures: int) -> dict[str, Any]:
            with self._recorded(ctx) as result:
                await asyncio.sleep(0.02)
                if ctx.attempt <= failures:
                    raise RuntimeError("as planned")
                return result

        @self._job
        async def doomed(ctx: Context, label: str) -> None:
            with self._recorded(ctx):
                await asyncio.sleep(0.02)
                raise Fail("as planned")

        @self._job
        async def snoozing(ctx: Context, label: str, until: float) -> dict[str, Any]:
            with self._recorded(ctx) as result:
                if time.time() < until:
                    raise Snooze(0.3)
                return result

    def _declare_long(self) -> None:
        @self._job
        async def long(ctx: Context, label: str, seconds: float) -> dict[str, Any]:
            with self._recorded(ctx) as result:
                await asyncio.sleep(seconds)
                return result

        @self._job
        def plain(ctx: SyncContext, label: str, seconds: float) -> dict[str, Any]:
            with self._recorded(ctx) as result:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    if ctx.cancelled:
                        raise LeaseLost("told to stop")
                    time.sleep(0.02)
                return result

        @self._job
        async def paged(ctx: Context, label: str, pages: int, seconds: float) -> dict[str, Any]:
            with self._recorded(ctx) as result:
                for page in range((ctx.cursor or 0) + 1, pages + 1):
                    await asyncio.sleep(seconds)
                    await checkpointed(ctx, page)
                return result

    def _declare_family(self) -> None:
        @self._job
        async def child(ctx: Context, parent: str, index: int, fence: int) -> dict[str, Any]:
            with self._recorded(ctx) as result:
                await asyncio.sleep(0.01)
                return result

        @self._job
        async def parent(ctx: Context, label: str, children: int) -> dict[str, Any]:
            with self._recorded(ctx) as result:
                for index in range(children):
                    ctx.submit(child.bind(parent=ctx.id, index=index, fence=ctx.fence))
                await asyncio.sleep(0.05)
                return result


async def checkpointed(ctx: Context, page: int) -> None:
    """Repeat after a transient error: the first call may still be in transit, and must not take effect afterwards."""
    for _ in range(3):
        try:
            return await ctx.checkpoint(page)
        except TransientError:
            await asyncio.sleep(0.1)
    await ctx.checkpoint(page)


class Planned(NamedTuple):
    """A job that a submitter is about to submit."""

    kind: str
    arguments: dict[str, Any]
    options: dict[str, Any]

    def bound(self, app: App, label: str, **options: Any) -> Bound:
        return app.bind(self.kind, {"label": label, **self.arguments}, **self.options, **options)


def any_job(chance: random.Random, lease_seconds: float) -> Planned:
    """Mostly short jobs: a few long ones would fill every slot and hide whether jobs make progress."""
    kind = chance.choices(list(MIX), weights=[share for share, _ in MIX.values()])[0]
    arguments = MIX[kind][1](chance, lease_seconds)
    options = {"delay": chance.uniform(0.1, 2)} if kind == "quick" and chance.random() < 0.1 else {}
    return Planned(kind, arguments, options)


MIX: dict[str, tuple[int, Callable[[random.Random, float], dict[str, Any]]]] = {
    "quick": (600, lambda chance, lease: {"seconds": chance.choices([0.02, 0.2, lease / 2], [50, 50, 3])[0]}),
    "flaky": (80, lambda chance, lease: {"failures": chance.randint(1, 2)}),
    "doomed": (20, lambda chance, lease: {}),
    "snoozing": (20, lambda chance, lease: {"until": time.time() + 0.5}),
    "parent": (60, lambda chance, lease: {"children": chance.randint(1, 3)}),
    "paged": (15, lambda chance, lease: {"pages": 8, "seconds": lease / 8}),
    "long": (6, lambda chance, lease: {"seconds": lease * chance.uniform(1.2, 2)}),
    "plain": (3, lambda chance, lease: {"seconds": lease * chance.uniform(1.2, 2)}),
}
"""The share of each kind, in thousandths or so, and its arguments."""
