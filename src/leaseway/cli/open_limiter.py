"""Open the limiter that the options name. Reading never creates anything."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from leaseway.cli.open_store import closing, existing, ledger_in, looked_into, refuse_memory, store_url
from leaseway.cli.options import CliSettings
from leaseway.cli.output.console import note
from leaseway.domain.budgets.budget import Charge
from leaseway.domain.errors import LeasewayError
from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import LevelReading, unreachable_limit
from leaseway.domain.ids import Instant
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest
from leaseway.domain.validators import url_scheme
from leaseway.ports.job_store import JobOperations
from leaseway.ports.limiter import Limiter
from leaseway.ports.store import Store
from leaseway.wiring import limiter_at
from leaseway.worker import explain_waits
from leaseway.worker.definitions import VersionedDefinitions, limit_definitions
from leaseway.worker.explain_waits import ClosedGates, Closures, Defined

T = TypeVar("T")

VARIABLE = "LEASEWAY_LIMITS"
JOB_STORES = ("sqlite", "postgresql", "mongodb", "mongodb+srv", "memory", "")


def limits_url(settings: CliSettings) -> str:
    """The URL from the option or the environment; without either, the store of the jobs."""
    return named_limits(settings) or store_url(settings)


def named_limits(settings: CliSettings) -> str | None:
    """The limiter URL that was given, if any."""
    return settings.limits or os.environ.get(VARIABLE) or None


def ask_limiter(settings: CliSettings, question: Callable[[Limiter | None], Awaitable[T]]) -> T:
    """Run a query on the limiter. None: no limit was ever stored there."""

    async def put() -> T:
        url = limits_url(settings)
        if is_beside_jobs(url):
            async with looked_into(url):  # raises an error if the address is wrong
                pass
        async with looking(url) as limiter:
            return await question(limiter)

    return asyncio.run(put())


LimitCommand = Callable[[VersionedDefinitions[LimitDefinition]], Awaitable[T]]


def change_limits(settings: CliSettings, command: LimitCommand[T]) -> T:
    """Change the definitions of limits. Lanes that wait for a limit open, if their store is there."""

    async def put() -> T:
        url = limits_url(settings)
        if is_beside_jobs(url):
            async with closing(url) as store:
                await existing(store, url)
        async with job_operations(settings) as jobs, opened_limiter(url) as limiter:
            return await command(limit_definitions(limiter, jobs))

    return asyncio.run(put())


@asynccontextmanager
async def job_operations(settings: CliSettings) -> AsyncIterator[JobOperations | None]:
    """None: the limits are kept elsewhere, and the store of the jobs is not in reach of this command."""
    url, found = store_url(settings), None
    async with closing(url) as store:
        try:
            await existing(store, url)
            await store.open()
            found = store.operations
        except LeasewayError as error:
            if named_limits(settings) is None:
                raise
            note(f"jobs that wait for the limit are tried again within a minute, not at once: {error}")
        yield found


def is_beside_jobs(url: str) -> bool:
    return url_scheme(url) in JOB_STORES


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[Limiter | None]:
    """The limiter stays unopened: opening it would create its tables."""
    refuse_memory(url)
    limiter = limiter_at(url)
    try:
        yield limiter if is_there(limiter) else None
    finally:
        await limiter.close()


def is_file(limiter: Limiter) -> bool:
    return hasattr(limiter, "path")


def is_there(limiter: Limiter) -> bool:
    """Whether a file exists and is not empty, as an unfinished one is. A server reports this when it is queried."""
    if not is_file(limiter):
        return True
    path = Path(getattr(limiter, "path", ""))
    return path.exists() and path.stat().st_size > 0


@asynccontextmanager
async def opened_limiter(url: str) -> AsyncIterator[Limiter]:
    refuse_memory(url)
    limiter = limiter_at(url)
    try:
        await limiter.open()
        yield limiter
    finally:
        await limiter.close()


async def load_definitions(limiter: Limiter | None) -> Defined:
    """By name, each with its version."""
    return {} if limiter is None else await explain_waits.limits_by_name(limiter)


async def look_at(limiter: Limiter, asks: Iterable[PermitRequest]) -> dict[PermitRequest, LevelReading]:
    """The levels of all definitions; one that is removed at this moment is left out."""
    if is_file(limiter):
        await limiter.open()  # creates nothing: the file exists
    return await explain_waits.read_levels(limiter, asks)


async def shut_gates(settings: CliSettings, store: Store, gates: Iterable[Gate], now: Instant) -> ClosedGates:
    """The closed gates with all their reasons. `now` is on the store's clock."""

    async def limits(asks: Sequence[PermitRequest]) -> Closures:
        return await shut_limits(settings, asks)

    async def budgets(charges: Sequence[Charge]) -> Closures:
        return await explain_waits.closed_budgets(ledger_in(store, settings), charges, now)

    return await explain_waits.closed_gates(store.tenants, gates, limits, budgets)


async def shut_limits(settings: CliSettings, asks: Sequence[PermitRequest]) -> Closures:
    try:
        async with looking(limits_url(settings)) as limiter:
            defined = await load_definitions(limiter)
            known = [ask for ask in asks if ask.limit in defined]
            seen = await look_at(limiter, known) if limiter is not None else {}
    except LeasewayError as error:
        # Workers may reach a limiter that this process cannot reach; the rest of the answer is still useful.
        return {ask: unreachable_limit(ask, error) for ask in asks}
    return explain_waits.closed_by_levels(asks, defined, seen)
