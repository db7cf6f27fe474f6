"""The jobs of the jobs scenario. Each kind depends on one promise; all of them report to the judge."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

from leaseway.domain.errors import TransientError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.kind import Kind, KindDefaults, parse_options
from leaseway.domain.outcome import Backoff, Fail, Snooze
from leaseway.simulation.judge import JUDGE
from leaseway.simulation.process import HERE
from leaseway.simulation.promises import Run
from leaseway.simulation.swarm import LEASE_SECONDS
from leaseway.worker.context import Context
from leaseway.worker.settle import Stop
from leaseway.worker.submit import Bound

BACKOFF = Backoff(first_seconds=0.2, factor=2.0, seconds_max=1.0)
ENDLESS_SECONDS = 600.0
CHECKPOINT_TRIES = 4


class Trouble(Exception):
    """What a failing handler raises."""


@contextmanager
def attempt(ctx: Context) -> Iterator[Run]:
    """Tell the judge when the handler starts, when it is told to stop, and how it ends."""
    judge = JUDGE.get()
    run = judge.started(HERE.get(), ctx.id, ctx.fence, ctx.attempt)
    try:
        yield run
    except asyncio.CancelledError:
        run.heard_at = run.heard_at or asyncio.get_running_loop().time()
        judge.ended(run, end_of(ctx))
        raise
    except BaseException as error:
        judge.ended(run, type(error).__name__)
        raise
    judge.ended(run, "done")


ENDS = {Stop.DRAIN: "drained", Stop.LOST: "lost", Stop.CANCELLED: "cancelled", None: "stopped"}


def end_of(ctx: Context) -> str:
    return ENDS[ctx._attempt.stop]


async def quick(ctx: Context, seconds: float) -> dict[str, Any]:
    """Does one thing. Long ones need several renewals of their lease."""
    with attempt(ctx):
        await asyncio.sleep(seconds / 2)
        ctx.progress(1, 2)
        await asyncio.sleep(seconds / 2)
    return {"fence": ctx.fence}


async def tidy(ctx: Context, seconds: float, tidy_seconds: float) -> dict[str, Any]:
    """Needs a while to clean up when it is stopped."""
    with attempt(ctx) as run:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            run.heard_at = asyncio.get_running_loop().time()
            await asyncio.sleep(tidy_seconds)
            raise
    return {"fence": ctx.fence}


async def steps(ctx: Context, count: int, seconds: float) -> dict[str, Any]:
    """Stores its cursor after every step, and resumes there."""
    with attempt(ctx):
        done = ctx.cursor or 0
        if done:
            JUDGE.get().books.reach("a job went on from its cursor")
        for step in range(done, count):
            await asyncio.sleep(seconds)
            ctx.progress(step + 1, count)
            await keep_place(ctx, step + 1)
    return {"fence": ctx.fence}


async def keep_place(ctx: Context, cursor: int) -> None:
    """Storing a cursor can be repeated, so an unknown outcome is not a failure."""
    for _ in range(CHECKPOINT_TRIES - 1):
        with suppress(TransientError):
            return await ctx.checkpoint(cursor)
        await asyncio.sleep(0.1)
    await ctx.checkpoint(cursor)


async def shaky(ctx: Context, failures: int) -> dict[str, Any]:
    """Fails at first."""
    with attempt(ctx):
        await asyncio.sleep(0.05)
        if ctx.attempt <= failures:
            raise Trouble(f"attempt {ctx.attempt}")
    return {"fence": ctx.fence}


async def hopeless(ctx: Context, at_once: bool) -> None:
    """Never succeeds."""
    with attempt(ctx):
        await asyncio.sleep(0.05)
        if at_once:
            raise Fail("there is no point")
        raise Trouble("as always")


async def sleepy(ctx: Context, times: int, seconds: float) -> dict[str, Any]:
    """Snoozes more often than it has attempts."""
    with attempt(ctx):
        slept = ctx.cursor or 0
        if slept < times:
            await keep_place(ctx, slept + 1)
            raise Snooze(seconds)
    return {"fence": ctx.fence}


async def parent(ctx: Context, children: int, seconds: float) -> dict[str, Any]:
    """Submits other jobs, which must exist if and only if it is done."""
    with attempt(ctx):
        for _ in range(children):
            ctx.submit(bound("quick", {"seconds": 0.1}))
        await asyncio.sleep(seconds)
    return {"fence": ctx.fence}


async def poison(ctx: Context) -> None:
    """Kills its process, every time."""
    with attempt(ctx):
        await asyncio.sleep(0.1)
        HERE.get().crash()
        await asyncio.get_running_loop().create_future()


async def endless(ctx: Context) -> None:
    """Runs until it is cancelled."""
    with attempt(ctx):
        await asyncio.sleep(ENDLESS_SECONDS)


async def tick(ctx: Context, fire_time: str) -> None:
    """Submitted by a schedule."""
    with attempt(ctx):
        await asyncio.sleep(0.05)


def kind_of(function: Any, attempts: int = 4) -> Kind:
    lease_us = int(LEASE_SECONDS * SECOND_US)
    return Kind(function.__name__, function, KindDefaults(attempts=attempts, lease_us=lease_us, backoff=BACKOFF))


FUNCTIONS = (quick, tidy, steps, shaky, hopeless, sleepy, parent, endless, tick)
KINDS = MappingProxyType(
    {function.__name__: kind_of(function) for function in FUNCTIONS} | {"poison": kind_of(poison, 2)}
)


def bound(kind: str, arguments: dict[str, Any], **options: Any) -> Bound:
    return Bound(KINDS[kind], KINDS[kind].encode(arguments), parse_options(options))
