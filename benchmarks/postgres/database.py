"""One server for the whole run, and a database of its own for each measurement."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from leaseway.testing.postgres import PostgresServer, postgres_server

CONNECTIONS_MAX = 1_000
"""Two hundred workers, and a few connections for each."""
NUMBERS = itertools.count(1)


@contextmanager
def benchmark_server() -> Iterator[PostgresServer]:
    """PostgreSQL's defaults, apart from the number of connections: a committed transaction is on disk."""
    with postgres_server(durable=True, max_connections=str(CONNECTIONS_MAX)) as server:
        yield server


@contextmanager
def new_database(server_url: str, template: str = "") -> Iterator[str]:
    """The URL of an empty database, or of a copy of the one at `template`; dropped at the end."""
    name = f"bench_{next(NUMBERS)}"
    source = urlsplit(template).path[1:] or "template1"
    run(server_url, f"CREATE DATABASE {name} TEMPLATE {source} STRATEGY FILE_COPY")
    try:
        yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
    finally:
        run(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def rest(url: str) -> None:
    """Clean up after filling, which is not part of the measurement: statistics are fresh, dirty pages are written."""
    run(url, "VACUUM (ANALYZE)", "CHECKPOINT")


def checkpoint(url: str) -> None:
    """So that each contestant pays for its own dirty pages only."""
    run(url, "CHECKPOINT")


@contextmanager
def pinned_snapshot(url: str) -> Iterator[None]:
    """An idle transaction that may still read every row of every table as it was: no row version can be cleaned up. It
    has read them all, so that no table can be truncated or dropped either: the harder case.
    """
    tables = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname !~ '^(pg_|information_)'"
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for (table,) in connection.execute(tables).fetchall():
            connection.execute(f"SELECT count(*) FROM {table}".encode())
        yield


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def server_version(url: str) -> str:
    with psycopg.connect(url) as connection:
        return str(connection.info.parameter_status("server_version"))
