"""The guarantees of the records of pools, as tests that every store must pass. Used like `job_store_contract`, with the
same fixtures.
"""

import asyncio

from leaseway.domain.ids import SECOND_US
from leaseway.ports.pool_board import FORGET_AFTER_US, POOLS_MAX, PoolRecord
from leaseway.ports.store import Store, require_pools
from leaseway.testing.clock import FakeClock


async def test_a_pool_is_read_as_it_was_written(store: Store, clock: FakeClock) -> None:
    """A supervisor continues with what the one before it decided."""
    pools = require_pools(store)
    assert await pools.read("mail") is None
    assert await pools.write("mail", None, "v1", '{"workers": 2}')
    record = PoolRecord("mail", "v1", '{"workers": 2}', clock.now_us())
    assert await pools.read("mail") == record
    assert await pools.write("auto", None, "v1", "{}")
    assert [each.pool for each in await pools.all()] == ["auto", "mail"]
    assert await pools.read("mail") == record


async def test_a_supervisor_that_saw_an_older_version_writes_nothing(store: Store) -> None:
    """Two supervisors that both write their own number of workers would start twice as many."""
    pools = require_pools(store)
    assert await pools.write("mail", None, "v1", "1")
    assert await pools.write("mail", "v1", "v2", "2")
    assert not await pools.write("mail", "v1", "v3", "3")
    assert not await pools.write("mail", None, "v4", "4")
    assert not await pools.write("unknown", "v1", "v5", "5")
    found = await pools.read("mail")
    assert found is not None
    assert (found.version, found.text) == ("v2", "2")
    assert await pools.read("unknown") is None


async def test_a_repeated_write_has_the_same_answer(store: Store) -> None:
    """The reply to a write can be lost. A supervisor that took its own decision for another's would decide again."""
    pools = require_pools(store)
    for _ in range(2):
        assert await pools.write("mail", None, "v1", "1")
    for _ in range(2):
        assert await pools.write("mail", "v1", "v2", "2")


async def test_of_supervisors_that_write_at_once_one_wins(store: Store) -> None:
    """The comparison and the write are one step."""
    pools = require_pools(store)
    for seen in (None, "first"):
        answers = await asyncio.gather(*(pools.write("mail", seen, f"{seen} {n}", str(n)) for n in range(5)))
        assert sum(answers) == 1
        found = await pools.read("mail")
        assert found is not None
        assert found.version == f"{seen} {answers.index(True)}"
        assert await pools.write("mail", found.version, "first", "")


async def test_the_number_of_records_is_bounded(store: Store, clock: FakeClock) -> None:
    """Pools that were renamed a thousand times must not fill the table, and new ones must have room."""
    pools = require_pools(store)
    for number in range(POOLS_MAX):
        assert await pools.write(f"pool {number:04}", None, "v1", "")
    assert not await pools.write("new", None, "v1", "")
    clock.advance(FORGET_AFTER_US / SECOND_US + 1)
    assert await pools.write("pool 0000", "v1", "v2", "")
    assert await pools.write("new", None, "v1", "")
    assert [each.pool for each in await pools.all()] == ["new", "pool 0000"]
