"""The only module that knows every adapter: it turns URLs into stores, limiters and ledgers, and finds the tracer.

Drivers and OpenTelemetry are imported only if they are used.
"""

import logging
import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from leaseway.domain.encryption import Codec, Encryption
from leaseway.domain.errors import StoreRefused, UsageError
from leaseway.domain.limits.limit import StartLevel, parse_start
from leaseway.domain.redact import NO_SECRETS, Redactor, redact_url
from leaseway.domain.validators import url_scheme
from leaseway.ports.blob_store import BlobStore
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter
from leaseway.ports.provider_requests import HttpTransport
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Events, Tracing
from leaseway.system import SystemChance, SystemClock, SystemIds, freeze_late_import, store_time_us
from leaseway.telemetry.log import JobLogContext, wants_json
from leaseway.worker.blobs import NO_BLOBS, JobBlobs
from leaseway.worker.environment import Environment

if TYPE_CHECKING:
    from leaseway.stores.http.client import ServiceClient

log = logging.getLogger("leaseway")

LIMITS_START = "LEASEWAY_LIMITS_START"
KNOWN = (
    "sqlite:///work.db (relative path), sqlite:////var/lib/work.db (absolute path), postgresql://user@host/database, "
    "mongodb://host/database?replicaSet=rs0, https://host (a leaseway service), memory:// (lost when the process ends)"
)


def store_at(url: str, key: str | None = None, tracing: Tracing | None = None) -> Store:
    """The store at a URL, not opened yet. `key`: the API key of a service; None: the value of LEASEWAY_KEY. `tracing`:
    passes the trace context on to a service."""
    match url_scheme(url):
        case "sqlite":
            from leaseway.stores.sqlite.database import FileClock
            from leaseway.stores.sqlite.store import SqliteStore

            return SqliteStore(sqlite_path(url), FileClock())
        case "postgresql":
            postgres_driver()
            from leaseway.stores.postgres.store import PostgresStore

            return PostgresStore(url)
        case "mongodb" | "mongodb+srv":
            mongodb_driver()
            from leaseway.stores.mongodb.store import MongoStore

            return MongoStore(url)
        case "memory":
            from leaseway.stores.memory.store import MemoryStore

            return MemoryStore(store_time_us)
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
        from leaseway.stores.http.client import ServiceClient, parse_address
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise StoreRefused("a service needs a client for HTTP; install it with: pip install 'leaseway[http]'") from None
    return ServiceClient(
        parse_address(url, key), tracing.origin if tracing is not None and tracing.has_traces else None
    )


def blob_store_at(url: str) -> BlobStore:
    """The blob store at a URL: file:///var/lib/leaseway/blobs, or s3://bucket/prefix."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        from leaseway.stores.blobs.files import FileBlobs

        if parts.netloc or len(parts.path) < 2:
            raise StoreRefused(
                f"blobs: {redact_url(url)!r} names no folder; write three slashes: file:///var/lib/blobs"
            )
        return FileBlobs(unquote(parts.path), store_time_us)
    if parts.scheme == "s3":
        try:
            from leaseway.stores.blobs.s3 import S3Blobs, parse_settings
        except ModuleNotFoundError as error:
            if error.name != "aiohttp":
                raise
            raise StoreRefused("blobs: s3:// needs aiohttp; install it with: pip install 'leaseway[http]'") from None
        return S3Blobs(parse_settings(url, os.environ), store_time_us)
    raise StoreRefused(
        f"blobs: {redact_url(url)!r} is not a blob store; there are file:///folder and s3://bucket/prefix"
    )


def http_transport() -> HttpTransport:
    """What sends the requests of `ctx.http`. Imported late, because most commands send none."""
    is_late = "leaseway.aiohttp_transport" not in sys.modules
    try:
        from leaseway.aiohttp_transport import AiohttpTransport

        if is_late:
            freeze_late_import()
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "truststore"):
            raise
        raise UsageError("ctx.http needs aiohttp; install it with: pip install 'leaseway[http]'") from None
    return AiohttpTransport()


def postgres_driver() -> None:
    try:
        import asyncpg  # noqa: F401
    except ModuleNotFoundError:
        raise StoreRefused("PostgreSQL needs its driver; install it with: pip install 'leaseway[postgres]'") from None


def mongodb_driver() -> None:
    try:
        import pymongo  # noqa: F401
    except ModuleNotFoundError:
        raise StoreRefused("MongoDB needs its driver; install it with: pip install 'leaseway[mongodb]'") from None


def sqlite_path(url: str) -> str:
    """The path of a URL: sqlite:///work.db is relative, sqlite:////work.db is absolute. Parameters are for other
    drivers and are ignored."""
    path = re.sub(r"\?\w+=.*", "", url.partition("://")[2])
    if not path.startswith("/") or path == "/":
        raise StoreRefused(f"{url!r} names no file; write three slashes and a path: sqlite:///work.db")
    return path[1:]


def limiter_at(url: str, key: str | None = None) -> Limiter:
    """The limiter at a URL: a store of jobs, or a Redis or Valkey server."""
    match url_scheme(url):
        case "sqlite":
            from leaseway.stores.sqlite.limits import SqliteLimiter

            return SqliteLimiter(sqlite_path(url))
        case "postgresql":
            postgres_driver()
            from leaseway.stores.postgres.limits import PostgresLimiter

            return PostgresLimiter(url)
        case "mongodb" | "mongodb+srv":
            mongodb_driver()
            from leaseway.stores.mongodb.limits import MongoLimiter

            return MongoLimiter(url)
        case "memory":
            from leaseway.stores.memory.limits import MemoryLimiter

            return MemoryLimiter(store_time_us, starts_full=starts_full())
        case "redis" | "rediss" | "valkey" | "valkeys":
            return redis_limiter(url)
        case "https" | "http":
            from leaseway.stores.http.limits import HttpLimiter

            return HttpLimiter(line_to(url, key))
        case scheme:
            what = f"{scheme}://" if scheme else repr(redact_url(url))
            raise StoreRefused(
                f"{what} keeps no limits; there are redis://host:6379/0, and the stores of jobs: {KNOWN}"
            )


def starts_full() -> bool:
    """Whether limits in memory start full: LEASEWAY_LIMITS_START=full, for tests that must not wait."""
    start = os.environ.get(LIMITS_START)
    return parse_start(LIMITS_START, start or None) is StartLevel.FULL


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
    match url_scheme(url):
        case "sqlite":
            from leaseway.stores.sqlite.budgets import SqliteLedger
            from leaseway.stores.sqlite.store import SqliteStore

            return SqliteLedger(cast(SqliteStore, store).database)
        case "postgresql":
            from leaseway.stores.postgres.budgets import PostgresLedger
            from leaseway.stores.postgres.store import PostgresStore

            return PostgresLedger(url, connections=cast(PostgresStore, store).connections)
        case "mongodb" | "mongodb+srv":
            from leaseway.stores.mongodb.budgets import MongoLedger
            from leaseway.stores.mongodb.store import MongoStore

            return MongoLedger(url, connections=cast(MongoStore, store).connections)
        case "https" | "http":
            from leaseway.stores.http.budgets import HttpLedger
            from leaseway.stores.http.store import HttpStore

            return HttpLedger(cast(HttpStore, store).line)
        case _:
            from leaseway.stores.memory.budgets import MemoryLedger

            return MemoryLedger(store_time_us)


def build_environment(
    url: str,
    limits_url: str | None,
    events: Events,
    key: str | None = None,
    redactor: Redactor = NO_SECRETS,
    codec: Codec | None = None,
    blobs_url: str | None = None,
) -> Environment:
    tracing = tracing_here()
    store, ids = store_at(url, key, tracing), SystemIds()
    blobs = JobBlobs(blob_store_at(blobs_url), ids) if blobs_url else NO_BLOBS
    is_service = url_scheme(url) in ("https", "http")
    return Environment(
        store=store,
        limiter=limiter_at(limits_url or url, key),
        ledger=open_ledger(store, url),
        clock=SystemClock(),
        chance=SystemChance(),
        ids=ids,
        events=events,
        tracing=tracing,
        redactor=redactor,
        encryption=Encryption(codec, is_service=is_service, bytes_max=blobs.bytes_max),
        blobs=blobs,
        make_transport=http_transport,
    )


# -- tracing ----------------------------------------------------------------------------------------------------------

OTEL_EXPORTER = "OTEL_TRACES_EXPORTER"
OTEL_SWITCHES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", OTEL_EXPORTER)
"""Each of these variables switches tracing on. OTEL_SERVICE_NAME alone does not."""
OTEL_DISABLED = "OTEL_SDK_DISABLED"


def tracing_here() -> Tracing | None:
    """The tracer for apps that are created now; None: tracing is off."""
    switch = switch_of_environment()
    if (switch or has_provider()) and (tracing := otel(switch)) is not None:
        return tracing
    return JobLogContext() if wants_json() else None


def switch_of_environment() -> str | None:
    """The variable that switches tracing on."""
    if (
        os.environ.get(OTEL_DISABLED, "").strip().lower() == "true"
        or os.environ.get(OTEL_EXPORTER, "").strip() == "none"
    ):
        return None
    return next((name for name in OTEL_SWITCHES if os.environ.get(name, "").strip()), None)


def has_provider() -> bool:
    """Whether the program has set up a tracer provider itself."""
    trace = sys.modules.get("opentelemetry.trace")
    is_disabled = os.environ.get(OTEL_DISABLED, "").strip().lower() == "true"
    if trace is None or is_disabled or "opentelemetry.sdk.trace" not in sys.modules:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


@cache
def otel(switch: str | None) -> Tracing | None:
    """Created once per process. Without the package, a warning is logged and tracing stays off."""
    try:
        from leaseway.telemetry.otel import OtelTracing, provider
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        log.warning(
            "%s is set, but OpenTelemetry is not installed, so nothing is traced; install it with: "
            "pip install 'leaseway[otel]', or set %s=true", switch, OTEL_DISABLED,
        )  # fmt: skip
        return None
    made = provider()
    return None if made is None else OtelTracing(made)
