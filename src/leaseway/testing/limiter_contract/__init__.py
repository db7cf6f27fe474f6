"""What every limiter must keep, as tests that ship with the package.

A test module for your own limiter imports this one and supplies two fixtures:

    from leaseway.testing.limiter_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def limiter(clock): ...     # opened, empty, with `clock.now_us` as its clock; closed afterwards

The tests are plain coroutines, so pytest needs pytest-asyncio in its auto mode. For readable failures, a conftest
says `pytest.register_assert_rewrite("leaseway.testing")` before it imports anything from here.
"""

from leaseway.testing.limiter_contract.defining import *  # noqa: F403
from leaseway.testing.limiter_contract.pausing import *  # noqa: F403
from leaseway.testing.limiter_contract.refusing import *  # noqa: F403
from leaseway.testing.limiter_contract.returning import *  # noqa: F403
from leaseway.testing.limiter_contract.seating import *  # noqa: F403
from leaseway.testing.limiter_contract.taking import *  # noqa: F403
from leaseway.testing.limiter_contract.telling import *  # noqa: F403
