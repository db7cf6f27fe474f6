"""new definition ─► [compare version, write] ─► limiter, ledger ─► [open lanes, bring forward jobs that fit] ─► store

How limits and budgets are defined, paused and forgotten; the HTTP API and the command line both use this module. A
definition has a version, which the store compares when it writes. A change that lost to a concurrent one starts again
from the definition as it is then.

A worker that finds a limit or a budget used up closes the lanes of the jobs that need it, for a minute at most. A
change opens them, so that a worker asks again at once. Jobs that wait in place, inside a worker, watch the definitions.

A job whose cost did not fit has a hold in a later window of its budget and waits in its lane until that window begins.
Whatever makes room for the hold, or releases it, brings the job forward, too.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from leaseway.domain.budgets.balances import Balance, Evidence, WindowKey
from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.budgets.holds import Correction, Hold
from leaseway.domain.budgets.rebooking import (
    FIRST_BOOKED,
    HoldOwner,
    balances_by_window,
    belongs_to,
    booked_place,
    hold_prefix,
    movable_holds,
    parse_hold_id,
)
from leaseway.domain.errors import LeasewayError, Stale, TransientError, UnknownBudget, UnknownLimit, UsageError
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import CancelResult, JobFilter
from leaseway.domain.job import Job, State
from leaseway.domain.limits.limit import LimitDefinition
from leaseway.domain.requirements import readable_needs
from leaseway.domain.tenant import Tenant, namespace
from leaseway.ports.clock import Clock
from leaseway.ports.definitions import TenantStore
from leaseway.ports.job_store import JobOperations
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter
from leaseway.ports.store import Store

TRIES_MAX = 10
STEP = 500
STEPS_MAX = 2_000
"""A million holds of one budget."""
OPEN_STEP = 1_000
OPEN_STEPS_MAX = 1_000
"""A million lanes. Those that are left open at their time."""
NAMES_LENGTH_MAX = 300
WATCH_SECONDS = 5.0
"""How soon a job that waits in place learns that its limit or budget was changed."""

D = TypeVar("D", LimitDefinition, BudgetDefinition)
CheckVersion = Callable[[int | None], None]
"""Raises an error if the caller expects another version than the present one. None: there is no definition."""


class DefinitionStore(Protocol[D]):
    """The part of a limiter or a ledger that keeps definitions."""

    async def all(self) -> list[tuple[D, int]]: ...
    async def declare(self, definitions: Sequence[D]) -> None: ...
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


class VersionedDefinitions(Generic[D]):
    """The definitions of limits, or those of budgets."""

    def __init__(
        self, what: str, store: DefinitionStore[D], unknown: type[UsageError], jobs: JobOperations | None
    ) -> None:
        self._what = what
        self._store: DefinitionStore[D] = store
        self._unknown = unknown
        self._jobs = jobs
        """None: the jobs are not in reach, and their lanes open at their time."""

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
                changed = DefinitionChange(before, after, await self._store.change(after, expected=version or 0))
            except Stale:
                continue
            if not after.paused:
                await self._open_lanes(name)
            return changed
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
        await self._open_lanes(name)

    async def _open_lanes(self, name: str) -> None:
        if self._jobs is not None:
            await open_lanes(self._jobs, name)

    async def find(self, name: str) -> tuple[D, int]:
        """The definition with its version. UnknownLimit, UnknownBudget: there is none."""
        known = await self.read()
        if name not in known:
            names = ", ".join(known)[:NAMES_LENGTH_MAX] or "none"
            raise self._unknown(f"there is no {self._what} {name!r}; defined are: {names}")
        return known[name]


def limit_definitions(limiter: Limiter, jobs: JobOperations | None) -> VersionedDefinitions[LimitDefinition]:
    return VersionedDefinitions("limit", limiter.definitions, UnknownLimit, jobs)


def budget_definitions(ledger: Ledger, jobs: JobOperations) -> VersionedDefinitions[BudgetDefinition]:
    return VersionedDefinitions("budget", ledger.definitions, UnknownBudget, jobs)


async def open_lanes(jobs: JobOperations, name: str) -> None:
    """Open the lanes that are closed because of this limit or budget, and so by the name of a definition or of one of
    its instances. If the store cannot be reached, they open at their time: the change itself is stored."""
    with contextlib.suppress(TransientError):
        for _ in range(OPEN_STEPS_MAX):
            if await jobs.open_lanes(name, OPEN_STEP) < OPEN_STEP:
                return


async def declare_definitions(store: DefinitionStore[D], declared: Sequence[D], jobs: JobOperations) -> None:
    """Store what the code of a worker declares. Lanes open that were closed by an older declaration."""
    before = await read_if_possible(store)
    await store.declare(declared)
    after = await read_if_possible(store)
    for name in before.keys() & after.keys() & {each.name for each in declared}:
        if before[name] != after[name]:
            await open_lanes(jobs, name)


async def read_if_possible(store: DefinitionStore[D]) -> dict[str, D]:
    """For lanes, which open at their time in any case: a worker must not wait for this."""
    with contextlib.suppress(TransientError):
        return {definition.name: definition for definition, _ in await store.all()}
    return {}


class DefinitionWatch(Generic[D]):
    """Notices that a definition was changed, for jobs that wait in a worker: they have no lane that a change could
    open. One read at a time serves all jobs that wait."""

    def __init__(self, store: DefinitionStore[D], clock: Clock) -> None:
        self._store: DefinitionStore[D] = store
        self._clock = clock
        self._known: list[tuple[D, int]] | None = None
        self._read_at = float("-inf")
        self.changes = 0
        """How many changes were noticed. The first reading is one, because nothing is known before."""

    async def look(self) -> None:
        """Read the definitions if the last reading is old."""
        if self._clock.monotonic() - self._read_at < WATCH_SECONDS:
            return
        self._read_at = self._clock.monotonic()
        with contextlib.suppress(LeasewayError, TimeoutError):  # the jobs ask again in any case, a little later
            async with asyncio.timeout(WATCH_SECONDS):
                known = await self._store.all()
            self.changes += known != self._known
            self._known = known


async def store_tenant(tenants: TenantStore, limiter: Limiter, tenant: Tenant) -> None:
    """The caps are stored first, because a worker that sees a capped tenant must find its limit."""
    if tenant.is_capped:
        await limiter.open()
        await limiter.definitions.change(tenant.definition())
    await tenants.set(tenant)


async def with_stored_quotas(tenants: TenantStore, tenant: Tenant) -> Tenant:
    """For an app that sets weight and caps: an operator has set the quotas."""
    stored = next((each for each in await tenants.all() if each.name == tenant.name), tenant)
    return replace(tenant, quotas=stored.quotas)


# -- jobs that wait for a budget ------------------------------------------------------------------------------------


async def rebook(store: Store, ledger: Ledger, budget: str) -> int:
    """Open the lanes of this budget, and bring forward the jobs that wait for a later window although an earlier one
    has room by now. Returns how many were brought forward."""
    await open_lanes(store.operations, budget)
    return await bring_forward(store, ledger, budget)


async def bring_forward(store: Store, ledger: Ledger, budget: str, *, pages_max: int = STEPS_MAX) -> int:
    """Each of these jobs requests its hold again, which moves it; one that finds the room taken waits on."""
    count, balances = 0, Balances(ledger)
    definitions = [definition for definition, _ in await ledger.definitions.all()]
    async for holds in booked_pages(ledger, budget, pages_max):
        known = await balances.load(line.name for hold in holds for line in hold.lines)
        movable = movable_holds(holds, definitions, known, await store.reads.now())
        count += await run_jobs(store, owners(movable))
    return count


class Balances:
    """The balances of the budgets of many holds, each budget read once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._names: set[str] = set()
        self._by_window: dict[WindowKey, Balance] = {}

    async def load(self, names: Iterable[str]) -> dict[WindowKey, Balance]:
        missing = sorted(set(names) - self._names)
        if missing:
            self._by_window |= balances_by_window(await self._ledger.reads.balances(missing))
            self._names.update(missing)
        return self._by_window


async def booked_pages(ledger: Ledger, budget: str, pages_max: int = STEPS_MAX) -> AsyncIterator[list[Hold]]:
    after = FIRST_BOOKED
    for _ in range(pages_max):
        holds = await ledger.reads.booked(budget, after=after, limit=STEP)
        if not holds:
            break
        after = booked_place(holds[-1])
        yield holds


def owners(holds: Iterable[Hold]) -> list[HoldOwner]:
    """Holds that were not placed by a worker have no job."""
    return [owner for hold in holds if (owner := parse_hold_id(hold.id)) is not None]


async def run_jobs(store: Store, named: Sequence[HoldOwner]) -> int:
    """Make these jobs ready. Returns how many of them were waiting for their time."""
    ids = tuple(dict.fromkeys(owner.job for owner in named))
    jobs = await store.reads.jobs(JobFilter(ids=ids, states=(State.PENDING,)), limit=len(ids)) if ids else []
    waiting = tuple(job.id for job in jobs if HoldOwner(namespace(job.tenant), job.id) in named)
    return len(await store.operations.run_now(JobFilter(ids=waiting), len(waiting))) if waiting else 0


async def forget_budget(store: Store, ledger: Ledger, name: str, check_version: CheckVersion = accept_any) -> int:
    """Remove a budget. The jobs that have waited for one of its windows are brought forward; returns how many."""
    booked = [owner async for holds in booked_pages(ledger, name) for owner in owners(holds)]
    await budget_definitions(ledger, store.operations).forget(name, check_version)
    return sum([await run_jobs(store, booked[start : start + STEP]) for start in range(0, len(booked), STEP)])


async def correct_hold(
    store: Store, ledger: Ledger, hold: str, actuals: Mapping[str, int], evidence: Evidence
) -> tuple[Correction, ...]:
    """Correct a captured hold by the provider's evidence. What it did not cost is there for other jobs at once."""
    corrections = await ledger.correct(hold, actuals, evidence)
    for name in {each.name for each in corrections if each.after_micros < each.before_micros}:
        await rebook(store, ledger, name)
    return corrections


async def cancel_job(store: Store, ledger: Ledger, job: JobId) -> CancelResult:
    """Cancel a job and release what is booked for it. If it runs, its worker releases what it books until it stops."""
    answer = await store.operations.cancel(job)
    is_service = store.inspection is None  # it has released them
    if answer in (CancelResult.CANCELLED, CancelResult.REQUESTED) and not is_service:
        found = await store.reads.job(job)
        for hold in () if found is None else await booked_for_job(ledger, found):
            await ledger.void(hold.id)
    return answer


async def booked_for_job(ledger: Ledger, job: Job) -> Sequence[Hold]:
    """The holds that a job has in windows which have not begun, the next one first."""
    if not readable_needs(job.needs).budgets:
        return ()
    holds = await ledger.reads.booked_for(hold_prefix(job.tenant, job.id))
    return [hold for hold in holds if belongs_to(hold.id, job.tenant, job.id)]
