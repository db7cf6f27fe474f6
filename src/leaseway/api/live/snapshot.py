"""store, limiter, ledger ─► [one look] ─► board"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from msgspec.structs import asdict

from leaseway.api.inspection import try_read_levels
from leaseway.api.live.change_log import JOBS_KEPT, Sighting
from leaseway.api.schemas.budgets import accounts_for, budget_document
from leaseway.api.schemas.imports import ImportProgressDocument
from leaseway.api.schemas.lanes import COUNTS, lane_counts_document
from leaseway.api.schemas.limits import limit_document
from leaseway.api.schemas.values import Document, as_dict, parse_stored, timestamp
from leaseway.domain.ids import SECOND_US, Instant, JobId
from leaseway.domain.inspection import JobSummary
from leaseway.domain.lane import LaneCount
from leaseway.domain.limits.limit import PermitRequest, template_fields
from leaseway.worker.environment import Environment
from leaseway.worker.explain_waits import limits_by_name

OVERLAP_US = 2 * SECOND_US
"""What ends is written a moment after its instant."""
FIRST_US = 60 * SECOND_US
PROGRESS_MAX = 2_000
INSTANTS = frozenset({"lease_until", "created_at", "run_at", "finished_at", "last_error_at"})


class Wanted(NamedTuple):
    """Jobs that a look shall see."""

    newest: int
    ended: int
    again: int
    followed: Sequence[JobId] = ()


class Seen(NamedTuple):
    now: Instant
    sightings: list[Sighting]
    missing: list[JobId]
    """Jobs that were sought, and are not there."""


class Sights:
    def __init__(self, world: Environment, imports: Callable[[], list[ImportProgressDocument]] = list) -> None:
        self._world = world
        self._imports = imports
        """Runs as they were seen last: to look at them again is not our affair."""
        self._ended_after: Instant | None = None
        self._open: dict[JobId, None] = {}
        """Jobs that were seen and had not ended, those that were looked at longest ago first: who was told of one shall
        hear how it ended, even if a thousand others have come since."""

    async def look(self, wanted: Wanted) -> Seen:
        """Lanes, totals and jobs."""
        store = self._world.store
        inspection = store.inspection
        if inspection is None:  # a store over HTTP: the service behind it reports its jobs
            return Seen(
                await store.reads.now(), [*lanes_seen(await store.reads.lanes()), *imports_seen(self._imports())], []
            )
        if self._ended_after is None:
            self._ended_after = await store.reads.now() - FIRST_US
        now, lately = await inspection.recent(wanted.newest, self._ended_after, wanted.ended)
        self._ended_after = now - OVERLAP_US
        jobs = {glimpse.id: glimpse for glimpse in lately}
        again = islice((id_ for id_ in self._open if id_ not in jobs), wanted.again)
        sought = list(dict.fromkeys([*wanted.followed, *again]))
        if sought:
            # Asked later than the others, and so nearer to how it is.
            jobs |= {glimpse.id: glimpse for glimpse in await inspection.summaries(sought)}
        sightings = [*lanes_seen(await store.reads.lanes()), *imports_seen(self._imports())]
        sightings += [Sighting("job", each.id, each.tenant, each, job_document) for each in in_order(jobs)]
        missing = [id_ for id_ in sought if id_ not in jobs]
        self._remember(jobs, missing)
        return Seen(now, sightings, missing)

    def _remember(self, jobs: dict[JobId, JobSummary], missing: Iterable[JobId]) -> None:
        for id_ in (*jobs, *missing):
            self._open.pop(id_, None)
        self._open.update(dict.fromkeys(id_ for id_, job in jobs.items() if not job.state.is_final))
        while len(self._open) > JOBS_KEPT:
            del self._open[next(iter(self._open))]

    async def look_at_shared(self) -> list[Sighting]:
        """Limits and budgets, as their own routes show them."""
        now = await self._world.store.reads.now()
        return [*await self._limits(now), *await self._budgets(now)]

    async def _limits(self, now: Instant) -> list[Sighting]:
        limiter = self._world.limiter
        defined = await limits_by_name(limiter)
        seen = await try_read_levels(
            limiter, [PermitRequest(name, name) for name in defined if not template_fields(name)]
        )
        return [shared("limit", name, limit_document(*each, seen.get(PermitRequest(name, name)), now))
                for name, each in defined.items()]  # fmt: skip

    async def _budgets(self, now: Instant) -> list[Sighting]:
        ledger = self._world.ledger
        definitions, accounts = await ledger.definitions.all(), await ledger.reads.balances()
        return [shared("budget", each.name, budget_document(each, version, accounts_for(each, accounts), now))
                for each, version in definitions]  # fmt: skip


SHARED_KINDS = frozenset({"limit", "budget"})
OWN_KINDS = frozenset({"lane", "totals", "import"})
IMPORTS_OF = "default"
"""The tenant whose jobs the shards of imports are."""


def shared(kind: str, name: str, document: Document) -> Sighting:
    return Sighting(kind, name, None, document)


def in_order(jobs: dict[JobId, JobSummary]) -> Iterable[JobSummary]:
    """Those that changed last are told last, and kept longest."""
    return sorted(jobs.values(), key=lambda job: (job.finished_at or 0, job.id))


def lanes_seen(lanes: Sequence[LaneCount]) -> list[Sighting]:
    found = [Sighting("lane", key_of(lane), lane.tenant, lane, lane_document) for lane in lanes]
    totals: dict[str | None, dict[str, int]] = {None: dict.fromkeys(COUNTS, 0)}
    for lane in lanes:
        for whose in (None, lane.tenant):
            sums = totals.setdefault(whose, dict.fromkeys(COUNTS, 0))
            for name in COUNTS:
                sums[name] += getattr(lane, name)
    found += [Sighting("totals", name or "", name, sums, totals_document) for name, sums in totals.items()]
    return found


def imports_seen(runs: Iterable[ImportProgressDocument]) -> list[Sighting]:
    return [Sighting("import", f"{run.source}\n{run.run}", IMPORTS_OF, run) for run in runs]


def key_of(lane: LaneCount) -> str:
    return "\n".join((lane.queue, lane.tenant, lane.needs))


def lane_document(lane: LaneCount) -> dict[str, Any]:
    """Only the counters: what keeps a lane shut is asked for at /v1/lanes."""
    document = as_dict(lane_counts_document(lane))
    del document["waits_for"]
    return document


def totals_document(sums: dict[str, int]) -> dict[str, int]:
    return {"pending": sums["ready"] + sums["scheduled"], **sums}


def job_document(job: JobSummary) -> dict[str, Any]:
    """Named as in GET /v1/jobs/{id}, without what may be long."""
    document = {name: timestamp(value) if name in INSTANTS else value for name, value in asdict(job).items()}
    is_short = job.progress is not None and len(job.progress) <= PROGRESS_MAX
    return {**document, "state": job.state.value, "progress": parse_stored(job.progress) if is_short else None}
