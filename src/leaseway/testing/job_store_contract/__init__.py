"""The guarantees of `leaseway.ports.job_store`, as tests that every store must pass.

A test module for your own implementation imports this package and supplies two fixtures:

    from leaseway.testing.job_store_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def store(clock): ...     # open and empty, with `clock.now_us` as its clock; closed afterwards

The tests are coroutines, so pytest needs pytest-asyncio in auto mode. For readable failures, call
`pytest.register_assert_rewrite("leaseway.testing")` in a conftest before it imports this package.
"""

from leaseway.testing.job_store_contract.backlogs import *  # noqa: F403
from leaseway.testing.job_store_contract.claim import *  # noqa: F403
from leaseway.testing.job_store_contract.closed_lanes import *  # noqa: F403
from leaseway.testing.job_store_contract.foreign_ids import *  # noqa: F403
from leaseway.testing.job_store_contract.lanes import *  # noqa: F403
from leaseway.testing.job_store_contract.leases import *  # noqa: F403
from leaseway.testing.job_store_contract.operate import *  # noqa: F403
from leaseway.testing.job_store_contract.payloads import *  # noqa: F403
from leaseway.testing.job_store_contract.settle import *  # noqa: F403
from leaseway.testing.job_store_contract.submit import *  # noqa: F403
