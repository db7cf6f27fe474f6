"""The only place that knows every adapter: an address becomes a store, the machine becomes a world."""

from urllib.parse import urlsplit

from leaseway.domain.addresses import shown
from leaseway.domain.errors import StoreRefused
from leaseway.flows.world import World
from leaseway.ports.events import Events
from leaseway.ports.store import Store
from leaseway.system import SystemChance, SystemClock, SystemIds, wall_clock_us

KNOWN = (
    "sqlite:///work.db (beside you), sqlite:////var/lib/work.db (anywhere), postgresql://user@host/database, "
    "memory:// (gone when the process ends)"
)


def store_at(url: str) -> Store:
    """The store at an address, not yet opened."""
    match urlsplit(url).scheme:
        case "sqlite":
            from leaseway.stores.sqlite.store import SqliteStore

            return SqliteStore(sqlite_path(url), wall_clock_us)
        case "postgresql" | "postgres":
            return postgres_store(url)
        case "memory":
            from leaseway.stores.memory.store import MemoryStore

            return MemoryStore(wall_clock_us)
        case "":
            raise StoreRefused(f"{shown(url)!r} is not a store's address; did you mean sqlite:///{shown(url)}?")
        case scheme:
            raise StoreRefused(f"{scheme}:// is not a store that this leaseway knows; there are {KNOWN}")


def postgres_store(url: str) -> Store:
    try:
        from leaseway.stores.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreRefused("PostgreSQL needs its driver; install it with: pip install 'leaseway[postgres]'") from None
    return PostgresStore(url)


def sqlite_path(url: str) -> str:
    """sqlite:///work.db is relative, sqlite:////work.db absolute."""
    path = url.removeprefix("sqlite://")
    if not path.startswith("/") or path == "/":
        raise StoreRefused(f"{url!r} names no file; write three slashes and a path: sqlite:///work.db")
    return path[1:]


def world_of(store: Store, events: Events) -> World:
    return World(store, SystemClock(), SystemChance(), SystemIds(), events)
