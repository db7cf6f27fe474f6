"""A provider to call, and a fixture that verifies that every admission is returned."""

from collections.abc import AsyncIterator

import pytest
from tests.provider_http.fake_admission import Place

from leaseway.testing.provider import Provider, provider


@pytest.fixture
async def it() -> AsyncIterator[Provider]:
    """A provider without limits."""
    async with provider() as it:
        yield it


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    yield place
    await place.wire.close()
    assert place.door.is_balanced(), "a pass that never comes back keeps its seat and its hold for good"
