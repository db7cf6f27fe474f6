"""Open the store that the options name. Reading never creates, changes or locks anything."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from leaseway.cli.options import CliSettings
from leaseway.domain.errors import NoSuchJob, SchemaVersions, StoreRefused
from leaseway.domain.ids import JobId
from leaseway.domain.job import Job
from leaseway.domain.redact import redact_url
from leaseway.domain.validators import url_scheme
from leaseway.ports.ledger import Ledger
from leaseway.ports.store import Store
from leaseway.wiring import open_ledger, sqlite_path, store_at

T = TypeVar("T")

DEFAULT_URL = "sqlite:///leaseway.db"
VARIABLE = "LEASEWAY_STORE"
ID_LENGTH = 26


def store_url(settings: CliSettings, of_app: str = DEFAULT_URL) -> str:
    """The URL from the option, the environment, the app, or the default."""
    return settings.store or os.environ.get(VARIABLE) or of_app


def ask(settings: CliSettings, question: Callable[[Store], Awaitable[T]]) -> T:
    """Run a query on a store that exists."""
    return asyncio.run(_with(looked_into(store_url(settings)), question))


def ask_service(settings: CliSettings, path: str, kind: type[T]) -> T | None:
    """A document of the service, if the store is one: a key may read it without reading all that it is made of."""
    url = store_url(settings)
    if url_scheme(url) not in ("http", "https"):
        return None

    async def get() -> T:
        from leaseway.stores.http.client import ServiceClient, parse_address

        client = ServiceClient(parse_address(url))
        try:
            return await client.get(path, kind)
        finally:
            await client.close()

    return asyncio.run(get())


def change(settings: CliSettings, command: Callable[[Store], Awaitable[T]], *, must_exist: bool = True) -> T:
    """Change a store that exists, or that this command may create."""
    return asyncio.run(_with(opened(store_url(settings), must_exist=must_exist), command))


async def _with(store: AbstractAsyncContextManager[Store], use: Callable[[Store], Awaitable[T]]) -> T:
    async with store as open_store:
        return await use(open_store)


@asynccontextmanager
async def looked_into(url: str) -> AsyncIterator[Store]:
    """For reading only. The store stays unopened: opening it would take a lock and update its schema."""
    async with closing(url) as store:
        versions = await existing(store, url)
        if versions.is_due:
            raise StoreRefused(
                f"{redact_url(url)} has schema version {versions.present}; {versions.newest} is required; "
                "run: leaseway migrate"
            )
        yield store


@asynccontextmanager
async def opened(url: str, *, must_exist: bool = False) -> AsyncIterator[Store]:
    async with closing(url) as store:
        if must_exist:
            await existing(store, url)
        await store.open()
        yield store


@asynccontextmanager
async def closing(url: str) -> AsyncIterator[Store]:
    refuse_memory(url)
    store = store_at(url)
    try:
        yield store
    finally:
        await store.close()


async def existing(store: Store, url: str) -> SchemaVersions:
    """The schema version of a store, if it exists."""
    is_file = url_scheme(url) == "sqlite"
    path = Path(sqlite_path(url)) if is_file else None
    versions = SchemaVersions(0, 0) if path is not None and not path.exists() else await store.versions()
    if not versions.present and (path is None or not path.exists()):
        missing = f" (no file {path.absolute()})" if path is not None else ""
        raise StoreRefused(
            f"there is no store at {redact_url(url)}{missing}; name another one with --store or {VARIABLE}, "
            f"or create it with: leaseway migrate --store {redact_url(url)}"
        )
    return versions


def refuse_memory(url: str) -> None:
    if url_scheme(url) == "memory":
        raise StoreRefused(f"{url} exists only within one process; name a file: {DEFAULT_URL}")


def ledger_in(store: Store, settings: CliSettings) -> Ledger:
    """The budgets in this store."""
    return open_ledger(store, store_url(settings))


async def find_job(store: Store, id_: str) -> Job:
    """The record of a job, or an error that says what may be wrong."""
    job = await store.reads.job(JobId(id_))
    if job is None:
        raise NoSuchJob(unknown(id_))
    return job


def unknown(id_: str) -> str:
    if len(id_) != ID_LENGTH:
        return f"there is no job {id_!r}; ids have {ID_LENGTH} characters and are written in full (leaseway jobs list)"
    return f"there is no job {id_}; it may have been pruned or discarded, or belong to another store"
