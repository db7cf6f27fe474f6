"""A store that does not answer, and signals that arrive late."""

import asyncio
import os
import signal
from typing import Any

import pytest
from tests.worker.observe import SOON_SECONDS

from leaseway import App, TransientError
from leaseway.signals import drained_by_signals


async def test_an_idle_worker_asks_a_store_that_is_away_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fourteen log lines a second per worker during an outage would hide everything else."""
    pauses: list[float] = []
    has_failed = False
    async with App("memory://") as app:
        worker = app.worker(grace=0)
        clock = app._world.clock

        async def away(*_: object) -> int | None:
            nonlocal has_failed
            has_failed = True
            raise TransientError("nobody listens there")

        async def slept(seconds: float) -> None:
            nonlocal has_failed
            if has_failed:  # other tasks sleep, too
                pauses.append(seconds)
                has_failed = False
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
