"""The guarantees of every sink, as tests that ship with the package.

A test module for your own sink imports this package and supplies five fixtures:

    from leaseway.testing.sink_contract import *

    @pytest.fixture
    def clock(): return FakeClock()

    @pytest.fixture
    async def sink(clock): ...       # open, empty, with `fixtures.COLUMNS`; `clock.now_us` is its clock

    @pytest.fixture
    async def other(clock, sink): ...     # a second sink for the same table, as another process would open it

    @pytest.fixture
    async def elsewhere(clock, sink): ...     # a sink for another table in the same place, with the same columns

    @pytest.fixture
    def witness(sink): ...           # reads the table without the sink: see `fixtures.Witness`

The tests are coroutines, so pytest needs pytest-asyncio in auto mode. For readable failures, call
`pytest.register_assert_rewrite("leaseway.testing")` in a conftest before it imports this package.
"""

from leaseway.testing.sink_contract.deletes import *  # noqa: F403
from leaseway.testing.sink_contract.page_writes import *  # noqa: F403
from leaseway.testing.sink_contract.quarantine import *  # noqa: F403
from leaseway.testing.sink_contract.row_encoding import *  # noqa: F403
from leaseway.testing.sink_contract.rows import *  # noqa: F403
from leaseway.testing.sink_contract.runs import *  # noqa: F403
from leaseway.testing.sink_contract.shards import *  # noqa: F403
from leaseway.testing.sink_contract.sweeps import *  # noqa: F403
