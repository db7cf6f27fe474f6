"""A replica set of three loses its primary under load: nothing that was acknowledged is lost, nothing is done twice."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import pytest
from msgspec.structs import replace
from tests.mongodb_collections import empty_schema

from leaseway.domain.errors import TransientError
from leaseway.domain.exchange import Exchange, ExchangeReply, Wants
from leaseway.domain.ids import JobId, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Settlement, State
from leaseway.ports.store import require_inspection
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.job_store_contract.fixtures import new_job
from leaseway.testing.mongodb import ELECTED_SECONDS_MAX, MongoReplicaSet, MongoServer, mongodb_replica_set
from leaseway.testing.server import wait_until

pytestmark = pytest.mark.timeout(300)

BATCH = 5
DONE_BEFORE = 40
"""How many jobs are done before the fault, so that it meets running work."""
DONE_AFTER = 40


@pytest.fixture(scope="module")
def members() -> Iterator[MongoReplicaSet]:
    with mongodb_replica_set() as members:
        yield members


@pytest.fixture
async def store(members: MongoReplicaSet) -> AsyncIterator[MongoStore]:
    members.await_primary()
    store = MongoStore(members.url)
    await store.open()
    await empty_schema(store.connections)
    yield store
    await store.close()


class Load:
    """A submitter and workers that repeat what has failed, as the real ones do, and remember every acknowledgement."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store
        self.acknowledged: list[JobId] = []
        self.accepted: Counter[JobId] = Counter()
        self.failures = 0
        self._is_submitting = True
        self._numbers = itertools.count(1)
        self._progress = asyncio.Condition()

    async def submit(self) -> None:
        while self._is_submitting:
            jobs = [new_job(next(self._numbers)) for _ in range(BATCH)]
            await self._insist(partial(self._store.jobs.submit, jobs))
            self.acknowledged += [job.id for job in jobs]
            await asyncio.sleep(0.01)

    async def work(self, name: str) -> None:
        settled: tuple[Settlement, ...] = ()
        for number in itertools.count():
            wants = Wants(("default",), 2 * BATCH, Token(f"{name}-{number}"))
            reply = await self._exchange(Exchange(WorkerId(name), settled, wants))
            async with self._progress:
                self.accepted.update(each.id for each in settled if each.id not in reply.lost)
                self._progress.notify_all()
            settled = tuple(
                Settlement(id=lease.id, token=lease.token, state=State.DONE, result="1") for lease in reply.leases
            )
            if not settled and self._is_drained():
                return
            await asyncio.sleep(0.01)

    async def _exchange(self, call: Exchange) -> ExchangeReply:
        while True:
            try:
                return await self._store.jobs.exchange(call)
            except TransientError:
                self.failures += 1
                call = replace(call, repeat=True)
                await asyncio.sleep(0.05)

    async def _insist(self, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await call()
            except TransientError:
                self.failures += 1
                await asyncio.sleep(0.05)
            else:
                return

    async def until_done(self, count: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: len(self.accepted) >= count)

    def stop_submitting(self) -> None:
        self._is_submitting = False

    def _is_drained(self) -> bool:
        return not self._is_submitting and len(self.accepted) >= len(self.acknowledged)


async def kill_primary(members: MongoReplicaSet) -> Callable[[], None]:
    primary = members.primary()
    await asyncio.to_thread(primary.kill)
    return primary.start


async def step_down(members: MongoReplicaSet) -> Callable[[], None]:
    primary = members.primary()
    await asyncio.to_thread(primary.command, {"replSetStepDown": 5, "force": True})
    return lambda: None


async def pause_primary(members: MongoReplicaSet) -> Callable[[], None]:
    """It still believes that it is the primary when it goes on, after the others have elected another one."""
    primary: MongoServer = members.primary()
    primary.pause()
    return primary.resume


async def lose_majority(members: MongoReplicaSet) -> Callable[[], None]:
    """The primary is alive and alone, so it gives up its role: nothing can be written until another member is back."""
    primary = members.primary()
    others = [member for member in members.members if member is not primary]
    for member in others:
        await asyncio.to_thread(member.kill)
    assert await asyncio.to_thread(wait_until, lambda: not primary.is_primary(), ELECTED_SECONDS_MAX)
    for member in others:
        member.start()
    return lambda: None


async def cut_power(members: MongoReplicaSet) -> Callable[[], None]:
    await asyncio.to_thread(members.kill)
    for member in members.members:
        member.start()
    return lambda: None


SLOW = [pytest.param(fault, marks=pytest.mark.slow) for fault in (lose_majority, cut_power)]


@pytest.mark.parametrize("fault", [kill_primary, step_down, pause_primary, *SLOW])
async def test_no_acknowledged_job_is_lost_and_none_is_done_twice(
    fault: Callable[[MongoReplicaSet], Awaitable[Callable[[], None]]],
    members: MongoReplicaSet,
    store: MongoStore,
) -> None:
    """An election happens whenever a server is updated. Submitters and workers see errors and repeat their calls."""
    load = Load(store)
    async with asyncio.TaskGroup() as tasks:
        submitting = tasks.create_task(load.submit())
        for number in range(2):
            tasks.create_task(load.work(f"worker-{number}"))
        await load.until_done(DONE_BEFORE)
        mend = await fault(members)
        await asyncio.to_thread(members.await_primary)
        await load.until_done(len(load.accepted) + DONE_AFTER)
        mend()  # in this thread: a server ends with the thread that has started it
        load.stop_submitting()
        await submitting
    assert load.accepted == Counter(load.acknowledged), "each job that was acknowledged was done once"
    stored = {job.id for job in await store.reads.jobs(JobFilter(states=(State.DONE,)), limit=1_000)}
    assert set(load.acknowledged[-900:]) <= stored
    found = {finding.check: finding for finding in await require_inspection(store).health(deep=True)}
    assert "correct counters" in found["counters"].text
