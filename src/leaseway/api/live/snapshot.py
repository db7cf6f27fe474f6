"""store, limiter, ledger ─► [one reading] ─► change log"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import asdict

from leaseway.api.inspection import try_read_levels
from leaseway.api.live.change_log import JOBS_KEPT, Observation
from leaseway.api.schemas.budgets import accounts_for, budget_document
from leaseway.api.schemas.imports import ImportProgressDocument
from leaseway.api.schemas.jobs import COUNTS, lane_counts_document
from leaseway.api.schemas.limits import limit_document
from leaseway.api.schemas.values import as_dict, timestamp
from leaseway.domain.identity import OPERATOR_TENANT
from leaseway.domain.ids import SECOND_US, Instant, JobId
from leaseway.domain.inspection import JobSummary
from leaseway.domain.lane import LaneCount
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.limits.templates import template_fields
from leaseway.domain.validators import NAME_LENGTH_MAX, parse_stored
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import limits_by_name

OVERLAP_US = 2 * SECOND_US
"""A job is written a moment after the instant at which it finished."""
FIRST_US = 60 * SECOND_US
INSTANTS = frozenset({"lease_until", "created_at", "run_at", "finished_at", "last_error_at"})
TENANT_KINDS = frozenset({"lane", "totals", "import"})


class PolledJobs(NamedTuple):
    """The jobs that a poll reads: how many of each, and which ones."""

    newest: int
    ended: int
    unfinished: int
    followed: Sequence[JobId] = ()


class StoreReading(NamedTuple):
    now: Instant
    observations: list[Observation]
    missing: list[JobId]
    """Jobs that were looked up and do not exist."""


class SnapshotReader:
    def __init__(self, world: Environment, imports: Callable[[], list[ImportProgressDocument]] = list) -> None:
        self._world = world
        self._imports = imports
        """Runs as the import monitor read them last."""
        self._ended_after: Instant | None = None
        self._unfinished: dict[JobId, None] = {}
        """Unfinished jobs of earlier polls, the longest unread first: a subscriber that has received a job must receive
        its end, even if a thousand others were submitted since."""

    async def read(self, wanted: PolledJobs) -> StoreReading:
        """Lanes, totals, imports and jobs."""
        store = self._world.store
        if store.inspection is None:  # a store over HTTP: its own service has the live stream of jobs
            return StoreReading(await store.reads.now(), await self._lanes_and_imports(), [])
        if self._ended_after is None:
            self._ended_after = await store.reads.now() - FIRST_US
        now, recent = await store.inspection.recent(wanted.newest, self._ended_after, wanted.ended)
        self._ended_after = now - OVERLAP_US
        jobs = {job.id: job for job in recent}
        unread = islice((id_ for id_ in self._unfinished if id_ not in jobs), wanted.unfinished)
        wanted_ids = list(dict.fromkeys([*wanted.followed, *unread]))
        if wanted_ids:
            # Read after the others, and so more recent.
            jobs |= {job.id: job for job in await store.inspection.summaries(wanted_ids)}
        observations = await self._lanes_and_imports()
        observations += [Observation("job", each.id, each.tenant, each, job_document) for each in in_order(jobs)]
        missing = [id_ for id_ in wanted_ids if id_ not in jobs]
        self._remember_unfinished(jobs, missing)
        return StoreReading(now, observations, missing)

    async def _lanes_and_imports(self) -> list[Observation]:
        return [*lane_observations(await self._world.store.reads.lanes()), *import_observations(self._imports())]

    def _remember_unfinished(self, jobs: dict[JobId, JobSummary], missing: Iterable[JobId]) -> None:
        for id_ in (*jobs, *missing):
            self._unfinished.pop(id_, None)
        self._unfinished.update(dict.fromkeys(id_ for id_, job in jobs.items() if not job.state.is_final))
        while len(self._unfinished) > JOBS_KEPT:
            del self._unfinished[next(iter(self._unfinished))]

    async def read_shared(self) -> list[Observation]:
        """Limits and budgets, as their own routes show them."""
        now = await self._world.store.reads.now()
        return [*await self._limits(now), *await self._budgets(now)]

    async def _limits(self, now: Instant) -> list[Observation]:
        limiter = self._world.limiter
        defined = await limits_by_name(limiter)
        plain = [PermitRequest(name, name) for name in defined if not template_fields(name)]
        seen = await try_read_levels(limiter, plain)
        return [
            Observation("limit", name, None, limit_document(*each, seen.get(PermitRequest(name, name)), now))
            for name, each in defined.items()
        ]

    async def _budgets(self, now: Instant) -> list[Observation]:
        ledger = self._world.ledger
        definitions, accounts = await ledger.definitions.all(), await ledger.reads.balances()
        return [
            Observation("budget", each.name, None, budget_document(each, version, accounts_for(each, accounts), now))
            for each, version in definitions
        ]


def in_order(jobs: dict[JobId, JobSummary]) -> Iterable[JobSummary]:
    """The jobs that changed last come last, and are kept longest."""
    return sorted(jobs.values(), key=lambda job: (job.finished_at or 0, job.id))


def lane_observations(lanes: Sequence[LaneCount]) -> list[Observation]:
    found = [Observation("lane", lane_key(lane), lane.tenant, lane, lane_document) for lane in lanes]
    totals: dict[str | None, dict[str, int]] = {None: dict.fromkeys(COUNTS, 0)}
    for lane in lanes:
        for tenant in (None, lane.tenant):
            sums = totals.setdefault(tenant, dict.fromkeys(COUNTS, 0))
            for name in COUNTS:
                sums[name] += getattr(lane, name)
    found += [Observation("totals", tenant or "", tenant, sums, totals_document) for tenant, sums in totals.items()]
    return found


def import_observations(runs: Iterable[ImportProgressDocument]) -> list[Observation]:
    return [Observation("import", f"{run.source}\n{run.run}", OPERATOR_TENANT, run) for run in runs]


def lane_key(lane: LaneCount) -> str:
    return "\n".join((lane.queue, lane.tenant, lane.needs))


def lane_document(lane: LaneCount) -> dict[str, Any]:
    """Only the counts: the reasons why a lane waits are at /v1/lanes."""
    document = as_dict(lane_counts_document(lane))
    del document["waits_for"]
    return document


def totals_document(sums: dict[str, int]) -> dict[str, int]:
    return {"pending": sums["ready"] + sums["scheduled"], **sums}


def job_document(job: JobSummary) -> dict[str, Any]:
    """The fields of GET /v1/jobs/{id} that are short."""
    document = {name: timestamp(value) if name in INSTANTS else cut(value) for name, value in asdict(job).items()}
    return {**document, "state": job.state.value, "progress": parse_stored(job.progress)}


def cut(value: object) -> object:
    """Names are short. A damaged row with a long one must not exceed the frames that clients accept."""
    return value[:NAME_LENGTH_MAX] if isinstance(value, str) and len(value) > NAME_LENGTH_MAX else value
