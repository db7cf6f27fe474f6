"""A store that does not answer, and signals that arrive late."""

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.worker.observe import SOON_SECONDS, eventually

from leaseway import App, TransientError
from leaseway.domain.exchange import Exchange, ExchangeReply
from leaseway.signals import drained_by_signals
from leaseway.worker import loop


async def test_an_idle_worker_asks_a_store_that_is_away_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fourteen log lines a second per worker during an outage would hide everything else."""
    pauses: list[float] = []
    failed_in: asyncio.Task[object] | None = None
    async with App("memory://") as app:
        worker = app.worker(grace=0)
        clock = app._world.clock

        async def away(*_: object) -> int | None:
            nonlocal failed_in
            failed_in = asyncio.current_task()
            raise TransientError("nobody listens there")

        async def slept(seconds: float) -> None:
            nonlocal failed_in
            if failed_in is asyncio.current_task():  # other tasks and the thread that renews leases sleep, too
                pauses.append(seconds)
                failed_in = None
            if len(pauses) == 12:
                worker.drain()
            await asyncio.sleep(0)

        monkeypatch.setattr((await app.store()).jobs, "wait_us", away)
        monkeypatch.setattr(clock, "sleep", slept)
        async with asyncio.timeout(SOON_SECONDS):
            await app.run_worker(worker)
    assert pauses[0] <= 0.1
    assert min(pauses[8:]) >= 1.0


async def test_a_signal_that_finds_everything_over_is_nobodys_error() -> None:
    """A supervisor that signals a process and its group sends two signals, and the second may arrive after the worker
    has stopped.
    """
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
    async with App("memory://") as app:
        worker = app.worker()
        async with asyncio.timeout(None) as scope:  # noqa: ASYNC100 - it is what a worker is run in
            with drained_by_signals(worker, scope):
                os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert complaints == []


async def test_a_leaving_worker_sends_each_settlement_once_in_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that timed out was put back twice. The next one contained the same settlements twice, and its size
    doubled with every timeout."""
    sent: list[Exchange] = []
    async with App("memory://") as app:
        worker, jobs = app.worker(grace=0), (await app.store()).jobs
        real = jobs.exchange

        async def hanging(call: Exchange) -> ExchangeReply:
            if not call.settlements or len(sent) > 1:
                return await real(call)
            sent.append(call)
            return await asyncio.Event().wait()  # type: ignore[return-value]

        @app.job
        async def stuck() -> None:
            try:
                await asyncio.Event().wait()
            finally:  # the worker flushes the settlements of others while it waits for this one
                await eventually(lambda: asyncio.sleep(0, len(sent) > 1))

        @app.job
        async def other() -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(jobs, "exchange", hanging)
        monkeypatch.setattr(loop, "STUBBORN_SECONDS", 0.2)
        await stuck.submit()
        await other.submit()
        async with asyncio.timeout(SOON_SECONDS), asyncio.TaskGroup() as group:
            group.create_task(app.run_worker(worker))
            await eventually(lambda: asyncio.sleep(0, len(worker._slots.running) == 2))
            worker.drain()
    assert len(sent) > 1
    for call in sent:
        assert len({each.id for each in call.settlements}) == len(call.settlements), "a settlement is sent twice"
