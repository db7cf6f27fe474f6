"""What every store must find. Used like `job_store_contract`, with the same fixtures."""

from collections.abc import Sequence
from itertools import product

from msgspec.structs import replace

from leaseway.domain.ids import JobId
from leaseway.domain.inspection import SCAN_MAX, JobFilter
from leaseway.domain.job import State
from leaseway.ports.store import Store, require_inspection
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import HOUR_US, Worker, done, failed, id_of, new_job

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
"""How many are on a page, and how many are looked at for it."""


async def some_of_everything(store: Store) -> None:
    """Thirty jobs in six lanes and all states, where old and new ones are mixed."""
    kinds = ("even", "odd")
    for number in range(1, 31):
        lane = {"queue": f"q{number % 2}", "tenant": f"t{number % 3}"}
        more = {"delay_us": HOUR_US} if number % 7 == 0 else {}
        shard = {"shard_key": f"s{number % 4}"} if number % 4 else {}
        await store.jobs.submit([new_job(number, kind=kinds[number % 2], attempts_max=1, **lane, **more, **shard)])
    worker = Worker(store)
    leases = await worker.claim(20, ("q0", "q1"))
    await worker.settle(*(done(lease) for lease in leases[:9]), *(failed(lease) for lease in leases[9:15]))
    for number in (3, 14, 29, 30):
        await store.operations.cancel(id_of(number))


async def walked(store: Store, which: JobFilter, limit: int, looks: int) -> list[JobId]:
    """Every page, from the first to the last. It must come to an end."""
    found, before = list[JobId](), None
    for _ in range(200):
        page = await require_inspection(store).search(which, before=before, limit=limit, looks=looks)
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        if page.upto is None:
            return found
        assert before is None or page.upto < before
        before = page.upto
    raise AssertionError(f"no end: {which}")


async def test_whoever_turns_all_pages_has_seen_every_job_once(store: Store) -> None:
    """A job that falls between two pages is a job that nobody finds, however often he looks."""
    await some_of_everything(store)
    for number, (states, others) in enumerate(product(STATES, OTHERS)):
        which = replace(others, states=states)
        wanted = [job.id for job in await store.reads.jobs(which, limit=100)]
        for limit, looks in (TURNS[number % len(TURNS)], TURNS[0]):
            assert await walked(store, which, limit, looks) == wanted, (which, limit, looks)


async def test_what_is_found_is_told_as_a_whole(store: Store, clock: FakeClock) -> None:
    """A list that tells less than the record would be a second truth."""
    await some_of_everything(store)
    found = await require_inspection(store).search(JobFilter(), limit=30)
    assert (found.jobs, found.upto) == (await store.reads.jobs(JobFilter(), limit=30), None)


async def test_a_look_ends_even_if_nothing_was_found(store: Store) -> None:
    """Whoever seeks what is not there would read a million jobs, and everybody else would wait for it."""
    await some_of_everything(store)
    for which in (JobFilter(kind="none"), JobFilter(error_code="none"), JobFilter(kind="none", tenant="t1")):
        found = await require_inspection(store).search(which, looks=4)
        assert (found.jobs, found.upto is None) == ([], False)


async def test_the_few_jobs_of_a_tenant_are_found_behind_all_others(store: Store) -> None:
    """A small tenant must see its list at once, however many jobs others have submitted since."""
    await store.jobs.submit([new_job(number, tenant="tiny") for number in (1, 2, 3)])
    await store.jobs.submit([new_job(4, tenant="tiny", delay_us=HOUR_US)])
    lease, *_ = await Worker(store).claim(1)
    await Worker(store).settle(done(lease))
    await store.jobs.submit([new_job(number, tenant="large") for number in range(10, 40)])
    await store.jobs.submit([new_job(number, tenant="large", delay_us=HOUR_US) for number in range(40, 70)])
    found = await require_inspection(store).search(JobFilter(tenant="tiny"), looks=6)
    assert ([job.id for job in found.jobs], found.upto) == ([id_of(number) for number in (4, 3, 2, 1)], None)


async def test_a_store_without_jobs_is_sought_through_at_once(store: Store) -> None:
    """The first page of a new service."""
    assert await require_inspection(store).search(JobFilter(kind="even", tenant="t1")) == ([], None)
