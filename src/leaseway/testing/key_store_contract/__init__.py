"""What every store of keys must keep, as tests that ship with the package.

A test module for your own store imports this one and supplies two fixtures:

    from leaseway.testing.key_store_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def key_store(clock): ...     # opened, empty, with `clock.now_us` as its clock; closed afterwards
"""

from leaseway.testing.key_store_contract.keeping import *  # noqa: F403
from leaseway.testing.key_store_contract.sessions import *  # noqa: F403
