"""The guarantees of inspection, as tests that every store must pass. Used like `job_store_contract`, with the same
fixtures.
"""

from collections.abc import Sequence
from itertools import product

from msgspec.structs import asdict, replace

from leaseway.domain.exchange import ProgressReport
from leaseway.domain.ids import SECOND_US, JobId, WorkerId
from leaseway.domain.inspection import (
    SCAN_MAX,
    SUMMARY_PROGRESS_BYTES_MAX,
    EndedCount,
    JobFilter,
    JobSummary,
    LaneWait,
    LeaseOwner,
)
from leaseway.domain.job import Job, State
from leaseway.domain.workers import LOST_AFTER_US, BusyLeases, Heartbeat, join_owners, share_busy
from leaseway.ports.store import Store, require_inspection, require_workers
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import (
    HOUR_US,
    LEASE_US,
    QUEUES,
    ContractWorker,
    done,
    failed,
    id_of,
    keyed_job,
    new_job,
    retry,
)

STATES: Sequence[tuple[State, ...] | None] = (
    None, (State.PENDING,), (State.LEASED,), (State.DONE,), (State.FAILED,), (State.CANCELLED,),
    (State.PENDING, State.LEASED), (State.FAILED, State.CANCELLED), (State.DONE, State.PENDING), (),
)  # fmt: skip
OTHERS = (
    JobFilter(), JobFilter(kind="even"), JobFilter(kind="none"), JobFilter(queue="q0"), JobFilter(tenant="t1"),
    JobFilter(queue="q1", tenant="t2"), JobFilter(error_code="broken"), JobFilter(tenant="t1", kind="even"),
    JobFilter(tenant="nobody"), JobFilter(queue="q0", error_code="broken"), JobFilter(shard_key="s1"),
    JobFilter(shard_key="s1", tenant="t1"),
)  # fmt: skip
TURNS = ((4, 5), (50, 7), (3, SCAN_MAX), (50, SCAN_MAX))
"""The jobs per page, and the rows that are scanned for a page."""


async def some_of_everything(store: Store) -> None:
    """Thirty jobs in six lanes and all states, with old and new ones mixed."""
    kinds = ("even", "odd")
    for number in range(1, 31):
        lane = {"queue": f"q{number % 2}", "tenant": f"t{number % 3}"}
        more = {"delay_us": HOUR_US} if number % 7 == 0 else {}
        shard = {"shard_key": f"s{number % 4}"} if number % 4 else {}
        await store.jobs.submit([new_job(number, kind=kinds[number % 2], attempts_max=1, **lane, **more, **shard)])
    worker = ContractWorker(store)
    leases = await worker.claim(20, ("q0", "q1"))
    await worker.settle(*(done(lease) for lease in leases[:9]), *(failed(lease) for lease in leases[9:15]))
    for number in (3, 14, 29, 30):
        await store.operations.cancel(id_of(number))


async def walked(store: Store, which: JobFilter, limit: int, scan_max: int) -> list[JobId]:
    """Every page from the first to the last. The pages must end."""
    found, before = list[JobId](), None
    for _ in range(200):
        page = await require_inspection(store).search(which, before=before, limit=limit, scan_max=scan_max)
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        if page.upto is None:
            return found
        assert before is None or page.upto < before
        before = page.upto
    raise AssertionError(f"no end: {which}")


async def test_whoever_turns_all_pages_has_seen_every_job_once(store: Store) -> None:
    """A job that falls between two pages could never be found."""
    await some_of_everything(store)
    for number, (states, others) in enumerate(product(STATES, OTHERS)):
        which = replace(others, states=states)
        wanted = [job.id for job in await store.reads.jobs(which, limit=100)]
        for limit, scan_max in (TURNS[number % len(TURNS)], TURNS[0]):
            assert await walked(store, which, limit, scan_max) == wanted, (which, limit, scan_max)


async def test_what_is_found_is_told_as_a_whole(store: Store, clock: FakeClock) -> None:
    """A list that contains less than the record would contradict it."""
    await some_of_everything(store)
    found = await require_inspection(store).search(JobFilter(), limit=30)
    assert (found.jobs, found.upto) == (await store.reads.jobs(JobFilter(), limit=30), None)


async def test_a_look_ends_even_if_nothing_was_found(store: Store) -> None:
    """A search without results would otherwise read a million jobs and delay every other query."""
    await some_of_everything(store)
    for which in (JobFilter(kind="none"), JobFilter(error_code="none"), JobFilter(kind="none", tenant="t1")):
        found = await require_inspection(store).search(which, scan_max=4)
        assert (found.jobs, found.upto is None) == ([], False)


async def test_the_few_jobs_of_a_tenant_are_found_behind_all_others(store: Store) -> None:
    """A small tenant must see its list at once, however many jobs others have submitted since."""
    await store.jobs.submit([new_job(number, tenant="tiny") for number in (1, 2, 3)])
    await store.jobs.submit([new_job(4, tenant="tiny", delay_us=HOUR_US)])
    lease, *_ = await ContractWorker(store).claim(1)
    await ContractWorker(store).settle(done(lease))
    await store.jobs.submit([new_job(number, tenant="large") for number in range(10, 40)])
    await store.jobs.submit([new_job(number, tenant="large", delay_us=HOUR_US) for number in range(40, 70)])
    found = await require_inspection(store).search(JobFilter(tenant="tiny"), scan_max=6)
    assert ([job.id for job in found.jobs], found.upto) == ([id_of(number) for number in (4, 3, 2, 1)], None)


async def test_a_store_without_jobs_is_sought_through_at_once(store: Store) -> None:
    """The first page of a new service must work."""
    assert await require_inspection(store).search(JobFilter(kind="even", tenant="t1")) == ([], None)


def glimpse_of(job: Job) -> JobSummary:
    seen = JobSummary.__struct_fields__
    return JobSummary(**{name: value for name, value in asdict(job).items() if name in seen})


async def seen_lately(store: Store, newest: int = 0, ended: int = 0, after: int = 0) -> set[JobId]:
    _, found = await require_inspection(store).recent(newest, after, ended)
    return {glimpse.id for glimpse in found}


async def test_who_looks_at_an_empty_store_sees_nothing(store: Store, clock: FakeClock) -> None:
    """The dashboard must be able to poll a new store."""
    assert await require_inspection(store).recent(100, 0, 100) == (clock.now_us(), [])
    assert await require_inspection(store).summaries([id_of(1)]) == []


async def test_a_glimpse_tells_what_the_record_tells(store: Store) -> None:
    """Live updates and single reads must agree in every state of the job."""
    await store.jobs.submit([new_job(number, tenant=f"t{number % 2}", priority=-number) for number in range(1, 6)])
    worker = ContractWorker(store)
    first, second, _ = await worker.claim(3)
    await worker.settle(done(first), failed(second))
    await store.operations.cancel(id_of(5))
    ids = [id_of(number) for number in range(1, 6)]
    expected = {id_: glimpse_of(job) for id_ in ids if (job := await store.reads.job(id_)) is not None}
    assert len({each.state for each in expected.values()}) == 5
    assert {each.id: each for each in await require_inspection(store).summaries(ids)} == expected
    _, lately = await require_inspection(store).recent(10, 0, 10)
    assert {each.id: each for each in lately} == expected


async def test_long_progress_is_not_read_with_summaries(store: Store) -> None:
    """Progress may have 256 KiB. The dashboard reads a thousand summaries several times a second."""
    await store.jobs.submit([new_job(number) for number in range(1, 5)])
    worker = ContractWorker(store)
    texts = [f'"{"é" * count}"' for count in (SUMMARY_PROGRESS_BYTES_MAX // 2 - 1, SUMMARY_PROGRESS_BYTES_MAX // 2)] * 2
    leases = await worker.claim(4)
    await store.jobs.report(
        [ProgressReport(each.id, each.token, text) for each, text in zip(leases, texts, strict=True)]
    )
    await worker.settle(done(leases[2]), done(leases[3]))
    _, lately = await require_inspection(store).recent(10, 0, 10)
    for found in (lately, await require_inspection(store).summaries([each.id for each in leases])):
        assert {each.id: each.progress for each in found} == {
            id_of(1): texts[0], id_of(2): None, id_of(3): texts[0], id_of(4): None,
        }  # fmt: skip


async def test_of_the_newest_only_so_many_are_seen(store: Store) -> None:
    """The query runs several times a second, so its cost must not grow with the number of pending jobs."""
    await store.jobs.submit([new_job(number) for number in range(1, 21)])
    assert await seen_lately(store, newest=3) == {id_of(18), id_of(19), id_of(20)}


async def test_what_ended_is_seen_from_an_instant_on_and_the_last_first(store: Store, clock: FakeClock) -> None:
    """Behind a long queue the newest jobs are not the running ones, and an observer wants to see what has ended."""
    await store.jobs.submit([new_job(number) for number in range(1, 11)])
    worker, before = ContractWorker(store), clock.now_us()
    for number in range(1, 5):
        clock.advance(1)
        await worker.settle(done(await worker.claim_one()))
        if number == 2:
            between = clock.now_us()
    assert await seen_lately(store, ended=10, after=before) == {id_of(1), id_of(2), id_of(3), id_of(4)}
    assert await seen_lately(store, ended=10, after=between) == {id_of(3), id_of(4)}
    assert await seen_lately(store, ended=1, after=before) == {id_of(4)}


async def test_a_retried_job_is_seen_as_it_is_now(store: Store) -> None:
    """The job leaves the history and is pending again; it must neither appear twice nor be missing."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    await worker.settle(failed(await worker.claim_one()))
    await store.operations.retry(JobFilter(), 1)
    (seen,) = await require_inspection(store).summaries([id_of(1)])
    assert seen.state is State.PENDING


async def test_an_empty_store_tells_of_nothing(store: Store) -> None:
    """The dashboard must be able to show a new store."""
    assert await require_inspection(store).owners() == []
    assert await require_inspection(store).waiting() == []
    assert (await require_inspection(store).ended(0))[1] == []


async def test_workers_are_told_with_what_they_hold(store: Store, clock: FakeClock) -> None:
    """An operator needs to see which workers run, how many leases they hold, and which are silent."""
    await store.jobs.submit([new_job(number) for number in range(1, 5)])
    begun = clock.now_us()
    await ContractWorker(store, "b").claim(1)
    clock.advance(5)
    await ContractWorker(store, "b").claim(1)
    await ContractWorker(store, "a").claim(1)
    later = clock.now_us()
    assert await require_inspection(store).owners() == [
        LeaseOwner(name=WorkerId("a"), leased=1, expired=0, seen_at=later, until=later + LEASE_US),
        LeaseOwner(name=WorkerId("b"), leased=2, expired=0, seen_at=later, until=begun + LEASE_US),
    ]


async def test_leases_that_expired_are_told_as_late(store: Store, clock: FakeClock) -> None:
    """These leases have not been reclaimed yet, and an operator must see that a worker is missing."""
    await store.jobs.submit([new_job(1)])
    await ContractWorker(store, "gone").claim(1)
    clock.advance(LEASE_US // SECOND_US)
    (owner,) = await require_inspection(store).owners()
    assert (owner.leased, owner.expired) == (1, 1)


async def test_leases_that_keep_no_slot_busy_are_told_apart(store: Store, clock: FakeClock) -> None:
    """An autoscaler that counts leases which were taken ahead, jobs that wait for a permit, and leases of killed
    workers as busy slots starts workers that can only wait."""
    await store.jobs.submit([new_job(number) for number in range(1, 13)])
    beats = Heartbeat(worker=WorkerId("dead"), queues=QUEUES, slots=4, used=4)
    await ContractWorker(store, "dead").claim(4)
    await require_workers(store).beat(beats)
    clock.advance(LOST_AFTER_US / SECOND_US - 1)
    await ContractWorker(store, "live").claim(6)
    await require_workers(store).beat(replace(beats, worker=WorkerId("live"), waiting=1))
    await ContractWorker(store, "new").claim(2)

    async def shares() -> BusyLeases:
        owners, now = await require_inspection(store).owners(), await store.reads.now()
        return share_busy(join_owners(await require_workers(store).all(), owners, now), slots=1)

    assert await shares() == BusyLeases(occupied=(4 + 4 + 1) / 12, fed=(4 + 3 + 1) / 12)
    clock.advance(1.001)  # the leases expire, and the worker is lost
    assert await shares() == BusyLeases(occupied=(4 + 1) / 12, fed=(3 + 1) / 12)


async def test_who_settled_everything_is_no_owner(store: Store) -> None:
    """Only leases make a worker visible: a worker that has stopped must not stay on the dashboard."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    await worker.settle(done(await worker.claim_one()))
    assert await require_inspection(store).owners() == []


async def test_each_lane_tells_since_when_it_waits(store: Store, clock: FakeClock) -> None:
    """The oldest ready job counts, even if others overtake it by priority; scheduled jobs do not count."""
    begun = clock.now_us()
    await store.jobs.submit([new_job(1, priority=-5), new_job(2, tenant="b", needs="maps")])
    clock.advance(3)
    later = clock.now_us()
    await store.jobs.submit(
        [new_job(3, priority=9), new_job(4, tenant="c", delay_us=SECOND_US), new_job(5, queue="other")]
    )
    assert await require_inspection(store).waiting() == [
        LaneWait(queue="default", tenant="b", needs="maps", since=begun),
        LaneWait(queue="default", tenant="default", since=begun),
        LaneWait(queue="other", tenant="default", since=later),
    ]


async def test_a_lane_whose_jobs_are_all_taken_does_not_wait(store: Store) -> None:
    """Leased jobs do not wait."""
    await store.jobs.submit([new_job(1)])
    await ContractWorker(store).claim(1)
    assert await require_inspection(store).waiting() == []


async def test_what_ended_lately_is_counted_by_state(store: Store, clock: FakeClock) -> None:
    """Rates are computed from these counts; jobs that ended earlier or still run must not be included."""
    await store.jobs.submit([new_job(number) for number in range(1, 4)])
    await store.jobs.submit([new_job(4, tenant="b"), new_job(5), new_job(6)])
    worker = ContractWorker(store)
    leases = {lease.id: lease for lease in await worker.claim(5)}
    await worker.settle(done(leases[id_of(1)]))
    begun = clock.now_us()
    clock.advance(1)
    await worker.settle(done(leases[id_of(2)]), failed(leases[id_of(3)]), done(leases[id_of(4)]))
    await worker.settle(retry(leases[id_of(5)]))
    await store.operations.cancel(id_of(6))
    since, counted = await require_inspection(store).ended(begun)
    assert (since, counted) == (
        begun,
        [
            EndedCount(queue="default", tenant="b", state=State.DONE, count=1),
            EndedCount(queue="default", tenant="default", state=State.DONE, count=1),
            EndedCount(queue="default", tenant="default", state=State.FAILED, count=1),
            EndedCount(queue="default", tenant="default", state=State.CANCELLED, count=1),
        ],
    )
    since, counted = await require_inspection(store).ended(0)
    assert (since < begun, sum(each.count for each in counted)) == (True, 5)
    assert await require_inspection(store).ended(clock.now_us()) == (clock.now_us(), [])


async def test_a_key_leads_to_its_job(store: Store) -> None:
    """A user may know only the idempotency key, such as an order number. Keys are scoped to a tenant."""
    await store.jobs.submit([new_job(1), keyed_job(2, tenant="acme", key="order-7")])
    await store.jobs.submit([keyed_job(3, tenant="acme", key="order-9")])
    keys = ["order-7", "order-8", "order-9", "order-7"]
    found = await require_inspection(store).jobs_for_keys("acme", keys)
    assert found == {"order-7": id_of(2), "order-9": id_of(3)}
    assert await require_inspection(store).jobs_for_keys("globex", keys) == {}
    assert await require_inspection(store).jobs_for_keys("acme", []) == {}


async def test_a_key_whose_time_is_over_leads_nowhere(store: Store, clock: FakeClock) -> None:
    """The key may belong to another job after its expiry."""
    await store.jobs.submit([keyed_job(1, tenant="acme", key="order-7", key_keep_us=HOUR_US)])
    clock.advance(HOUR_US / 1_000_000 + 1)
    assert await require_inspection(store).jobs_for_keys("acme", ["order-7"]) == {}
