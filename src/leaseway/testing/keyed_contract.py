"""What every store must know of keys. Used like `job_store_contract`, with the same fixtures."""

from leaseway.ports.store import Store, require_inspection
from leaseway.testing.clock import FakeClock
from leaseway.testing.contract.actors import HOUR_US, id_of, keyed_job, new_job


async def test_a_key_leads_to_its_job(store: Store) -> None:
    """Who has only the number of an order wants to know what became of it. Keys are each tenant's own."""
    await store.jobs.submit([new_job(1), keyed_job(2, tenant="acme", key="order-7")])
    assert await require_inspection(store).job_for_key("acme", "order-7") == id_of(2)
    assert await require_inspection(store).job_for_key("globex", "order-7") is None
    assert await require_inspection(store).job_for_key("acme", "order-8") is None


async def test_a_key_whose_time_is_over_leads_nowhere(store: Store, clock: FakeClock) -> None:
    """It may be used for another job from then on."""
    await store.jobs.submit([keyed_job(1, tenant="acme", key="order-7", key_keep_us=HOUR_US)])
    clock.advance(HOUR_US / 1_000_000 + 1)
    assert await require_inspection(store).job_for_key("acme", "order-7") is None
