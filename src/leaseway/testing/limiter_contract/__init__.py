"""The guarantees of `leaseway.ports.limiter`, as tests that every limiter must pass.

A test module for your own implementation imports this package and supplies two fixtures:

    from leaseway.testing.limiter_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def limiter(clock): ...     # open and empty, with `clock.now_us` as its clock; closed afterwards

The tests are coroutines, so pytest needs pytest-asyncio in auto mode. For readable failures, call
`pytest.register_assert_rewrite("leaseway.testing")` in a conftest before it imports this package.
"""

from leaseway.testing.limiter_contract.acquire import *  # noqa: F403
from leaseway.testing.limiter_contract.breaker import *  # noqa: F403
from leaseway.testing.limiter_contract.concurrency import *  # noqa: F403
from leaseway.testing.limiter_contract.definitions import *  # noqa: F403
from leaseway.testing.limiter_contract.metered import *  # noqa: F403
from leaseway.testing.limiter_contract.observe import *  # noqa: F403
