"""What every job store must keep, as tests that ship with the package.

A test module for your own store imports this one and supplies two fixtures:

    from leaseway.testing.job_store_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def store(clock): ...     # opened, empty, with `clock.now_us` as its clock; closed afterwards

The tests are plain coroutines, so pytest needs pytest-asyncio in its auto mode. For readable failures, a conftest
says `pytest.register_assert_rewrite("leaseway.testing")` before it imports anything from here.
"""

from leaseway.testing.contract.claiming import *  # noqa: F403
from leaseway.testing.contract.expiring import *  # noqa: F403
from leaseway.testing.contract.gates import *  # noqa: F403
from leaseway.testing.contract.holding import *  # noqa: F403
from leaseway.testing.contract.operating import *  # noqa: F403
from leaseway.testing.contract.repeating import *  # noqa: F403
from leaseway.testing.contract.settling import *  # noqa: F403
from leaseway.testing.contract.submitting import *  # noqa: F403
from leaseway.testing.contract.tenants import *  # noqa: F403
from leaseway.testing.contract.tracing import *  # noqa: F403
