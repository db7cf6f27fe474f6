"""The guarantees of pauses, as tests that every store must pass. Used like `job_store_contract`, with the same
fixtures.
"""

import pytest

from leaseway.domain.errors import BadValue
from leaseway.domain.exchange import Gate
from leaseway.domain.lane import Pause
from leaseway.ports.store import Store, require_pauses
from leaseway.testing.clock import FakeClock
from leaseway.testing.job_store_contract.fixtures import QUEUES, ContractWorker, counts, done, id_of, new_job

NEEDS = '{"limits":[{"name":"maps","limit":"maps","cost":1}],"budgets":[]}'


async def claimed(store: Store, *queues: str) -> list[str]:
    return [lease.id for lease in await ContractWorker(store).claim(10, queues or QUEUES)]


async def test_nothing_is_claimed_from_a_paused_queue(store: Store) -> None:
    """No further job of a faulty queue may start, and other queues must continue."""
    await store.jobs.submit([new_job(1), new_job(2, queue="mail"), new_job(3, tenant="acme")])
    assert await require_pauses(store).pause("default")
    assert await claimed(store, "default", "mail") == [id_of(2)]
    assert await store.jobs.wait_us(QUEUES) != 0
    assert await require_pauses(store).resume("default")
    assert await store.jobs.wait_us(QUEUES) == 0
    assert sorted(await claimed(store)) == [id_of(1), id_of(3)]


async def test_one_tenant_may_be_paused_alone(store: Store) -> None:
    """The other tenants must not be affected."""
    await store.jobs.submit([new_job(1, tenant="acme"), new_job(2, tenant="globex")])
    await require_pauses(store).pause("default", "acme")
    assert await claimed(store) == [id_of(2)]
    await require_pauses(store).resume("default", "acme")
    assert await claimed(store) == [id_of(1)]


async def test_a_pause_holds_for_lanes_that_begin_later(store: Store) -> None:
    """A new tenant or a job with other requirements creates a new lane in the same queue."""
    await require_pauses(store).pause("default")
    await store.jobs.submit([new_job(1), new_job(2, tenant="new")])
    assert await claimed(store) == []


async def test_gates_of_paused_lanes_are_not_told(store: Store) -> None:
    """Otherwise a worker would acquire permits again and again for jobs that it does not get. An admission must not
    override a pause.
    """
    gate = Gate(NEEDS, "default")
    await store.jobs.submit([new_job(1, needs=NEEDS)])
    await require_pauses(store).pause("default")
    worker = ContractWorker(store)
    told = await worker.exchange(wants=worker.wants(1, admits={gate: 1}))
    assert (told.leases, told.gated) == ((), ())
    await require_pauses(store).resume("default")
    told = await worker.exchange(wants=worker.wants(1))
    assert [each.gate for each in told.gated] == [gate]


async def test_what_is_leased_goes_on(store: Store) -> None:
    """The job has started: to stop it as well, cancel it."""
    await store.jobs.submit([new_job(1)])
    worker = ContractWorker(store)
    lease = await worker.claim_one()
    await require_pauses(store).pause("default")
    assert (await worker.settle(done(lease))).lost == ()
    assert await counts(store) == {"done": 1}


async def test_pauses_are_listed_and_said_twice_they_are_one(store: Store, clock: FakeClock) -> None:
    """The list must show the start and the tenant. Resuming one tenant must not resume the queue."""
    begun = clock.now_us()
    assert await require_pauses(store).pause("mail", "acme")
    clock.advance(5)
    assert not await require_pauses(store).pause("mail", "acme")
    assert await require_pauses(store).pause("mail")
    assert await require_pauses(store).all() == [Pause("mail", None, clock.now_us()), Pause("mail", "acme", begun)]
    assert await require_pauses(store).resume("mail", "acme")
    assert not await require_pauses(store).resume("mail", "acme")
    assert [pause.tenant for pause in await require_pauses(store).all()] == [None]


async def test_a_pause_names_a_queue(store: Store) -> None:
    """A queue cannot have an empty name, so such a pause could never be found again."""
    with pytest.raises(BadValue, match="queue"):
        await require_pauses(store).pause("")
    with pytest.raises(BadValue, match="tenant"):
        await require_pauses(store).pause("mail", "")
