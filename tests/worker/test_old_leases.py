"""A handler never begins on a lease that is over.

A process that was frozen (SIGSTOP, a suspended machine, a debugger) continues where it was. Whatever waited to start
would start, although other workers run these jobs by now: every effect would happen a second time.
"""

import asyncio
import queue
import threading
from typing import Any

import pytest
from tests.worker.observe import SOON_SECONDS, eventually, record
from tests.worker.test_admission_hazards import Wrapped, lease_of

from leaseway import App, Context, LeaseLost, State, SyncContext
from leaseway.domain.ids import WorkerId
from leaseway.domain.requirements import Requirements
from leaseway.testing.job_store_contract.fixtures import new_job
from leaseway.worker.calls.provider_call import ProviderCall
from leaseway.worker.context import CALL_SECONDS
from leaseway.worker.lease_renewal import LeaseRenewal
from leaseway.worker.ledger_client import UnsettledHolds
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.provider_calls import ProviderCalls
from leaseway.worker.settle import SAFE_UNTIL, Attempt

LEASE_SECONDS = 5.0
JOBS = 10


class Freezer:
    """Stops the process, as its own clock sees it: time passes, and no code runs meanwhile."""

    def __init__(self, app: App) -> None:
        self._seconds = 0.0
        self._clock = app._world.clock
        clock: Any = Wrapped(self._clock, monotonic=lambda: self._clock.monotonic() + self._seconds)
        app._world = app._world._replace(clock=clock)

    def freeze(self, seconds: float) -> None:
        self._seconds += seconds


@pytest.fixture(autouse=True)
def frozen_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that renews leases is frozen together with its process."""
    monkeypatch.setattr(LeaseRenewal, "check", lambda renewal: asyncio.sleep(0))


class Ages:
    """How old the lease of each handler was when it began, as a share of its length."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.seen: list[float] = []

    def note(self, ctx: Context | SyncContext) -> None:
        self.seen.append(ctx._attempt.age(self._app._world.clock.monotonic()))


async def test_what_waits_behind_a_frozen_handler_does_not_begin_on_a_lease_that_is_over(every_app: App) -> None:
    """40 of 40 effects happened twice: the leases were claimed and their tasks created, a handler that does not await
    was frozen for longer than a lease, and the tasks behind it started when it continued."""
    app, freezer, ages = every_app, Freezer(every_app), Ages(every_app)

    @app.job(lease=LEASE_SECONDS, attempts=2)
    async def effect(ctx: Context, n: int) -> None:
        ages.note(ctx)
        if len(ages.seen) == 1:
            freezer.freeze(2 * LEASE_SECONDS)

    jobs = await effect.submit_many([{"n": n} for n in range(JOBS)])
    async with asyncio.timeout(SOON_SECONDS):
        await app.run_worker(until_empty=True, concurrency=JOBS)
    assert max(ages.seen) < 1
    assert len(ages.seen) == JOBS
    records = [await record(app, job) for job in jobs]
    assert {(job.state, job.attempts) for job in records} == {(State.DONE, 1)}, (
        "a job that did not begin used no attempt"
    )


async def test_a_plain_function_does_not_begin_on_a_lease_that_ended_before_its_thread_was_ready(
    every_app: App,
) -> None:
    """A call waits for its thread, and the process may be frozen in between."""
    app, freezer, ages = every_app, Freezer(every_app), Ages(every_app)

    class FrozenQueue(queue.SimpleQueue[Any]):
        frozen = 0

        def get(self, *given: Any) -> Any:
            call = super().get(*given)
            self.frozen += 1
            if self.frozen == 1:
                freezer.freeze(2 * LEASE_SECONDS)
            return call

    @app.job(lease=LEASE_SECONDS, attempts=2)
    def effect(ctx: SyncContext) -> None:
        ages.note(ctx)

    job = await effect.submit()
    worker = app.worker()
    worker._runner.threads._calls = FrozenQueue()
    async with asyncio.timeout(SOON_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(app.run_worker(worker))
        await eventually(lambda: is_done(app, job))
        worker.drain()
    assert (len(ages.seen), max(ages.seen) < 1) == (1, True)
    assert (await record(app, job)).attempts == 1, "an attempt that did not begin was not counted"


async def test_a_plain_function_that_was_stopped_before_its_thread_was_ready_does_not_begin(app: App) -> None:
    """A worker that leaves releases the job, and another worker may run it at once."""
    begun, taken, go = list[str](), threading.Event(), threading.Event()

    class SlowQueue(queue.SimpleQueue[Any]):
        def get(self, *given: Any) -> Any:
            call = super().get(*given)
            taken.set()
            go.wait(SOON_SECONDS)
            return call

    @app.job
    def effect(ctx: SyncContext) -> None:
        begun.append(ctx.id)

    job = await effect.submit()
    worker = app.worker(grace=0)
    worker._runner.threads._calls = SlowQueue()
    async with asyncio.timeout(SOON_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(app.run_worker(worker))
        await asyncio.to_thread(taken.wait, SOON_SECONDS)
        worker.drain()
    go.set()
    await eventually(lambda: asyncio.sleep(0, worker._runner.threads._idle == 1))
    assert begun == []
    assert (await record(app, job)).state is State.PENDING


async def test_no_request_leaves_on_a_lease_that_is_over(app: App) -> None:
    """A handler that was frozen between two calls learns it at the next call, before the request is sent."""
    freezer = Freezer(app)
    holder = LimiterClient(app._world, WorkerId("w"), [])
    lease = lease_of(new_job(1), lease_us=int(LEASE_SECONDS * 1e6))
    attempt = Attempt(lease, app._world.clock.monotonic())
    requirements, unsettled = Requirements("effect", (), (), None), UnsettledHolds(app._world)
    calls = ProviderCalls(attempt, requirements, {}, holder, app._world, unsettled)
    async with ProviderCall(calls, CALL_SECONDS) as call:
        assert call.grant is not None
        assert call.grant.is_valid()
        freezer.freeze((SAFE_UNTIL + 0.01) * LEASE_SECONDS)
        assert not call.grant.is_valid()
    with pytest.raises(LeaseLost, match="the request was not sent"):
        async with ProviderCall(calls, CALL_SECONDS):
            pytest.fail("the request was sent")


async def is_done(app: App, job: Any) -> bool:
    return (await record(app, job)).state is State.DONE
