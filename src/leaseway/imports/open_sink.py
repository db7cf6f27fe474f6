"""URL ─► sink. Only the driver that the sink needs is imported."""

from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from leaseway.domain.errors import StoreRefused
from leaseway.imports.domain.page import ColumnType
from leaseway.imports.sinks.port import Sink
from leaseway.wiring import sqlite_path

KNOWN = (
    "sqlite:///data.db, postgresql://host/database, mongodb://host/database and parquet:///folder "
    "(four slashes for an absolute path)"
)


def sink_for_url(url: str, table: str, columns: Mapping[str, ColumnType]) -> Sink:
    """The sink is not open yet."""
    match urlsplit(url).scheme:
        case "sqlite":
            from leaseway.imports.sinks.sqlite.sink import SqliteSink

            return SqliteSink(sqlite_path(url), table, columns)
        case "postgresql" | "postgres":
            require_module("asyncpg", "PostgreSQL needs its driver", "postgres")
            from leaseway.imports.sinks.postgres.sink import PostgresSink

            return PostgresSink(url, table, columns)
        case "mongodb" | "mongodb+srv":
            require_module("pymongo", "MongoDB needs its driver", "mongodb")
            from leaseway.imports.sinks.mongodb import MongoSink

            return MongoSink(url, table, columns)
        case "parquet":
            require_module("pyarrow", "Parquet files need their library", "parquet")
            from leaseway.imports.sinks.parquet.sink import ParquetSink

            return ParquetSink(parquet_folder(url), table, columns)
        case scheme:
            raise StoreRefused(f"sink.url: {scheme}:// is not supported; supported are {KNOWN}")


def require_module(module: str, what: str, extra: str) -> None:
    if find_spec(module) is None:
        raise StoreRefused(f"sink.url: {what}; install it with: pip install 'leaseway[{extra}]'")


def parquet_folder(url: str) -> str:
    """parquet:///places is a relative path, parquet:////places is absolute, as with sqlite://."""
    path = url.removeprefix("parquet://")
    if not path.startswith("/") or path == "/":
        raise StoreRefused(
            f"sink.url: {url!r} does not contain a folder; write three slashes and a path: parquet:///places"
        )
    return path[1:]
