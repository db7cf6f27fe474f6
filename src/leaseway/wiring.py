"""The only module that knows every adapter: it turns URLs into stores, limiters and ledgers."""

from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from leaseway.domain.errors import StoreRefused, redact_url
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Events, Tracing
from leaseway.system import SystemChance, SystemClock, SystemIds, wall_clock_us
from leaseway.telemetry.tracing import tracing_here
from leaseway.worker.environment import Environment

if TYPE_CHECKING:
    from leaseway.stores.http.client import ServiceClient

KNOWN = (
    "sqlite:///work.db (relative path), sqlite:////var/lib/work.db (absolute path), postgresql://user@host/database, "
    "https://host (a leaseway service), memory:// (lost when the process ends)"
)


def store_at(url: str, key: str | None = None, tracing: Tracing | None = None) -> Store:
    """The store at a URL, not opened yet. `key`: the API key of a service; None: the value of LEASEWAY_KEY. `tracing`:
    passes the trace context on to a service."""
    match urlsplit(url).scheme:
        case "sqlite":
            from leaseway.stores.sqlite.store import SqliteStore

            return SqliteStore(sqlite_path(url), wall_clock_us)
        case "postgresql" | "postgres":
            postgres_driver()
            from leaseway.stores.postgres.store import PostgresStore

            return PostgresStore(url)
        case "memory":
            from leaseway.stores.memory.store import MemoryStore

            return MemoryStore(wall_clock_us)
        case "https" | "http":
            from leaseway.stores.http.store import HttpStore

            return HttpStore(line_to(url, key, tracing))
        case "":
            raise StoreRefused(
                f"{redact_url(url)!r} is not a store's address; did you mean sqlite:///{redact_url(url)}?"
            )
        case scheme:
            raise StoreRefused(f"{scheme}:// is not a store that this leaseway knows; there are {KNOWN}")


def line_to(url: str, key: str | None, tracing: Tracing | None = None) -> "ServiceClient":
    try:
        from leaseway.stores.http.client import ServiceClient
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise StoreRefused("a service needs a client for HTTP; install it with: pip install 'leaseway[http]'") from None
    from leaseway.stores.http.address import parse_address

    return ServiceClient(
        parse_address(url, key), tracing.origin if tracing is not None and tracing.has_traces else None
    )


def postgres_driver() -> None:
    try:
        import asyncpg  # noqa: F401
    except ModuleNotFoundError:
        raise StoreRefused("PostgreSQL needs its driver; install it with: pip install 'leaseway[postgres]'") from None


def sqlite_path(url: str) -> str:
    """The path of a URL: sqlite:///work.db is relative, sqlite:////work.db is absolute."""
    path = url.removeprefix("sqlite://")
    if not path.startswith("/") or path == "/":
        raise StoreRefused(f"{url!r} names no file; write three slashes and a path: sqlite:///work.db")
    return path[1:]


def limiter_at(url: str, key: str | None = None) -> Limiter:
    """The limiter at a URL: a store of jobs, or a Redis or Valkey server."""
    match urlsplit(url).scheme:
        case "sqlite":
            from leaseway.stores.sqlite.limits import SqliteLimiter

            return SqliteLimiter(sqlite_path(url))
        case "postgresql" | "postgres":
            postgres_driver()
            from leaseway.stores.postgres.limits import PostgresLimiter

            return PostgresLimiter(url)
        case "memory":
            from leaseway.stores.memory.limits import MemoryLimiter

            return MemoryLimiter(wall_clock_us)
        case "redis" | "rediss" | "valkey" | "valkeys":
            return redis_limiter(url)
        case "https" | "http":
            from leaseway.stores.http.limits import HttpLimiter

            return HttpLimiter(line_to(url, key))
        case scheme:
            raise StoreRefused(
                f"{scheme}:// keeps no limits; there are redis://host:6379/0, and the stores of jobs: {KNOWN}"
            )


def redis_limiter(url: str) -> Limiter:
    try:
        from leaseway.stores.redis.limits import RedisLimiter
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise StoreRefused("Redis needs its driver; install it with: pip install 'leaseway[redis]'") from None
    return RedisLimiter(url)


def open_ledger(store: Store, url: str) -> Ledger:
    """The ledger for budgets. It is kept in the store of the jobs, because it must be durable."""
    match urlsplit(url).scheme:
        case "sqlite":
            from leaseway.stores.sqlite.budgets import SqliteLedger
            from leaseway.stores.sqlite.store import SqliteStore

            return SqliteLedger(cast(SqliteStore, store).database)
        case "postgresql" | "postgres":
            from leaseway.stores.postgres.budgets import PostgresLedger
            from leaseway.stores.postgres.store import PostgresStore

            return PostgresLedger(url, connections=cast(PostgresStore, store).connections)
        case "https" | "http":
            from leaseway.stores.http.budgets import HttpLedger
            from leaseway.stores.http.store import HttpStore

            return HttpLedger(cast(HttpStore, store).line)
        case _:
            from leaseway.stores.memory.budgets import MemoryLedger

            return MemoryLedger(wall_clock_us)


def build_environment(url: str, limits_url: str | None, events: Events, key: str | None = None) -> Environment:
    tracing = tracing_here()
    store = store_at(url, key, tracing)
    return Environment(
        store=store,
        limiter=limiter_at(limits_url or url, key),
        ledger=open_ledger(store, url),
        clock=SystemClock(),
        chance=SystemChance(),
        ids=SystemIds(),
        events=events,
        tracing=tracing,
    )
