"""What every ledger must keep, as tests that ship with the package.

A test module for your own ledger imports this one and supplies two fixtures:

    from leaseway.testing.ledger_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def ledger(clock): ...     # opened, empty, with `clock.now_us` as its clock; closed afterwards
"""

from leaseway.testing.ledger_contract.booking import *  # noqa: F403
from leaseway.testing.ledger_contract.closing import *  # noqa: F403
from leaseway.testing.ledger_contract.defining import *  # noqa: F403
from leaseway.testing.ledger_contract.holding import *  # noqa: F403
from leaseway.testing.ledger_contract.looking import *  # noqa: F403
from leaseway.testing.ledger_contract.pausing import *  # noqa: F403
