"""Every store that keeps lanes and keys itself can pause the ones and look up the others."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.stores.conftest import KEEPING, Keeping, kept

from leaseway.testing.clock import FakeClock
from leaseway.testing.keyed_contract import *  # noqa: F403
from leaseway.testing.pauses_contract import *  # noqa: F403


@pytest.fixture(params=KEEPING)
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Keeping]:
    async with kept(request, clock, tmp_path) as store:
        yield store
