"""submission ─► [quotas of the tenant] ─► store

Enforces the quotas of tenants on everything that is submitted through this process, and on what workers of one tenant
store with their jobs. What a tenant uses is read from the
counters of its lanes, at most once a second, and increased by what this process admits. Other processes read the same
counters, so together they exceed a quota at most by what the others admit within that second. Before a submission is
refused, the use is read again, so that room that was just made is found, and repetitions of submissions that the store
knows are let through: they need no room, and their client waits for the first reply.

A quota that an operator has set applies to every caller. The defaults apply to credentials of one tenant.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from leaseway.api.metrics import Family, Sample, counter
from leaseway.api.ttl_cache import TtlCache
from leaseway.domain.errors import QuotaExceeded
from leaseway.domain.exchange import Exchange
from leaseway.domain.identity import ANY_TENANT, Caller
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import SUMMARIES_MAX, JobSummary
from leaseway.domain.job import Failure, NewJob, Settlement, State
from leaseway.domain.lane import LaneCount
from leaseway.domain.outcome import Backoff, fail_for_child
from leaseway.domain.quota import JOB_BYTES, NO_QUOTAS, Quota, Quotas, TenantUse, exceeded, job_bytes, measure_use
from leaseway.ports.clock import Clock
from leaseway.ports.store import Store, require_inspection
from leaseway.stores.http.messages import CheckpointRequest, ReportRequest, SubmitRequest

USE_SECONDS = 1.0
"""How old the use of a tenant may be when a submission is admitted."""
NO_FAILURE = Failure("", "")
SETTINGS_SECONDS = 2.0
"""How long it takes until other processes know a changed quota."""
TENANTS_MAX = 10_000
"""Above this number, the use of tenants without submissions in progress is dropped."""
ALL = "all"
OF_JOBS = (Quota.LANES, Quota.UNFINISHED, Quota.BYTES)

JobGroup = Sequence[NewJob]
"""Jobs that are stored together or not at all."""
Refusals = Sequence[QuotaExceeded | None]


def is_of_all_tenants(caller: Caller) -> bool:
    return caller.sees_all or caller.tenant == ANY_TENANT


class Booking(Struct, eq=False):
    """What one submission adds."""

    lanes: set[tuple[str, str]]
    """Queue and needs."""
    jobs: int
    """Jobs that it stores, less those that it finishes."""
    bytes: int
    names: set[str]
    """Ids and idempotency keys of the jobs."""
    ended_at: float | None = None
    """When the store had answered. A read that began later has counted it."""

    @classmethod
    def for_jobs(cls, jobs: JobGroup, finished: int = 0) -> "Booking":
        names = {name for job in jobs for name in (job.id, job.key) if name is not None}
        return cls({(job.queue, job.needs) for job in jobs}, len(jobs) - finished, sum(map(job_bytes, jobs)), names)


class CountedUse:
    """What the store has counted for one tenant, and what this process has admitted since."""

    def __init__(self) -> None:
        self.loaded_at = float("-inf")
        self.loading = asyncio.Lock()
        self.bookings: list[Booking] = []
        self._lanes: set[tuple[str, str]] = set()
        self._jobs = self._bytes = 0

    @property
    def is_needed(self) -> bool:
        return self.loading.locked() or any(booking.ended_at is None for booking in self.bookings)

    def replace(self, lanes: Sequence[LaneCount], loaded_at: float) -> None:
        counted = measure_use(lanes)
        self.loaded_at = loaded_at
        self._lanes = {(lane.queue, lane.needs) for lane in lanes}
        self._jobs, self._bytes = counted.unfinished, counted.bytes
        late = [each for each in self.bookings if each.ended_at is None or each.ended_at >= loaded_at]
        self.bookings = []
        for booking in late:
            self._add(booking)

    def admit(
        self, tenant: str, quotas: Quotas, groups: Sequence[JobGroup], finished: int
    ) -> tuple[Refusals, Sequence[Booking]]:
        everything = Booking.for_jobs(list(chain.from_iterable(groups)), finished * len(groups))
        if self._find_exceeded(tenant, quotas, everything) is None:
            self._add(everything)
            return [None] * len(groups), [everything]
        refusals, bookings = list[QuotaExceeded | None](), list[Booking]()
        for group in groups:
            wanted = Booking.for_jobs(group, finished)
            refusals.append(self._find_exceeded(tenant, quotas, wanted))
            if refusals[-1] is None:
                self._add(wanted)
                bookings.append(wanted)
        return refusals, bookings

    def admit_bytes(self, tenant: str, quotas: Quotas, size: int) -> tuple[QuotaExceeded | None, Sequence[Booking]]:
        wanted = Booking(set(), 0, size, set())
        refusal = self._find_exceeded(tenant, quotas, wanted)
        if refusal is not None:
            return refusal, []
        self._add(wanted)
        return None, [wanted]

    def in_progress(self) -> set[str]:
        """Ids and keys of jobs that are being stored."""
        return {name for booking in self.bookings if booking.ended_at is None for name in booking.names}

    def _add(self, booking: Booking) -> None:
        self.bookings.append(booking)
        self._lanes |= booking.lanes
        self._jobs += booking.jobs
        self._bytes += booking.bytes

    def _find_exceeded(self, tenant: str, quotas: Quotas, wanted: Booking) -> QuotaExceeded | None:
        for quota, used, needed in (
            (Quota.LANES, len(self._lanes), len(wanted.lanes - self._lanes)),
            (Quota.UNFINISHED, self._jobs, wanted.jobs),
            (Quota.BYTES, self._bytes, wanted.bytes),
        ):
            limit = quotas.limit(quota)
            if limit is not None and needed > 0 and used + needed > limit:
                return exceeded(tenant, quota, limit, used, needed)
        return None


class TenantQuotas:
    """For one process and its event loop."""

    def __init__(self, store: Store, clock: Clock, defaults: Quotas) -> None:
        self._store = store
        self._clock = clock
        self._defaults = defaults
        self._settings: TtlCache[Mapping[str, Quotas]] = TtlCache(
            self._load_settings, clock, ttl_seconds=SETTINGS_SECONDS, negative_ttl_seconds=0, max_entries=1
        )
        self._uses: dict[str, CountedUse] = {}
        self._refused: Counter[Quota] = Counter(dict.fromkeys(Quota, 0))

    async def quotas(self, tenant: str, caller: Caller | None = None) -> Quotas:
        """The quotas of a tenant, as they apply to this caller; None: to credentials of the tenant."""
        settings = await self._settings.get(ALL) or {}
        is_of_one_tenant = caller is None or not is_of_all_tenants(caller)
        return settings.get(tenant, NO_QUOTAS).with_defaults(self._defaults if is_of_one_tenant else NO_QUOTAS)

    def forget_settings(self) -> None:
        """An operator has changed the quotas of a tenant through this process."""
        self._settings.invalidate(ALL)

    async def use(self, tenant: str) -> TenantUse:
        """What a tenant uses now, for display."""
        now, keys = await self._store.reads.now(), await self._store.keys.all(tenant)
        return measure_use(await self._store.reads.lanes(tenant), sum(key.is_live(now) for key in keys))

    @asynccontextmanager
    async def admit(
        self, caller: Caller, tenant: str, groups: Sequence[JobGroup], finished: int = 0
    ) -> AsyncIterator[Refusals]:
        """Decide which groups of jobs of a tenant may be stored; None: this group may. The block stores them.

        `finished`: how many jobs of the tenant finish with each group."""
        quotas = await self.quotas(tenant, caller)
        if all(quotas.limit(quota) is None for quota in OF_JOBS):
            yield [None] * len(groups)
            return
        arrived, use = self._clock.monotonic(), self._find_use(tenant)
        await self._load(tenant, use, arrived - USE_SECONDS)
        refusals, bookings = use.admit(tenant, quotas, groups, finished)
        if any(refusals) and use.loaded_at < arrived:
            use.bookings = [each for each in use.bookings if each not in bookings]
            await self._load(tenant, use, arrived)
            refusals, bookings = use.admit(tenant, quotas, groups, finished)
        if any(refusals):
            refusals, more = await self._admit_known(tenant, quotas, groups, finished, refusals)
            bookings = [*bookings, *more]
        self.count_refusals(refusals)
        try:
            yield refusals
        finally:
            for booking in bookings:
                booking.ended_at = self._clock.monotonic()

    @asynccontextmanager
    async def admit_texts(self, caller: Caller, tenant: str, size: int) -> AsyncIterator[QuotaExceeded | None]:
        """Decide whether jobs of a tenant may store texts of this size; None: they may. The block stores them."""
        quotas = await self.quotas(tenant, caller)
        if size <= 0 or quotas.limit(Quota.BYTES) is None:
            yield None
            return
        arrived, use = self._clock.monotonic(), self._find_use(tenant)
        await self._load(tenant, use, arrived - USE_SECONDS)
        refusal, bookings = use.admit_bytes(tenant, quotas, size)
        if refusal is not None and use.loaded_at < arrived:
            await self._load(tenant, use, arrived)
            refusal, bookings = use.admit_bytes(tenant, quotas, size)
        self.count_refusals([refusal])
        try:
            yield refusal
        finally:
            for booking in bookings:
                booking.ended_at = self._clock.monotonic()

    async def _admit_known(
        self, tenant: str, quotas: Quotas, groups: Sequence[JobGroup], finished: int, refusals: Refusals
    ) -> tuple[Refusals, Sequence[Booking]]:
        """Decide again about the refused groups, without the jobs that the store knows: it stores none of them again.
        Whether a repetition has the same body is the store's decision."""
        refused = [number for number, refusal in enumerate(refusals) if refusal is not None]
        known = await self._find_known(tenant, [job for number in refused for job in groups[number]])
        new = {number: [job for job in groups[number] if known.isdisjoint((job.id, job.key))] for number in refused}
        again = [number for number in refused if len(new[number]) < len(groups[number])]
        if not again:
            return refusals, []
        decided, bookings = self._find_use(tenant).admit(tenant, quotas, [new[number] for number in again], finished)
        changed = dict(zip(again, decided, strict=True))
        return [changed.get(number, refusal) for number, refusal in enumerate(refusals)], bookings

    async def _find_known(self, tenant: str, jobs: Sequence[NewJob]) -> set[str]:
        """The ids and keys of these jobs that the store knows, or that are being stored."""
        ids, keys = [job.id for job in jobs], [job.key for job in jobs if job.key is not None]
        known = self._find_use(tenant).in_progress() & {*ids, *keys}
        known |= {id_ for id_, job in (await self.read_jobs(ids)).items() if job.tenant == tenant}
        if keys and self._store.inspection is not None:
            known |= set(await self._store.inspection.jobs_for_keys(tenant, keys))
        return known

    async def read_jobs(self, ids: Sequence[JobId]) -> dict[JobId, JobSummary]:
        found, inspection = dict[JobId, JobSummary](), require_inspection(self._store)
        for start in range(0, len(ids), SUMMARIES_MAX):
            found |= {job.id: job for job in await inspection.summaries(ids[start : start + SUMMARIES_MAX])}
        return found

    def count_refusals(self, refusals: Refusals) -> None:
        self._refused.update(Quota(refusal.quota) for refusal in refusals if refusal is not None)

    def families(self) -> Iterator[Family]:
        yield counter(
            "quota_refusals_total", "Jobs and keys that a quota of their tenant has refused in this process.",
            [Sample(count, {"quota": quota}) for quota, count in self._refused.items()],
        )  # fmt: skip

    def _find_use(self, tenant: str) -> CountedUse:
        found = self._uses.get(tenant)
        if found is None:
            if len(self._uses) >= TENANTS_MAX:
                self._uses = {name: each for name, each in self._uses.items() if each.is_needed}
            found = self._uses[tenant] = CountedUse()
        return found

    async def _load(self, tenant: str, use: CountedUse, since: float) -> None:
        """Read the use of a tenant, unless it was read after this time."""
        if use.loaded_at >= since:
            return
        async with use.loading:  # a second submission finds what the first has read
            if use.loaded_at < since:
                loaded_at = self._clock.monotonic()
                use.replace(await self._store.reads.lanes(tenant), loaded_at)

    async def _load_settings(self, _: str) -> Mapping[str, Quotas]:
        return {tenant.name: tenant.quotas for tenant in await self._store.tenants.all() if tenant.quotas.is_set}


# -- the worker protocol ----------------------------------------------------------------------------------------------

QUOTA_BACKOFF = Backoff(first_seconds=60.0, factor=2.0, seconds_max=3_600.0, jitter=0.0)
"""When a job runs again whose children have no room."""


@asynccontextmanager
async def admit_call(quotas: TenantQuotas, caller: Caller, call: Any) -> AsyncIterator[Any]:
    """Apply the quotas to the jobs and texts of a call, and give the call as it is executed inside the block."""
    async with admit_texts(quotas, caller, call) as fitting, admit_jobs(quotas, caller, fitting) as admitted:
        yield admitted


SMALL_BYTES = JOB_BYTES
"""Texts up to this size are always stored, so that jobs of a tenant at its quota can come to their end."""


@asynccontextmanager
async def admit_texts(quotas: TenantQuotas, caller: Caller, call: Any) -> AsyncIterator[Any]:
    """Apply the quota to what a worker of one tenant stores with its jobs. Without room, a checkpoint is refused, and
    progress and tracebacks are left out, because no job depends on them. Results are always stored."""
    if is_of_all_tenants(caller):
        yield call
        return
    async with quotas.admit_texts(caller, caller.tenant, sum(map(large_bytes, stored_texts(call)))) as refusal:
        if refusal is not None and isinstance(call, CheckpointRequest):
            raise refusal
        yield call if refusal is None else without_texts(call)


def stored_texts(call: Any) -> Iterator[str]:
    match call:
        case CheckpointRequest():
            yield call.cursor
        case ReportRequest():
            yield from (report.progress for report in call.reports)
        case Exchange():
            for each in call.settlements:
                failure = each.failure or NO_FAILURE
                yield from (each.result or "", each.progress or "", failure.message, failure.traceback)


def large_bytes(text: str) -> int:
    size = len(text.encode())
    return size if size > SMALL_BYTES else 0


def without_texts(call: Exchange | ReportRequest) -> Exchange | ReportRequest:
    if isinstance(call, ReportRequest):
        return replace(call, reports=tuple(each for each in call.reports if not large_bytes(each.progress)))
    return replace(call, settlements=tuple(map(without_text, call.settlements)))


def without_text(settlement: Settlement) -> Settlement:
    progress, failure = settlement.progress, settlement.failure
    if failure is not None and large_bytes(failure.message + failure.traceback):
        failure = replace(failure, message=failure.message.encode()[:SMALL_BYTES].decode(errors="ignore"), traceback="")
    return replace(settlement, progress=None if progress and large_bytes(progress) else progress, failure=failure)


@asynccontextmanager
async def admit_jobs(quotas: TenantQuotas, caller: Caller, call: Any) -> AsyncIterator[Any]:
    """Apply the quotas to the jobs of a call.

    A submission is refused as a whole. A settlement is always accepted, because refusing it would keep the job leased,
    and with it the only way to make room; but a job whose children have no room runs again later, with an error, until
    it has no attempts left. It fails at once if its children need more than the whole quota.
    """
    groups = {0: call.jobs} if isinstance(call, SubmitRequest) else {}
    if isinstance(call, Exchange):
        groups = {number: each.children for number, each in enumerate(call.settlements) if each.children}
    parts: dict[str, dict[int, list[NewJob]]] = {}
    for number, jobs in groups.items():
        for job in jobs:
            parts.setdefault(job.tenant, {}).setdefault(number, []).append(job)
    refused: dict[int, QuotaExceeded] = {}
    async with AsyncExitStack() as admitted:
        for tenant, by_group in parts.items():
            admission = quotas.admit(caller, tenant, list(by_group.values()), int(isinstance(call, Exchange)))
            refusals = await admitted.enter_async_context(admission)
            refused |= {number: each for number, each in zip(by_group, refusals, strict=True) if each is not None}
        if refused and isinstance(call, SubmitRequest):
            raise refused[0]
        if refused:
            parents = await quotas.read_jobs([call.settlements[number].id for number in refused])
            call = withhold(call, refused, parents)
        yield call


def withhold(call: Exchange, refused: Mapping[int, QuotaExceeded], parents: Mapping[JobId, JobSummary]) -> Exchange:
    settlements = list(call.settlements)
    for number, refusal in refused.items():
        parent = settlements[number]
        settlements[number] = (
            fail_for_child(parent, str(refusal))
            if refusal.is_permanent
            else settle_for_quota(parent, parents.get(parent.id), refusal)
        )
    return replace(call, settlements=tuple(settlements))


def settle_for_quota(settlement: Settlement, parent: JobSummary | None, refusal: QuotaExceeded) -> Settlement:
    """The settlement of a job that succeeded, but whose children have no room now. The handler runs again, so the
    attempt counts: effects are repeated as often as the job may be attempted, not for as long as there is no room."""
    failure = Failure("quota_exceeded", str(refusal))
    attempts, is_last = (1, False) if parent is None else (parent.attempts, parent.attempts >= parent.attempts_max)
    if is_last:
        return replace(settlement, state=State.FAILED, children=(), result=None, failure=failure)
    return replace(
        settlement, state=State.PENDING, children=(), result=None, run_at=None, failure=failure,
        delay_us=QUOTA_BACKOFF.delay_us(attempts, 0.0),
    )  # fmt: skip
