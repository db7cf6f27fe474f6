"""Jobs that differ only in their payloads take a faster path into the store; its results must be the same."""

from typing import Any

import pytest
from tests.stores.postgres_support import opened, recounted

from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import NewJob
from leaseway.stores.postgres import rows
from leaseway.testing.job_store_contract.fixtures import (
    HOUR_US,
    ContractWorker,
    counts,
    done,
    id_of,
    ids_in,
    keyed_job,
    new_job,
)
from leaseway.testing.postgres import PostgresServer


def many(first: int, last: int, **options: Any) -> list[NewJob]:
    return [new_job(number, payload=f'{{"n":{number}}}', **options) for number in range(first, last + 1)]


async def test_uniform_jobs_keep_their_order_and_payloads(server: PostgresServer) -> None:
    """The faster path must not mix up payloads."""
    async with opened(server) as store:
        answers = await store.jobs.submit(many(1, 9))
        assert [(answer.id, answer.replayed) for answer in answers] == [(id_of(n), False) for n in range(1, 10)]
        leases = await ContractWorker(store).claim(20)
        assert [(lease.id, lease.payload) for lease in leases] == [(job.id, job.payload) for job in many(1, 9)]


async def test_known_jobs_are_not_stored_again_whatever_their_state(server: PostgresServer) -> None:
    """Two are done, one is leased, three wait, three are new: a repetition stores only the last three."""
    async with opened(server) as store:
        await store.jobs.submit(many(1, 6))
        worker = ContractWorker(store)
        await worker.settle(*(done(lease) for lease in await worker.claim(2)))
        await worker.claim(1)
        await store.jobs.submit(many(1, 9))
        assert sorted(await ids_in(store)) == [id_of(number) for number in range(1, 10)]
        assert await counts(store) == {"done": 2, "leased": 1, "ready": 6}
        assert await store.reads.lanes() == await recounted(store)
        assert [lease.id for lease in await worker.claim(20)] == [id_of(number) for number in range(4, 10)]


async def test_a_repetition_counts_only_new_jobs(server: PostgresServer) -> None:
    """The counters of the lane must count each job once."""
    async with opened(server) as store:
        await store.jobs.submit(many(1, 3))
        await store.jobs.submit(many(1, 3))
        assert await counts(store) == {"ready": 3}
        await store.jobs.submit(many(1, 4))
        assert await counts(store) == {"ready": 4}
        assert await store.reads.lanes() == await recounted(store)


async def test_an_id_given_twice_is_one_job_with_two_answers(server: PostgresServer) -> None:
    """Callers match answers to jobs by position."""
    async with opened(server) as store:
        answers = await store.jobs.submit([*many(1, 2), *many(1, 2)])
        assert [answer.id for answer in answers] == [id_of(1), id_of(2), id_of(1), id_of(2)]
        assert await counts(store) == {"ready": 2}


async def test_uniform_jobs_can_be_scheduled(server: PostgresServer) -> None:
    """Scheduled jobs must not become ready early."""
    async with opened(server) as store:
        await store.jobs.submit(many(1, 4, delay_us=HOUR_US, tenant="later"))
        assert await counts(store, tenant="later") == {"scheduled": 4}
        assert await ContractWorker(store).claim(5) == ()


async def test_jobs_that_differ_in_an_option_keep_it(server: PostgresServer) -> None:
    """A job that took the faster path by mistake would get the options of the first job."""
    async with opened(server) as store:
        await store.jobs.submit([*many(1, 2), *many(3, 4, kind="other", priority=5), *many(5, 6, tenant="else")])
        found = await store.reads.jobs(JobFilter(), limit=10)
        seen = {job.id: (job.kind, job.tenant) for job in found}
        kinds = [("count", "default")] * 2 + [("other", "default")] * 2 + [("count", "else")] * 2
        assert seen == {id_of(number): kind for number, kind in enumerate(kinds, start=1)}


@pytest.mark.parametrize(
    "other",
    [
        keyed_job(2),
        new_job(2, trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        new_job(2, kind="other"),
        new_job(2, needs="somebody's"),
        new_job(2, shard_key="b"),
    ],
    ids=["key", "trace", "kind", "needs", "shard"],
)
def test_jobs_with_different_options_are_not_uniform(other: NewJob) -> None:
    """The faster path sends the options of the first job for all."""
    assert rows.uniform_arguments([new_job(1), other]) is None
    assert rows.uniform_arguments([other, new_job(1)]) is None


def test_an_empty_submission_is_not_uniform() -> None:
    """There is no first job to take the options from."""
    assert rows.uniform_arguments([]) is None
