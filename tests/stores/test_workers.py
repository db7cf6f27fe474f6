"""Every store that holds its own data has a list of workers, decisions of autoscalers and a history."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.stores.conftest import KEEPING, Keeping, kept

from leaseway.testing.clock import FakeClock
from leaseway.testing.history_contract import *  # noqa: F403
from leaseway.testing.pools_contract import *  # noqa: F403
from leaseway.testing.workers_contract import *  # noqa: F403


@pytest.fixture(params=KEEPING)
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Keeping]:
    async with kept(request, clock, tmp_path) as store:
        yield store
