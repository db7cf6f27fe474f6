"""Before any test is read: failed assertions of the contract suite shall say what they compared."""

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.left_open import left_open, watch
from tests.scheduling import Scheduling, long_ones_first
from xdist.remote import Producer  # type: ignore[import-untyped]

pytest.register_assert_rewrite("leaseway.testing")

watch()

from leaseway.testing.postgres import PostgresServer, postgres_server  # noqa: E402

MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30

# Thousands of files of SQLite: each commit would wait for the disk, and no test asks what a power cut leaves of it.
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a process, started by the first that needs it."""
    with postgres_server() as server:
        yield server


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one process of several
        long_ones_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """The loop of a test ends with its last fixture."""
    yield
    left = left_open()
    assert not left, f"an event loop has ended, and these are still open: {left}"
