"""A worker reports itself to the store, and stops if an operator asks it to."""

import asyncio
from typing import Any

import pytest

from leaseway import App, TransientError
from leaseway.domain.ids import WorkerId
from leaseway.domain.workers import BEAT_SECONDS, LOST_AFTER_US, Heartbeat, HeartbeatReply, WorkerState
from leaseway.ports.store import require_workers
from leaseway.worker.environment import WorkTally
from leaseway.worker.lease_renewal import BEAT_OVERDUE_SECONDS, Heartbeats


async def test_an_idle_worker_is_listed_until_it_stops() -> None:
    """A fleet without work must not look like no fleet, and a deployment must not leave lost workers behind."""
    async with App("memory://") as app:

        @app.job
        async def resize(name: str) -> None: ...

        reported, registry = asyncio.Event(), require_workers(await app.store())
        send, worker = registry.beat, app.worker(concurrency=7)

        async def notice(beat: Heartbeat) -> HeartbeatReply:
            reply = await send(beat)
            reported.set()
            return reply

        registry.beat = notice  # type: ignore[method-assign]
        running = asyncio.ensure_future(app.run_worker(worker))
        async with asyncio.timeout(60):
            await reported.wait()
            (listed,) = await registry.all()
            assert (listed.name, listed.state) == (worker.id, WorkerState.IDLE)
            assert (listed.beat.kinds, listed.beat.queues, listed.beat.slots) == (("resize",), ("default",), 7)
            assert f"{listed.beat.host}:{listed.beat.pid}:" in worker.id
            worker.drain()
            await running
        assert await registry.all() == []


async def test_a_worker_drains_when_an_operator_asks_for_it() -> None:
    """The operator may have no access to the machine."""
    async with App("memory://") as app:
        worker = app.worker(queues=["default"])
        beats = Heartbeats(await app.store(), app._world.clock, worker._describe, WorkTally(worker.id))
        asked: list[None] = []
        beats.drain = lambda: asked.append(None)
        await beats.send()
        assert asked == []
        assert await require_workers(await app.store()).drain(worker.id)
        await beats.send()
        await beats.send()
        assert len(asked) == 1, "a second request would shorten the grace period"


async def test_the_thread_reports_a_worker_whose_loop_is_blocked() -> None:
    """A handler that blocks the loop for a minute is slow, not lost."""
    async with App("memory://") as app:
        registry, clock = require_workers(await app.store()), MovedClock()
        beats = Heartbeats(
            await app.store(), clock, lambda uptime: Heartbeat(worker=WorkerId("a")), WorkTally(WorkerId("a"))
        )
        await beats.send_overdue()
        assert await registry.all() == [], "the loop sends them while it can"
        clock.seconds += BEAT_OVERDUE_SECONDS + 0.1
        await beats.send_overdue()
        assert len(await registry.all()) == 1


def test_a_killed_worker_is_lost_within_twenty_seconds() -> None:
    """An operator who watches the page must see it, and one late heartbeat must not look like a death."""
    assert 2 * BEAT_SECONDS < LOST_AFTER_US / 1e6 <= 20
    assert BEAT_OVERDUE_SECONDS + BEAT_SECONDS <= LOST_AFTER_US / 1e6


class MovedClock:
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall_us(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


async def test_a_worker_ends_although_a_driver_swallows_its_cancellation() -> None:
    """`asyncio.wait_for` of Python 3.11 may swallow one, and pymongo writes with it. If the heartbeats go on, a fleet
    or a deployment has to kill a worker that holds nothing."""
    async with App("memory://") as app:
        registry, called = require_workers(await app.store()), asyncio.Event()
        swallowed: list[asyncio.CancelledError] = []
        send, worker = registry.beat, app.worker(queues=["default"], grace=0)

        async def swallow_one(beat: Heartbeat) -> HeartbeatReply:
            called.set()
            if not swallowed:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError as error:
                    swallowed.append(error)
            return await send(beat)

        registry.beat = swallow_one  # type: ignore[method-assign]
        running = asyncio.ensure_future(app.run_worker(worker))
        async with asyncio.timeout(30):
            await called.wait()
            worker.drain()
            await running
        assert swallowed


@pytest.mark.parametrize("where", ["heartbeat", "exchange", "failed exchange"])
async def test_a_cancelled_worker_ends_although_a_driver_swallows_the_cancellation(where: str) -> None:
    """A program that cancels its worker waits for it. The task of the worker itself may be in the call."""
    async with App("memory://") as app:
        store, called, swallowed = await app.store(), asyncio.Event(), asyncio.Event()
        owner, name = (require_workers(store), "beat") if where == "heartbeat" else (store.jobs, "exchange")
        send = getattr(owner, name)

        async def swallow_one(call: Any) -> Any:
            if not called.is_set():
                called.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    swallowed.set()
            if where == "failed exchange":
                raise TransientError("the store is away")
            return await send(call)

        setattr(owner, name, swallow_one)
        running = asyncio.ensure_future(app.run_worker(queues=["default"]))
        async with asyncio.timeout(60):
            await called.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert swallowed.is_set()
