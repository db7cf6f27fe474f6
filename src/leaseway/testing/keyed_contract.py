"""What every store must know of keys. Used like `job_store_contract`, with the same fixtures."""

from typing import Protocol

from leaseway.ports.idempotency import Keyed
from leaseway.ports.job_store import JobStore
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import HOUR_US, id_of, keyed_job, new_job


class KeyedStore(JobStore, Keyed, Protocol):
    """Something must be submitted before it can be found."""


async def test_a_key_leads_to_its_job(store: KeyedStore) -> None:
    """Who has only the number of an order wants to know what became of it. Keys are each tenant's own."""
    await store.submit([new_job(1), keyed_job(2, tenant="acme", key="order-7")])
    assert await store.keyed("acme", "order-7") == id_of(2)
    assert await store.keyed("globex", "order-7") is None
    assert await store.keyed("acme", "order-8") is None


async def test_a_key_whose_time_is_over_leads_nowhere(store: KeyedStore, clock: FakeClock) -> None:
    """It may be used for another job from then on."""
    await store.submit([keyed_job(1, tenant="acme", key="order-7", key_keep_us=HOUR_US)])
    clock.advance(HOUR_US / 1_000_000 + 1)
    assert await store.keyed("acme", "order-7") is None
