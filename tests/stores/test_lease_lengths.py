"""The length of a lease: bounded wherever jobs are submitted, and bounded again where a stored job is leased."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.stores.conftest import KEEPING, Keeping, kept

from leaseway.domain.errors import BadValue
from leaseway.domain.job import LEASE_US_MAX, LEASE_US_MIN
from leaseway.domain.submission import check_new_job
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, new_job

OUT_OF_BOUNDS = {
    "zero": (0, LEASE_US_MIN),
    "negative": (-5, LEASE_US_MIN),
    "the lowest integer": (-(2**63), LEASE_US_MIN),
    "a microsecond": (1, LEASE_US_MIN),
    "the highest integer": (2**63 - 1, LEASE_US_MAX),
}


@pytest.fixture(params=KEEPING)
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Keeping]:
    async with kept(request, clock, tmp_path) as store:
        yield store


@pytest.mark.parametrize(("stored", "usable"), OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS)
async def test_a_stored_length_out_of_bounds_is_replaced_by_the_bound(
    store: Keeping, clock: FakeClock, stored: int, usable: int
) -> None:
    """A lease without length ends before its job starts, so the job would be leased again for ever; workers divide by
    the length; and a sum with a number this large fails the claims of all other jobs."""
    await store.jobs.submit([new_job(1, lease_us=stored), new_job(2)])
    worker = ContractWorker(store)
    wants = worker.wants(2)
    lease, other = (await worker.exchange(wants=wants)).leases
    assert (lease.lease_us, other.lease_us) == (usable, new_job(2).lease_us)
    job = await store.reads.job(lease.id)
    assert job is not None
    assert job.lease_until == clock.now_us() + usable
    repeated = await worker.exchange(wants=wants, repeat=True)
    assert repeated.leases == (lease, other)


@pytest.mark.parametrize(("length", "usable"), OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS)
def test_a_submitted_length_out_of_bounds_is_refused(length: int, usable: int) -> None:
    """Whoever submits such a job made a mistake, and only the submitter can correct it."""
    with pytest.raises(BadValue, match="lease_us"):
        check_new_job(new_job(1, lease_us=length))
    check_new_job(new_job(1, lease_us=usable))
