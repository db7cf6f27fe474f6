"""A claim that the store has granted and whose reply does not arrive: the event loop is blocked, or the connection is
slow.

The test controls requests and replies of the worker's claims, moves the clock that worker and store share, and runs the
lease renewal, which has its own connection to the store.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from tests.worker.observe import eventually

from leaseway.domain.errors import UnknownOutcome
from leaseway.domain.exchange import Exchange, ExchangeReply, Wants
from leaseway.domain.ids import SECOND_US, Instant, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import Job, State
from leaseway.domain.kind import Kind, KindDefaults
from leaseway.ports.store import Store
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.memory.store import MemoryStore
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.system import SystemChance, SystemIds
from leaseway.telemetry.log import LogEvents
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import done, id_of, new_job
from leaseway.worker.context import Context
from leaseway.worker.environment import Environment, WorkerSettings, WorkerSummary
from leaseway.worker.lease_renewal import LeaseRenewal
from leaseway.worker.loop import Worker
from leaseway.worker.settle import RELEASE_AFTER, Attempt
from leaseway.worker.slots import Claim

LEASE_SECONDS = 10.0
LATE_SECONDS = RELEASE_AFTER * LEASE_SECONDS
JOB = id_of(1)


class Clock:
    """Returns the store's time, which the test moves. Sleeps are short, whatever their duration."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.now_us() / SECOND_US

    def wall_us(self) -> Instant:
        return self._clock.now_us()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


class Way:
    """The store behind a connection that the test can block for claims in either direction. Other calls pass
    through.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs = store.jobs
        self.jobs = self
        self.claims: list[Wants] = []
        """The claims as they were sent, each with its count."""
        self.there, self.back = asyncio.Event(), asyncio.Event()
        self.there.set()
        self.back.set()
        self.sent, self.granted = asyncio.Event(), asyncio.Event()
        self.replies_to_lose = 0
        self.fails_at = ""
        """"asking" or "giving back": the next such call of the lease renewal gets no reply."""

    async def was_sent_twice(self) -> bool:
        return len(self.claims) == 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs if hasattr(self._jobs, name) else self._store, name)

    async def exchange(self, call: Exchange) -> ExchangeReply:
        if call.wants is None or call.wants.count == 0:
            answer: ExchangeReply = await self._jobs.exchange(call)
            if self.fails_at == ("giving back" if call.settlements else "asking"):
                self.fails_at = ""
                raise UnknownOutcome("the reply was lost")
            return answer
        return await self._claim(call, call.wants)

    async def _claim(self, call: Exchange, wants: Wants) -> ExchangeReply:
        self.claims.append(wants)
        self.sent.set()
        await self.there.wait()
        answer: ExchangeReply = await self._jobs.exchange(call)
        if answer.leases:
            self.granted.set()
        await self.back.wait()
        if answer.leases and self.replies_to_lose:
            self.replies_to_lose -= 1
            raise UnknownOutcome("the reply was lost")
        return answer


class Bench:
    """A worker, a lease renewal that the test triggers, and the fences under which handlers ran."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.way = Way(store)
        self.ran: list[int] = []
        self.keeper: LeaseRenewal
        world = Environment(
            store=cast(Store, self.way),
            limiter=MemoryLimiter(clock.now_us),
            ledger=MemoryLedger(clock.now_us),
            clock=Clock(clock),
            chance=SystemChance(),
            ids=SystemIds(),
            events=LogEvents(),
        )

        async def count(ctx: Context) -> None:
            self.ran.append(ctx.fence)

        kinds = {"count": Kind("count", count, KindDefaults())}
        self.worker = Worker(world, kinds, WorkerSettings(poll_seconds=0.01), run_renewal=self._by_hand)

    @asynccontextmanager
    async def _by_hand(self, keeper: LeaseRenewal) -> AsyncIterator[None]:
        self.keeper = keeper
        yield

    async def submit(self) -> None:
        """Submit one job that may be delivered exactly once."""
        await self.store.jobs.submit([new_job(1, lease_us=int(LEASE_SECONDS * SECOND_US), attempts_max=1)])

    async def look(self, *, after_seconds: float) -> None:
        self.clock.advance(after_seconds)
        await self.keeper.check()

    async def job(self) -> Job:
        job: Job | None = await self.store.reads.job(JOB)
        assert job is not None
        return job

    async def until_done(self) -> Job:
        async def is_done() -> bool:
            return (await self.job()).state is State.DONE

        await eventually(is_done)
        return await self.job()

    async def take_elsewhere(self) -> None:
        """Another worker claims every available job and finishes it."""
        wants, other = Wants(("default",), 10, Token("elsewhere")), WorkerId("elsewhere")
        leases = (await self.store.jobs.exchange(Exchange(other, (), wants))).leases
        assert [lease.id for lease in leases] == [JOB], "it is not there to be taken"
        await self.store.jobs.exchange(Exchange(other, tuple(done(lease) for lease in leases)))

    async def drained(self, task: asyncio.Task[WorkerSummary]) -> WorkerSummary:
        """Let the worker read its reply, finish what it started because of it, and stop."""

        async def is_read() -> bool:
            return self.worker._slots.claim is None

        self.way.back.set()
        await eventually(is_read)
        self.worker.drain(5)
        return await task


@pytest.fixture(params=["memory", "sqlite"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    clock = FakeClock()
    store: Store = (
        MemoryStore(clock.now_us) if request.param == "memory" else SqliteStore(f"{tmp_path}/work.db", clock.now_us)
    )
    await store.open()
    bench = Bench(store, clock)
    await bench.submit()
    async with asyncio.timeout(60):
        yield bench
    await store.close()


@asynccontextmanager
async def working(bench: Bench) -> AsyncIterator[asyncio.Task[WorkerSummary]]:
    task = asyncio.create_task(bench.worker.run())
    try:
        yield task
    finally:
        for gate in (bench.way.there, bench.way.back):
            gate.set()
        bench.worker.drain(0)
        with suppress(asyncio.CancelledError):
            await task


async def test_a_claim_whose_reply_does_not_come_goes_back_and_costs_no_attempt(bench: Bench) -> None:
    """With one attempt, the job would otherwise end as failed although it never ran."""
    bench.way.back.clear()
    async with working(bench):
        await bench.way.granted.wait()
        await bench.look(after_seconds=LATE_SECONDS)
        job = await bench.job()
        assert (job.state, job.attempts) == (State.PENDING, 0)


async def test_a_reply_that_comes_after_its_claim_went_back_starts_nothing(bench: Bench) -> None:
    """Another worker has finished the job meanwhile."""
    bench.way.back.clear()
    async with working(bench) as task:
        await bench.way.granted.wait()
        await bench.look(after_seconds=LATE_SECONDS)
        await bench.take_elsewhere()
        worked = await bench.drained(task)
    assert (bench.ran, worked.lost, worked.is_clean) == ([], 0, True)


async def test_a_claim_goes_back_whole(bench: Bench) -> None:
    """The shortest lease decides. The late reply would otherwise start the other jobs of the claim."""
    await bench.store.jobs.submit([new_job(2, lease_us=int(10 * LEASE_SECONDS * SECOND_US))])
    bench.way.back.clear()
    async with working(bench):
        await bench.way.granted.wait()
        await bench.look(after_seconds=LATE_SECONDS)
        assert {job.state for job in await bench.store.reads.jobs(JobFilter())} == {State.PENDING}
        bench.way.back.set()
        await bench.until_done()
    assert set(bench.ran) == {2}


async def test_a_reply_that_is_too_late_goes_back_though_the_keeper_did_not_look(bench: Bench) -> None:
    """The remaining lease time may not last until the first renewal."""
    bench.way.back.clear()
    async with working(bench):
        await bench.way.granted.wait()
        bench.clock.advance(LATE_SECONDS)
        bench.way.back.set()
        job = await bench.until_done()
    assert (bench.ran, job.attempts, job.fence) == ([2], 1, 2)


async def test_the_age_of_a_late_lease_counts_from_its_last_renewal(bench: Bench) -> None:
    """The store had renewed it. A worker that counted from its claim took the lease for lost after two more lost
    replies, and left the job to expire."""
    bench.way.back.clear()
    async with working(bench):
        await bench.way.granted.wait()
        await bench.look(after_seconds=LATE_SECONDS - 0.1)
        bench.clock.advance(1)
        bench.way.back.set()
        await bench.until_done()
    assert bench.ran == [1]


async def test_a_late_reply_is_used_as_long_as_nobody_gave_its_claim_back(bench: Bench) -> None:
    """A slow store must not cause endless releases; meanwhile the leases are renewed."""
    bench.way.back.clear()
    async with working(bench):
        await bench.way.granted.wait()
        await bench.look(after_seconds=LATE_SECONDS - 0.1)
        assert (await bench.job()).lease_until == bench.clock.now_us() + LEASE_SECONDS * SECOND_US
        bench.way.back.set()
        job = await bench.until_done()
        await bench.look(after_seconds=LATE_SECONDS)
    assert (bench.ran, job.attempts, job.fence) == ([1], 1, 1)


async def test_a_claim_that_reaches_the_store_late_goes_back_all_the_same(bench: Bench) -> None:
    """The lease renewal found no lease at first and must not conclude that the claim was never granted."""
    bench.way.there.clear()
    bench.way.back.clear()
    async with working(bench):
        await bench.way.sent.wait()
        await bench.look(after_seconds=LATE_SECONDS)
        bench.way.there.set()
        await bench.way.granted.wait()
        await bench.look(after_seconds=0.5)
        job = await bench.job()
        assert (job.state, job.attempts) == (State.PENDING, 0)


async def test_a_claim_that_went_back_is_not_made_again_under_its_token(bench: Bench) -> None:
    """A delayed release for that token would end the new lease while its job runs."""
    bench.way.back.clear()
    bench.way.replies_to_lose = 1
    async with working(bench):
        await bench.way.granted.wait()
        await bench.look(after_seconds=LATE_SECONDS)
        bench.way.back.set()
        job = await bench.until_done()
    tokens = [wants.token for wants in bench.way.claims]
    assert len(set(tokens)) == len(tokens) > 1
    assert (bench.ran, job.attempts, job.fence) == ([2], 1, 2)


async def test_a_claim_on_its_way_again_while_it_goes_back_is_not_run(bench: Bench) -> None:
    """The second try grants the same job under the same token, and a late release may end that lease at any time."""
    bench.way.replies_to_lose = 1
    async with working(bench):
        await bench.way.granted.wait()
        bench.way.there.clear()  # the first try was executed, its reply was lost, and the second is on its way
        await eventually(bench.way.was_sent_twice)
        assert bench.way.claims[0] == bench.way.claims[1]
        await bench.look(after_seconds=LATE_SECONDS)
        assert (await bench.job()).state is State.PENDING
        bench.way.there.set()
        job = await bench.until_done()
    assert (bench.ran, job.attempts, job.fence) == ([3], 1, 3)


@pytest.mark.parametrize("fails_at", ["asking", "giving back"])
async def test_a_keeper_that_is_not_answered_tries_again(bench: Bench, fails_at: str) -> None:
    """The worker must not run a job that may have been released."""
    bench.way.back.clear()
    async with working(bench) as task:
        await bench.way.granted.wait()
        bench.way.fails_at = fails_at
        await bench.look(after_seconds=LATE_SECONDS)
        assert not bench.way.fails_at
        await bench.look(after_seconds=0.5)
        job = await bench.job()
        assert (job.state, job.attempts) == (State.PENDING, 0)
        await bench.take_elsewhere()
        await bench.drained(task)
    assert bench.ran == []


async def test_a_worker_that_is_drained_behind_a_claim_leaves_nothing_behind(bench: Bench) -> None:
    """The reply arrives after the stop signal, and the lease renewal was faster."""
    bench.way.back.clear()
    async with working(bench) as task:
        await bench.way.granted.wait()
        bench.worker.drain(5)
        await bench.look(after_seconds=LATE_SECONDS)
        bench.way.back.set()
        worked = await task
    job = await bench.job()
    assert (bench.ran, worked.is_clean, job.state, job.attempts) == ([], True, State.PENDING, 0)


async def test_a_job_on_the_shelf_that_may_have_gone_back_does_not_start(bench: Bench) -> None:
    """The lease renewal released it and got no reply, so it may run elsewhere by now."""
    slots, wants = bench.worker._slots, Wants(("default",), 1, Token("shelf"))
    keeper = LeaseRenewal(bench.worker.id, slots, {}, bench.way, Clock(bench.clock), lambda running, why: None)
    claim = Claim(wants, Clock(bench.clock).monotonic())
    leases = (await bench.store.jobs.exchange(Exchange(bench.worker.id, (), wants))).leases
    slots.put(claim, [Attempt(lease, claim.sent_at) for lease in leases])
    bench.way.fails_at = "giving back"
    bench.clock.advance(LATE_SECONDS)
    await keeper.check()
    assert len(slots.prefetched) == 1
    slots.fill()
    assert (slots.running, bench.worker._settlements.released) == ({}, 1)
