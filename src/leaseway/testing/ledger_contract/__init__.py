"""The guarantees of `leaseway.ports.ledger`, as tests that every ledger must pass.

A test module for your own implementation imports this package and supplies two fixtures:

    from leaseway.testing.ledger_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def ledger(clock): ...     # open and empty, with `clock.now_us` as its clock; closed afterwards

The tests are coroutines, so pytest needs pytest-asyncio in auto mode. For readable failures, call
`pytest.register_assert_rewrite("leaseway.testing")` in a conftest before it imports this package.
"""

from leaseway.testing.ledger_contract.definitions import *  # noqa: F403
from leaseway.testing.ledger_contract.holds import *  # noqa: F403
from leaseway.testing.ledger_contract.journal import *  # noqa: F403
from leaseway.testing.ledger_contract.rebooking import *  # noqa: F403
from leaseway.testing.ledger_contract.settle import *  # noqa: F403
