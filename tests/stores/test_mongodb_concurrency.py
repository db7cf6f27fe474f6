"""Several workers on one MongoDB database: each job is leased once, and nobody waits for a lane."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from tests.stores.conftest import empty

from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import SECOND_US, JobId, Token, WorkerId
from leaseway.domain.job import Settlement, State
from leaseway.domain.lane import LaneCount
from leaseway.ports.store import require_inspection
from leaseway.stores.mongodb import claim
from leaseway.stores.mongodb import database as job_database
from leaseway.stores.mongodb.claim import Contention
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, done, id_of, new_job
from leaseway.testing.mongodb import MongoServer

WORKERS = 4


@pytest.fixture
async def stores(mongodb: MongoServer) -> AsyncIterator[list[MongoStore]]:
    """As processes would open them: each with a client of its own."""
    opened = [MongoStore(mongodb.url) for _ in range(WORKERS)]
    for store in opened:
        await store.open()
    await empty(opened[0])
    yield opened
    for store in opened:
        await store.close()


async def drain(store: MongoStore, name: str, share: int) -> list[JobId]:
    """Claim and settle until nothing is left, as a worker does: the settlements go with the next claim."""
    claimed: list[JobId] = []
    settled: tuple[Settlement, ...] = ()
    for number in range(10_000):
        wants = Wants(("default",), share, Token(f"{name}-{number}"))
        reply = await store.jobs.exchange(Exchange(WorkerId(name), settled, wants))
        assert reply.lost == ()
        claimed += [lease.id for lease in reply.leases]
        settled = tuple(
            Settlement(id=lease.id, token=lease.token, state=State.DONE, result="1") for lease in reply.leases
        )
        if not settled:
            break
    return claimed


async def counters(store: MongoStore) -> LaneCount:
    (lane,) = await store.reads.lanes()
    return lane


async def test_workers_that_drain_one_lane_share_its_jobs(stores: list[MongoStore]) -> None:
    """Two leases for one job would run it twice, and a lost one would leave it until its lease expires."""
    count = 600
    await stores[0].jobs.submit([new_job(number) for number in range(count)])
    claimed = await asyncio.gather(*(drain(store, f"worker-{n}", 20) for n, store in enumerate(stores)))
    assert Counter(id_ for ids in claimed for id_ in ids) == Counter(id_of(number) for number in range(count))
    lane = await counters(stores[0])
    assert (lane.ready, lane.leased, lane.done) == (0, 0, count)
    findings = await require_inspection(stores[0]).health(deep=True)
    assert [finding.text for finding in findings if finding.check == "counters"] == ["1 lanes have correct counters"]


async def test_submissions_do_not_wait_for_each_other(stores: list[MongoStore]) -> None:
    """A counter in the lane's document would make every pair of submissions conflict."""
    conflicts: list[int] = []
    for store in stores:
        original = store.connections.repeat

        async def counting(once, tries_max=None, on_conflict=None, original=original):  # type: ignore[no-untyped-def]
            return await original(once, tries_max, lambda: conflicts.append(1))

        store.connections.repeat = counting  # type: ignore[method-assign]
    jobs_of = [range(n * 20, n * 20 + 20) for n in range(WORKERS)]
    await asyncio.gather(
        *(store.jobs.submit([new_job(i)]) for store, numbers in zip(stores, jobs_of, strict=True) for i in numbers)
    )
    assert (await counters(stores[0])).ready == WORKERS * 20
    assert conflicts == []


async def test_folds_that_race_count_every_change_once(
    stores: list[MongoStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that is folded twice, or deleted unfolded, makes a counter wrong for ever."""
    monkeypatch.setattr(job_database, "FOLD_AT", 1)
    for round_ in range(5):
        base = round_ * 100
        await asyncio.gather(*(store.jobs.submit([new_job(base + n)]) for n, store in enumerate(stores * 2)))
    assert (await counters(stores[0])).ready == 5 * WORKERS * 2


async def test_a_lane_with_more_changes_than_one_call_reads_is_folded_first(
    stores: list[MongoStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submitters may be many while no worker runs, and the first worker must not miscount the lane."""
    store = stores[0]
    monkeypatch.setattr(job_database, "FOLD_AT", 10_000)
    monkeypatch.setattr(claim, "CHANGES_MAX", 5)
    for number in range(12):
        await store.jobs.submit([new_job(number)])
    assert await store.jobs.wait_us(("default",)) == 0
    assert len(await ContractWorker(store).claim(100)) == 12
    database = await store.connections.database()
    assert await database["leaseway_lane_changes"].count_documents({}) <= 5


async def test_a_settlement_gets_through_although_the_wanted_jobs_are_locked(stores: list[MongoStore]) -> None:
    """The transaction of a killed worker holds its jobs until the server ends it, a minute later by default."""
    store = stores[0]
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    lease = await worker.claim_one()
    await store.jobs.submit([new_job(2)])
    database = await stores[1].connections.database()
    async with database.client.start_session() as session:
        await session.start_transaction()
        await database["leaseway_jobs"].update_one({"_id": id_of(2)}, {"$inc": {"fence": 1}}, session=session)
        reply = await worker.exchange(done(lease), wants=worker.wants(1))
    assert (reply.leases, reply.lost) == ((), ())
    job = await store.reads.job(id_of(1))
    assert job is not None
    assert job.state is State.DONE
    assert len(await worker.claim(1)) == 1, "the transaction has ended, and the job can be claimed"


async def test_expired_leases_that_another_transaction_holds_do_not_stop_a_worker(stores: list[MongoStore]) -> None:
    """A worker that was killed while it took leases back must not stop the others for a minute."""
    store, now = stores[0], await stores[0].reads.now()
    await store.jobs.submit([new_job(1), new_job(2)])
    worker = ContractWorker(store)
    await worker.claim_one()
    database = await stores[1].connections.database()
    await database["leaseway_jobs"].update_one(
        {"_id": id_of(1)}, {"$set": {"lease.until": now - SECOND_US, "at": now - SECOND_US}}
    )
    async with database.client.start_session() as session:
        await session.start_transaction()
        await database["leaseway_jobs"].update_one({"_id": id_of(1)}, {"$inc": {"fence": 1}}, session=session)
        assert [lease.id for lease in await worker.claim(5)] == [id_of(2)]
    assert [lease.id for lease in await worker.claim(5)] == [id_of(1)], "now its lease was taken back"


def test_a_worker_begins_further_back_only_while_there_are_conflicts() -> None:
    """Without other workers, a lane is served strictly in order."""
    contention = Contention()
    assert {contention.offset(1_000, 10) for _ in range(50)} == {0}
    contention.conflicted()
    contention.conflicted()
    offsets = {contention.offset(1_000, 10) for _ in range(500)}
    assert offsets == {0, 10, 20, 30}
    assert {contention.offset(15, 10) for _ in range(50)} == {0}, "there is only one share"
    for _ in range(2 * claim.CALM_AFTER):
        contention.succeeded()
    assert {contention.offset(1_000, 10) for _ in range(50)} == {0}
