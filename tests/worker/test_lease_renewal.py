"""Lease renewal with a store that does not answer: the worker must learn in time which leases it lost."""

import asyncio
from collections import deque

from tests.worker.observe import SOON_SECONDS

from leaseway.domain.exchange import Exchange, ExchangeReply, HeldLease, Renewed
from leaseway.domain.ids import SECOND_US, Instant, JobId, Token, WorkerId
from leaseway.domain.job import Lease
from leaseway.worker.lease_renewal import RENEW_AFTER, LeaseRenewal
from leaseway.worker.settle import SAFE_UNTIL, Attempt, Stop
from leaseway.worker.slots import Claim

LEASE_SECONDS = 60
"""Longer than the test may take: a lease renewal that waits for a whole lease is too late here."""


class Silence:
    """A store that accepts the request and never replies."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def renew(self, leases: list[HeldLease]) -> Renewed:
        self.asked.set()
        await asyncio.Event().wait()
        return Renewed()

    async def exchange(self, call: Exchange) -> ExchangeReply:
        return ExchangeReply()


class Hand:
    """A clock that the test moves; sleeping yields to the event loop once."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall_us(self) -> Instant:
        return 0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class OneJob:
    def __init__(self) -> None:
        lease = Lease(
            id=JobId("job"), token=Token("token"), fence=1, kind="kind", queue="default", tenant="default",
            payload="{}", attempts=1, attempts_max=5, lease_us=LEASE_SECONDS * SECOND_US, timeout_us=None,
            shard_key=None, cursor=None,
        )  # fmt: skip
        self.running = {lease.id: Attempt(lease, 0.0)}
        self.prefetched: deque[Attempt] = deque()
        self.claim: Claim | None = None


async def test_a_lease_that_cannot_be_renewed_is_lost_in_time_though_the_store_is_silent() -> None:
    """A worker that waits for the reply first would run the job beside the worker that took over."""
    clock, store, slots = Hand(), Silence(), OneJob()
    told: asyncio.Queue[Stop] = asyncio.Queue()
    keeper = LeaseRenewal(WorkerId("worker"), slots, {}, store, clock, lambda running, why: told.put_nowait(why))  # type: ignore[arg-type]
    keeping = asyncio.ensure_future(keeper.run())
    try:
        clock.seconds = (RENEW_AFTER + 0.1) * LEASE_SECONDS
        async with asyncio.timeout(SOON_SECONDS):
            await store.asked.wait()
        assert told.empty()
        clock.seconds = (SAFE_UNTIL + 0.01) * LEASE_SECONDS
        async with asyncio.timeout(SOON_SECONDS):
            assert await told.get() is Stop.LOST
    finally:
        keeping.cancel()
