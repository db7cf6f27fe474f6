"""new definition ─► [compare version, write] ─► limiter, ledger

How limits and budgets are defined, paused and forgotten; the HTTP API and the command line both use this module. A
definition has a version, which the store compares when it writes. A change that lost to a concurrent one starts again
from the definition as it is then.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.errors import Stale, TransientError, UnknownBudget, UnknownLimit, UsageError
from leaseway.domain.limits.limit import LimitDefinition
from leaseway.domain.tenant import Tenant
from leaseway.ports.definitions import TenantStore
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter

TRIES_MAX = 10
NAMES_LENGTH_MAX = 300

D = TypeVar("D", LimitDefinition, BudgetDefinition)
CheckVersion = Callable[[int | None], None]
"""Raises an error if the caller expects another version than the present one. None: there is no definition."""


class DefinitionStore(Protocol[D]):
    """The part of a limiter or a ledger that keeps definitions."""

    async def all(self) -> list[tuple[D, int]]: ...
    async def change(self, definition: D, *, expected: int | None = None) -> int: ...
    async def forget(self, name: str) -> bool: ...


class DefinitionChange(NamedTuple, Generic[D]):
    before: D | None
    after: D
    version: int


class TooManyWriters(TransientError):
    """Concurrent writers changed the definition each time. Nothing was changed by this one."""


def accept_any(version: int | None) -> None:
    """For callers that do not care which version they change."""


class Definitions(Generic[D]):
    """The definitions of limits, or those of budgets."""

    def __init__(self, what: str, store: DefinitionStore[D], unknown: type[UsageError]) -> None:
        self._what = what
        self._store: DefinitionStore[D] = store
        self._unknown = unknown

    async def read(self) -> dict[str, tuple[D, int]]:
        """All definitions by name, each with its version."""
        return {definition.name: (definition, version) for definition, version in await self._store.all()}

    async def change(
        self, name: str, make: Callable[[D | None], D], check_version: CheckVersion = accept_any
    ) -> DefinitionChange[D]:
        """Write what `make` returns for the present definition; None: there is none yet."""
        for _ in range(TRIES_MAX):
            before, version = (await self.read()).get(name, (None, None))
            check_version(version)
            after = make(before)
            try:
                return DefinitionChange(before, after, await self._store.change(after, expected=version or 0))
            except Stale:
                continue
        raise TooManyWriters(f"{self._what} {name}: lost to concurrent writers {TRIES_MAX} times; try again")

    async def pause(self, name: str, is_paused: bool, check_version: CheckVersion = accept_any) -> DefinitionChange[D]:
        """Pause or resume. Nothing is written if the definition already is in that state."""
        before, version = await self.find(name)
        if before.paused == is_paused:
            check_version(version)
            return DefinitionChange(before, before, version)

        def make(present: D | None) -> D:
            if present is None:
                raise self._unknown(f"there is no {self._what} {name!r}; it was removed meanwhile")
            return replace(present, paused=is_paused)

        return await self.change(name, make, check_version)

    async def forget(self, name: str, check_version: CheckVersion = accept_any) -> None:
        _, version = await self.find(name)
        check_version(version)
        await self._store.forget(name)

    async def find(self, name: str) -> tuple[D, int]:
        """The definition with its version. UnknownLimit, UnknownBudget: there is none."""
        known = await self.read()
        if name not in known:
            names = ", ".join(known)[:NAMES_LENGTH_MAX] or "none"
            raise self._unknown(f"there is no {self._what} {name!r}; defined are: {names}")
        return known[name]


def limit_definitions(limiter: Limiter) -> Definitions[LimitDefinition]:
    return Definitions("limit", limiter.definitions, UnknownLimit)


def budget_definitions(ledger: Ledger) -> Definitions[BudgetDefinition]:
    return Definitions("budget", ledger.definitions, UnknownBudget)


async def store_tenant(tenants: TenantStore, limiter: Limiter, tenant: Tenant) -> None:
    """The caps are stored first, because a worker that sees a capped tenant must find its limit."""
    if tenant.is_capped:
        await limiter.open()
        await limiter.definitions.change(tenant.definition())
    await tenants.set(tenant)
