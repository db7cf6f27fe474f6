"""Before any test is read: failed assertions of the contract suite shall say what they compared."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("leaseway.testing")

from leaseway.testing.postgres import PostgresServer, postgres_server  # noqa: E402


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a process, started by the first that needs it."""
    with postgres_server() as server:
        yield server
