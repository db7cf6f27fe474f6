"""Concurrent callers: one job per key, one outcome per job, and exact counters."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from itertools import count
from typing import TypeVar

import pytest
from tests.stores.postgres_support import (
    SOON_SECONDS,
    connected,
    new_name,
    opened,
    recounted,
    value,
    waiting_for_a_lock,
)

from leaseway.domain.errors import StoreBusy
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Lease, NewJob, Settlement, Submitted
from leaseway.stores.postgres import connection
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import (
    ALL,
    HOUR_US,
    ContractWorker,
    cancelled,
    counts,
    done,
    failed,
    held,
    ids_in,
    keyed_job,
    new_job,
    retry,
    snooze,
)
from leaseway.testing.postgres import PostgresServer

T = TypeVar("T")


@pytest.fixture
async def stores(server: PostgresServer) -> AsyncIterator[list[PostgresStore]]:
    """Several stores on one schema, like several processes. Leases may be shorter than the minimum, so that no test has
    to wait until one expires."""
    schema = new_name()
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(server, schema, pool="5")) for _ in range(4)]
        async with connected(server, server_settings={"search_path": schema}) as connection:
            await connection.execute(
                "CREATE OR REPLACE FUNCTION usable_lease_us(stored bigint) RETURNS bigint LANGUAGE sql IMMUTABLE "
                "AS 'SELECT stored'"
            )
        yield stores


# -- the same submission ----------------------------------------------------------------------------------------------


async def test_concurrent_submissions_of_one_key_make_one_job(stores: list[PostgresStore]) -> None:
    """A user clicks twice, a queue delivers twice, two servers share a load balancer."""
    for round_ in range(5):
        jobs = [keyed_job(100 * round_ + number, key=f"key-{round_}") for number in range(16)]
        answers = await asyncio.gather(*(stores[n % 4].jobs.submit([job]) for n, job in enumerate(jobs)))
        (first,) = {answer.id for (answer,) in answers}
        assert sorted(answer.replayed for (answer,) in answers) == [False] + [True] * 15
        assert first in {job.id for job in jobs}
    assert await counts(stores[0]) == {"ready": 5}


async def test_batches_with_the_same_keys_in_any_order_do_not_deadlock(
    stores: list[PostgresStore],
) -> None:
    """A deadlock costs one of the transactions a second."""
    numbers = list(range(60))
    batches: list[list[NewJob]] = []
    for batch in range(8):
        random.Random(batch).shuffle(numbers)
        batches.append([keyed_job(1_000 * batch + n, key=f"key-{n}") for n in numbers])
    await asyncio.gather(*(stores[n % 4].jobs.submit(batch) for n, batch in enumerate(batches)))
    assert await counts(stores[0]) == {"ready": 60}


async def test_batches_with_the_same_new_lanes_in_any_order_do_not_deadlock(
    stores: list[PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batches of a new deployment create many lanes, each in another order."""
    monkeypatch.setattr(connection, "DEADLOCKS_MAX", 0)
    ids = count(1)
    tenants = [f"tenant-{n}" for n in range(40)]
    batches: list[list[NewJob]] = []
    for batch in range(8):
        random.Random(batch).shuffle(tenants)
        batches.append([new_job(next(ids), tenant=tenant) for tenant in tenants])
    await asyncio.gather(*(stores[n % 4].jobs.submit(batch) for n, batch in enumerate(batches)))
    assert {lane.ready for lane in await stores[0].reads.lanes()} == {8}


async def test_concurrent_repetitions_of_a_submission_make_one_job(stores: list[PostgresStore]) -> None:
    """A client repeats a submission whose reply was lost."""
    jobs = [new_job(number) for number in range(20)]
    repeated = [jobs, jobs[::-1], jobs[5:], [jobs[3]], [jobs[7]], jobs]
    await asyncio.gather(
        *(stores[n % 4].jobs.submit(batch) for n, batch in enumerate(repeated)), return_exceptions=True
    )
    for batch in repeated:
        assert await stores[0].jobs.submit(batch) == [Submitted(job.id) for job in batch]
    assert await counts(stores[0]) == {"ready": 20}


@pytest.mark.parametrize("keyed", [False, True], ids=["by id", "by key"])
async def test_a_submission_repeated_after_its_job_has_finished_is_known(
    stores: list[PostgresStore], keyed: bool
) -> None:
    """The reply was lost, and the worker finished the job before the repetition."""
    job = keyed_job(1) if keyed else new_job(1)
    await stores[0].jobs.submit([job])
    await ContractWorker(stores[1]).settle(done(await ContractWorker(stores[1]).claim_one()))
    for batch in ([job], [job, new_job(2)]):
        assert (await stores[2].jobs.submit(batch))[0] == Submitted(job.id)
    assert await counts(stores[3]) == {"ready": 1, "done": 1}
    assert await stores[3].reads.lanes() == await recounted(stores[3])


@pytest.mark.parametrize("batch", [1, 2], ids=["alone", "among others"])
async def test_a_submission_repeated_while_its_job_finishes_is_known(
    server: PostgresServer, stores: list[PostgresStore], batch: int
) -> None:
    """The other transaction commits between lookup and insert: the job must not run a second time."""
    job, others = new_job(1), [new_job(2)][: batch - 1]
    await stores[0].jobs.submit([job, *others])
    lease = await ContractWorker(stores[0]).claim_one()
    async with connected(server) as connection:
        transaction = connection.transaction()
        await transaction.start()
        sql = f"SELECT {stores[0].address.schema}.settle_alone($1, $2, $3" + ", NULL" * 10 + ")"
        await connection.fetch(sql, [lease.id], [lease.token], ["1"])
        repeating = asyncio.ensure_future(stores[1].jobs.submit([job, *others]))
        await waiting_for_a_lock(connection)
        await transaction.commit()
        async with asyncio.timeout(SOON_SECONDS):
            assert (await repeating)[0] == Submitted(job.id)
    assert len(await ids_in(stores[0])) == batch
    assert await stores[0].reads.lanes() == await recounted(stores[0])


async def test_a_submission_repeated_while_its_job_is_retried_is_known(
    server: PostgresServer, stores: list[PostgresStore]
) -> None:
    """A retried job moves from the history back to the jobs, and is in neither table for a moment."""
    job = new_job(1)
    await stores[0].jobs.submit([job])
    await ContractWorker(stores[0]).settle(failed(await ContractWorker(stores[0]).claim_one()))
    async with connected(server) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetch(f"SELECT {stores[0].address.schema}.retry($1)", [job.id])
        repeating = asyncio.ensure_future(stores[1].jobs.submit([job]))
        await waiting_for_a_lock(connection)
        await transaction.commit()
        assert await repeating == [Submitted(job.id)]
    assert await counts(stores[0]) == {"ready": 1}
    assert await ids_in(stores[0]) == [job.id]


# -- the same jobs ----------------------------------------------------------------------------------------------------


async def persistent(call: Awaitable[T]) -> T | None:
    """Call again after an error that allows it; None after such an error."""
    try:
        return await call
    except StoreBusy:
        return None


async def test_settling_and_renewing_the_same_jobs_does_not_deadlock(stores: list[PostgresStore]) -> None:
    """The worker settles while its lease renewal runs; that happens all the time and must not cost a second."""
    one, two = ContractWorker(stores[0]), stores[1]
    for round_ in range(6):
        await stores[0].jobs.submit([new_job(1_000 * round_ + n) for n in range(120)])
        leases = list(await one.claim(120))
        random.Random(round_).shuffle(leases)
        settlements = [(failed if n % 3 == 0 else done)(lease) for n, lease in enumerate(leases)]
        renewals = [two.jobs.renew([held(lease) for lease in leases[n:] + leases[:n]]) for n in (0, 40, 80)]
        async with asyncio.timeout(SOON_SECONDS):
            settled, *_ = await asyncio.gather(
                persistent(one.settle(*settlements)), *(persistent(renewal) for renewal in renewals)
            )
        if settled is None:
            settled = await one.settle(*settlements)
        assert settled.lost == ()
    assert await counts(stores[0]) == {"done": 480, "failed": 240}


async def test_a_job_settled_twice_at_once_has_one_outcome(stores: list[PostgresStore]) -> None:
    """Two processes with the same token store one result, and both learn that the job is settled."""
    await stores[0].jobs.submit([new_job(n) for n in range(50)])
    leases = await ContractWorker(stores[0]).claim(50)
    first = ContractWorker(stores[0]).settle(*(done(lease, result='"first"') for lease in leases))
    second = ContractWorker(stores[1]).settle(*(done(lease, result='"second"') for lease in reversed(leases)))
    answers = await asyncio.gather(first, second)
    assert [answer.lost for answer in answers] == [(), ()]
    assert await counts(stores[0]) == {"done": 50}
    assert len({job.result for job in await stores[0].reads.jobs(ALL)}) == 1, "one transaction settles all or none"


async def test_a_lease_that_expires_while_it_is_settled_ends_once(stores: list[PostgresStore]) -> None:
    """All other workers try to reclaim it at the same time."""
    await stores[0].jobs.submit([new_job(n, lease_us=1) for n in range(30)])
    leases = await ContractWorker(stores[0]).claim(30)
    settling = asyncio.ensure_future(ContractWorker(stores[0]).settle(*map(done, leases)))
    claims = await asyncio.gather(*(ContractWorker(store, f"w{n}").claim(30) for n, store in enumerate(stores[1:])))
    settled = await settling
    assert await stores[0].reads.lanes() == await recounted(stores[0])
    finished = (await counts(stores[0])).get("done", 0)
    assert finished + len(settled.lost) == 30
    granted = [lease.fence for claim in claims for lease in claim]
    assert all(fence > 1 for fence in granted)


@pytest.mark.parametrize("failed_before", [False, True], ids=["first attempt", "failed before"])
async def test_a_late_result_is_rejected_while_the_job_is_being_leased_again(
    server: PostgresServer, stores: list[PostgresStore], failed_before: bool
) -> None:
    """The fence: the job got a new lease between the lookup and the write of the late worker."""
    late, schema = ContractWorker(stores[0], "late"), stores[0].address.schema
    await stores[0].jobs.submit([new_job(1, lease_us=1)])
    lease = await late.claim_one()
    if failed_before:
        await late.settle(retry(lease))
        lease = await late.claim_one()
    async with connected(server) as connection:
        transaction = connection.transaction()
        await transaction.start()
        sql = f"SELECT id FROM {schema}.exchange('next', '{{default}}', 1, 'new', false" + ", NULL" * 12 + ")"
        assert [row["id"] for row in await connection.fetch(sql)] == [lease.id]
        settling = asyncio.ensure_future(late.settle(done(lease)))
        await waiting_for_a_lock(connection)
        await transaction.commit()
        assert (await settling).lost == (lease.id,)
    (job,) = await stores[0].reads.jobs(ALL)
    assert (job.state.is_final, job.result) == (False, None)
    assert await stores[0].reads.lanes() == await recounted(stores[0])


# -- everything at once -----------------------------------------------------------------------------------------------


class Storm:
    """Random operations on random jobs by many tasks."""

    def __init__(self, stores: list[PostgresStore], seed: int) -> None:
        self.stores = stores
        self.chance = random.Random(seed)
        self.ids = count(1)
        self.known: list[JobId] = []

    async def blow(self, name: int) -> None:
        store = self.stores[name % len(self.stores)]
        worker, leases = ContractWorker(store, f"worker-{name}"), list[Lease]()
        for _ in range(25):
            verb = self.chance.choice([self.submit, self.submit, self.cancel, self.replay, self.discard, self.prune])
            await persistent(verb(store))
            settlements = [self.end(lease) for lease in leases[: self.chance.randint(0, 9)]]
            answer = await persistent(worker.exchange(*settlements, wants=worker.wants(7, ("default", "q"))))
            if answer is not None:
                leases = [*leases[len(settlements) :], *answer.leases]

    def end(self, lease: Lease) -> Settlement:
        child = new_job(next(self.ids), queue="q")
        return self.chance.choice(
            [
                done(lease),
                done(lease),
                failed(lease),
                retry(lease),
                retry(lease, delay_us=SECOND_US),
                snooze(lease),
                cancelled(lease),
                done(lease, children=(child,)),
            ]
        )

    async def submit(self, store: PostgresStore) -> None:
        jobs = [
            new_job(
                next(self.ids),
                queue=self.chance.choice(["default", "q"]),
                tenant=self.chance.choice("abc"),
                delay_us=self.chance.choice([0, 0, 1, HOUR_US]),
                lease_us=self.chance.choice([1, 60 * SECOND_US]),
                key=self.chance.choice([None, f"{next(self.ids) % 7}"]),
                key_keep_us=self.chance.choice([0, 1, HOUR_US]),
            )
            for _ in range(self.chance.choice([1, 1, 8]))
        ]
        self.known += [job.id for job in jobs]
        await store.jobs.submit(jobs)

    async def cancel(self, store: PostgresStore) -> None:
        if self.known:
            await store.operations.cancel(self.chance.choice(self.known))

    async def replay(self, store: PostgresStore) -> None:
        await store.operations.retry(ALL, self.chance.randint(0, 5))

    async def discard(self, store: PostgresStore) -> None:
        await store.operations.discard(ALL, self.chance.randint(0, 3))

    async def prune(self, store: PostgresStore) -> None:
        await store.operations.prune(self.chance.choice([1, HOUR_US]), 2)


@pytest.mark.parametrize("seed", [1, 2])
async def test_after_random_operations_the_counters_are_exact_and_no_row_is_lost(
    server: PostgresServer, stores: list[PostgresStore], seed: int
) -> None:
    """Counters are never corrected by counting: an error would stay for ever."""
    storm = Storm(stores, seed)
    await asyncio.gather(*(storm.blow(name) for name in range(8)))
    store, schema = stores[0], stores[0].address.schema
    assert await store.reads.lanes() == await recounted(store)
    orphans = f"""
    SELECT (SELECT count(*) FROM {schema}.jobs FULL JOIN {schema}.payloads USING (id)
             WHERE jobs.id IS NULL OR payloads.id IS NULL)
         + (SELECT count(*) FROM {schema}.jobs JOIN {schema}.history USING (id))
         + (SELECT count(*) FROM (SELECT id FROM {schema}.history GROUP BY id HAVING count(*) > 1) AS twice)
         + (SELECT count(*) FROM {schema}.errors WHERE job NOT IN (SELECT id FROM {schema}.jobs))
         + (SELECT count(*) FROM {schema}.jobs WHERE (state = 'leased') <> (token IS NOT NULL))
    """
    assert await value(server, orphans) == 0
    async with connected(server, server_settings={"search_path": schema}) as connection:
        await connection.execute("SELECT fold_lane_changes(1)")
    assert await value(server, f"SELECT count(*) FROM {schema}.lane_changes") == 0
    assert await store.reads.lanes() == await recounted(store)
