"""For modules whose subject is stored data: this fixture replaces that of the folder, and adds MongoDB."""

from pathlib import Path

import pytest
from tests.api.store_urls import STORES, empty_store


@pytest.fixture(params=[*STORES, "mongodb"])
async def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return await empty_store(request.param, request, tmp_path)
