"""The guarantees of the list of workers, as tests that every store must pass. Used like `job_store_contract`, with the
same fixtures.
"""

from typing import Any

from msgspec.structs import replace

from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.limits.learnt_use import LearntEstimate
from leaseway.domain.workers import (
    FORGET_AFTER_US,
    LOST_AFTER_US,
    TENANT_WORKERS_MAX,
    Heartbeat,
    HeartbeatReply,
    WorkerState,
)
from leaseway.ports.store import Store, require_workers
from leaseway.testing.clock import FakeClock


def heartbeat(name: str = "vm:42:a", **facts: Any) -> Heartbeat:
    values: dict[str, Any] = {"host": "vm", "pid": 42, "queues": ("default", "mail"), "kinds": ("send",), "slots": 20}
    return Heartbeat(worker=WorkerId(name), **values | facts)


async def states(store: Store) -> dict[str, WorkerState]:
    return {each.name: each.state for each in await require_workers(store).all()}


async def test_a_worker_is_listed_as_it_reported_itself(store: Store, clock: FakeClock) -> None:
    """An operator who sees no worker starts another one, and every explanation of a wait would be wrong."""
    workers, started_at = require_workers(store), clock.now_us() - 3 * SECOND_US
    estimates = (LearntEstimate("send", "tpm", 4_100, 200),)
    reported = heartbeat(version="1.2", used=7, uptime_us=3 * SECOND_US, estimates=estimates)
    assert await workers.beat(reported) == HeartbeatReply(clock.now_us(), False)
    (found,) = await workers.all()
    assert (found.beat, found.since, found.seen_at, found.now) == (
        reported, started_at, clock.now_us(), clock.now_us(),
    )  # fmt: skip
    assert found.state is WorkerState.RUNNING


async def test_a_heartbeat_replaces_the_one_before(store: Store, clock: FakeClock) -> None:
    """The list shows the present, and a restart of the service must not reset the time since when a worker runs."""
    workers = require_workers(store)
    await workers.beat(heartbeat(used=1))
    started_at = clock.now_us()
    clock.advance(5)
    await workers.beat(heartbeat(used=0, uptime_us=5 * SECOND_US))
    (found,) = await workers.all()
    assert (found.since, found.seen_at, found.state) == (started_at, clock.now_us(), WorkerState.IDLE)


async def test_a_silent_worker_is_lost(store: Store, clock: FakeClock) -> None:
    """A killed worker says nothing. It must not be counted as one that could run jobs."""
    workers = require_workers(store)
    await workers.beat(heartbeat("a"))
    await workers.beat(heartbeat("b", is_draining=True))
    clock.advance(LOST_AFTER_US / SECOND_US)
    assert await states(store) == {"a": WorkerState.IDLE, "b": WorkerState.DRAINING}
    clock.advance(0.001)
    assert set((await states(store)).values()) == {WorkerState.LOST}
    await workers.beat(heartbeat("a"))
    assert await states(store) == {"a": WorkerState.IDLE, "b": WorkerState.LOST}


async def test_a_worker_that_has_stopped_is_not_listed(store: Store) -> None:
    """Every deployment would leave a list of lost workers behind."""
    workers = require_workers(store)
    await workers.beat(heartbeat("a"))
    await workers.beat(heartbeat("b"))
    await workers.leave(WorkerId("a"))
    await workers.leave(WorkerId("unknown"))
    assert list(await states(store)) == ["b"]


async def test_lost_workers_are_forgotten_when_one_starts(store: Store, clock: FakeClock) -> None:
    """The list must not grow by every worker that was ever killed."""
    workers = require_workers(store)
    await workers.beat(heartbeat("a"))
    clock.advance(FORGET_AFTER_US / SECOND_US)
    await workers.beat(heartbeat("b"))
    assert list(await states(store)) == ["a", "b"]
    clock.advance(1)
    await workers.beat(heartbeat("b"))
    assert list(await states(store)) == ["a", "b"]
    await workers.beat(heartbeat("c"))
    assert list(await states(store)) == ["b", "c"]


async def test_a_worker_learns_that_it_should_stop(store: Store) -> None:
    """An operator drains a worker from any machine, and the others continue."""
    workers = require_workers(store)
    await workers.beat(heartbeat("a"))
    await workers.beat(heartbeat("b"))
    assert await workers.drain(WorkerId("a"))
    assert not await workers.drain(WorkerId("unknown"))
    assert await states(store) == {"a": WorkerState.DRAINING, "b": WorkerState.IDLE}
    assert (await workers.beat(heartbeat("a"))).drain
    assert (await workers.beat(heartbeat("a"))).drain
    assert not (await workers.beat(heartbeat("b"))).drain


async def test_a_tenant_cannot_fill_the_list(store: Store) -> None:
    """A tenant names its workers, and could invent new names for ever."""
    workers = require_workers(store)
    new = heartbeat(tenant="acme")
    for number in range(TENANT_WORKERS_MAX):
        await workers.beat(replace(new, worker=WorkerId(f"acme/{number:03}")))
    await workers.beat(replace(new, worker=WorkerId("acme/more")))
    await workers.beat(heartbeat("vm:1:a"))
    assert (await states(store)).keys() >= {"vm:1:a", "acme/000"}
    assert len(await workers.all("acme")) == TENANT_WORKERS_MAX
    assert await workers.all("globex") == []
