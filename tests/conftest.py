"""Settings for the whole suite. Some must be made before any test module is imported."""

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.garbage import freeze_for_good
from tests.open_connections import take_open_connections, watch_event_loops
from tests.processes import kill_children_of_failed_blocks
from tests.programs import restrict_path, use_known_terminal
from tests.scheduling import GroupsFirstScheduling, put_slow_tests_first
from xdist.remote import Producer  # type: ignore[import-untyped]

# Failed assertions of the contract suites show the compared values only if pytest rewrites those modules.
pytest.register_assert_rewrite("leaseway.testing")

# Timings decide no test: a busy machine takes longer for an example than Hypothesis allows.
settings.register_profile("leaseway", deadline=None)
settings.load_profile("leaseway")

watch_event_loops()
kill_children_of_failed_blocks()
restrict_path()
use_known_terminal()

from leaseway.testing.mongodb import MongoServer, mongodb_server  # noqa: E402
from leaseway.testing.postgres import PostgresServer, postgres_server  # noqa: E402

MEMORY_DISK, FREE_BYTES_MIN = Path("/dev/shm"), 4 << 30

# The tests create thousands of SQLite files. On a disk, every commit would wait for a flush, and no test checks what a
# power failure leaves behind.
if MEMORY_DISK.is_dir() and os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > FREE_BYTES_MIN:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of a process; the first test that needs it starts it."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def mongodb() -> Iterator[MongoServer]:
    """One MongoDB replica set of one member for all tests of a process; the first test that needs it starts it."""
    with mongodb_server() as server:
        yield server


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupsFirstScheduling | None:
    return GroupsFirstScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    freeze_for_good()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # a worker process of pytest-xdist
        put_slow_tests_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """The event loop of a test closes with its last fixture, so this check runs after them."""
    yield
    still_open = take_open_connections()
    assert not still_open, f"the event loop was closed while these were open: {still_open}"
