"""What every sink must keep, as tests that ship with the package.

A test module for your own sink imports this one and supplies five fixtures:

    from leaseway.testing.sink_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def sink(clock): ...       # opened, empty, with `actors.COLUMNS`; `clock.now_us` is its clock

    @pytest.fixture
    async def other(clock, sink): ...     # a second one at the same place, as another process would open it

    @pytest.fixture
    async def elsewhere(clock, sink): ...     # one for another table at the same place, with the same columns

    @pytest.fixture
    def witness(sink): ...           # looks at the table past the sink: see `actors.Witness`

The tests are plain coroutines, so pytest needs pytest-asyncio in its auto mode. For readable failures, a conftest
says `pytest.register_assert_rewrite("leaseway.testing")` before it imports anything from here.
"""

from leaseway.testing.sink_contract.beginning import *  # noqa: F403
from leaseway.testing.sink_contract.burying import *  # noqa: F403
from leaseway.testing.sink_contract.comparing import *  # noqa: F403
from leaseway.testing.sink_contract.fencing import *  # noqa: F403
from leaseway.testing.sink_contract.fitting import *  # noqa: F403
from leaseway.testing.sink_contract.merging import *  # noqa: F403
from leaseway.testing.sink_contract.noting import *  # noqa: F403
from leaseway.testing.sink_contract.quarantining import *  # noqa: F403
from leaseway.testing.sink_contract.spending import *  # noqa: F403
from leaseway.testing.sink_contract.starting import *  # noqa: F403
from leaseway.testing.sink_contract.sweeping import *  # noqa: F403
from leaseway.testing.sink_contract.turning import *  # noqa: F403
