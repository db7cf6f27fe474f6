"""What the store returns are plain values, which the service can encode as JSON."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.stores.conftest import empty

from leaseway.domain.exchange import Closing, Exchange, Gate, Wants
from leaseway.domain.ids import SECOND_US, Token, WorkerId
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import NewJob
from leaseway.domain.schedule import Schedule
from leaseway.ports.store import require_inspection, require_pauses
from leaseway.stores.mongodb.store import MongoStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import ContractWorker, failed, id_of, new_job
from leaseway.testing.key_store_contract import new_key, new_session
from leaseway.testing.mongodb import MongoServer

LONG_US = 3_600 * SECOND_US
"""More than 32 bits hold."""


@pytest.fixture
async def store(mongodb: MongoServer, clock: FakeClock) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongodb.url, now_us=clock.now_us)
    await store.open()
    await empty(store)
    yield store
    await store.close()


def long_job(number: int, **options: object) -> NewJob:
    return new_job(number, lease_us=LONG_US, timeout_us=LONG_US, **options)


async def test_every_value_can_be_encoded_as_json(store: MongoStore, clock: FakeClock) -> None:
    """The driver returns numbers of 64 bits as a type of its own, which no encoder of the service knows."""
    await store.jobs.submit([long_job(1), long_job(2, needs="maps"), long_job(3, delay_us=LONG_US), long_job(4)])
    worker = ContractWorker(store)
    lease = await worker.claim_one()
    await worker.settle(failed(lease))
    held = await worker.claim(1)
    wants = Wants(("default",), 0, Token("t"), closed=(Closing(Gate("maps", "default"), LONG_US, "busy"),))
    await store.jobs.exchange(Exchange(WorkerId("worker-1"), (), wants))
    await store.schedules.declare([Schedule(name="nightly", kind="count", cron="0 3 * * *")])
    await require_pauses(store).pause("other")
    await store.keys.add(new_key(1, clock))
    await store.sessions.add(new_session(1, clock))
    inspection = require_inspection(store)
    values = [
        lease, held, await store.reads.job(id_of(1)), await store.reads.errors(id_of(1)), await store.reads.lanes(),
        await store.reads.now(), await store.jobs.wait_us(("none",)), await store.schedules.all(),
        await require_pauses(store).all(), await store.keys.all(), await inspection.owners(),
        await inspection.waiting(), await inspection.ended(0), await inspection.recent(5, 0, 5),
        await inspection.search(JobFilter()),
    ]  # fmt: skip
    for value in values:
        assert value, "an empty value proves nothing"
        msgspec.json.encode(value)
