"""Values for inspecting a store: filters, search results, summaries of jobs, workers with leases, waiting lanes.

A search of a store with very many jobs is bounded: it examines a limited number of jobs, whether it has found what it
looks for or not, and returns the position at which to continue. A store may search several indexes at once, each from
the newest job to the oldest, and merge the results.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple, TypeVar

from msgspec import MsgspecError, Struct

from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import Instant, JobId, WorkerId
from leaseway.domain.job import Job, State

PAGE_MAX = 1_000
PAGE_BYTES_MAX = 4 * 1024 * 1024
"""A page of full jobs ends with the job whose texts reach this size. Each of the four texts of a job has up to 256 KiB,
and up to twice as much as a JSON string."""

KEYS_PER_JOB = 20
"""How many expired idempotency keys may be pruned with each old job. Keys outlive their jobs and must not pile up."""


A = TypeVar("A")
T = TypeVar("T")
DAMAGE = (LeasewayError, MsgspecError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""What parsing raises for a row that was changed by hand, by a defect, or by a version with other rules."""


def only_usable(rows: Iterable[A], parse: Callable[[A], T]) -> list[T]:
    """What these rows contain. One that cannot be used is left out: a list must show all the others."""
    found: list[T] = []
    for row in rows:
        with suppress(*DAMAGE):
            found.append(parse(row))
    return found


class JobFilter(Struct, frozen=True, kw_only=True):
    """All conditions must hold; None means any."""

    ids: tuple[JobId, ...] | None = None
    states: tuple[State, ...] | None = None
    kind: str | None = None
    queue: str | None = None
    tenant: str | None = None
    error_code: str | None = None
    shard_key: str | None = None


class CancelResult(StrEnum):
    """The result of cancelling a job."""

    CANCELLED = "cancelled"
    """It was pending and will not run."""
    REQUESTED = "requested"
    """It is running, and its worker is told. It ends as cancelled, unless it finishes first."""
    FINISHED = "finished"
    """It had finished before."""
    UNKNOWN = "unknown"
    """There is no such job."""


SCAN_MAX = 5_000
"""The most jobs that one search examines."""
SEARCH_LANES_MAX = 50
"""Up to this many matching lanes are searched one by one; with more, all jobs are searched, whatever their lane."""
NEWEST = JobId("~")
"""Sorts after every id."""


class SearchStep(NamedTuple):
    """The result of searching one index, newest first."""

    ids: Sequence[JobId]
    upto: JobId | None
    """The id up to which it searched; None: to the end."""


class SearchPage(NamedTuple):
    jobs: list[Job]
    upto: JobId | None
    """Where to continue; None: there are no more jobs. Older jobs have not been examined, even if few were found."""


def merge_steps(ways: Sequence[SearchStep], limit: int) -> SearchStep:
    """Merge the results of several indexes. The merged search reaches as far as the one that reached least far."""
    upto = max((way.upto for way in ways if way.upto is not None), default=None)
    ids = {id_ for way in ways for id_ in way.ids if upto is None or id_ >= upto}
    newest = sorted(ids, reverse=True)[:limit]
    return SearchStep(newest, newest[-1] if len(ids) > limit else upto)


def text_bytes(job: Job) -> int:
    return sum(len(text.encode()) for text in (job.payload, job.cursor, job.progress, job.result) if text is not None)


def cut_page(jobs: Iterable[Job], bytes_max: int | None) -> list[Job]:
    """The jobs up to the one whose texts reach this size. The others are not read from the iterator."""
    if bytes_max is None:
        return list(jobs)
    page, size = list[Job](), 0
    for job in jobs:
        page.append(job)
        size += text_bytes(job)
        if size >= bytes_max:
            break
    return page


def is_cut(jobs: Iterable[Job], bytes_max: int = PAGE_BYTES_MAX) -> bool:
    """Whether more jobs may follow, although there are fewer than wanted."""
    return sum(map(text_bytes, jobs)) >= bytes_max


OWNERS_MAX = 1_000
ENDED_MAX = 20_000
"""About how many finished jobs are counted."""


class LeaseOwner(Struct, frozen=True, kw_only=True):
    """A worker that holds leases."""

    name: WorkerId
    leased: int
    expired: int
    """Leases that have expired and were not reclaimed yet."""
    seen_at: Instant
    """When it last claimed or renewed one of them."""
    until: Instant
    """When the first of them expires, unless it is renewed."""


class LaneWait(Struct, frozen=True, kw_only=True):
    """A lane with ready jobs."""

    queue: str
    tenant: str
    needs: str = ""
    since: Instant
    """When the job that waits longest became ready."""


class EndedCount(Struct, frozen=True, kw_only=True):
    queue: str
    tenant: str
    state: State
    count: int


SUMMARIES_MAX = 1_000
SUMMARY_PROGRESS_BYTES_MAX = 2_000


class JobSummary(Struct, frozen=True, kw_only=True):
    """A job without payload, result and cursor, which may be long, and without progress that is long."""

    id: JobId
    kind: str
    queue: str
    tenant: str
    state: State
    priority: int
    attempts: int
    attempts_max: int
    progress: str | None
    """None if it is longer than `SUMMARY_PROGRESS_BYTES_MAX`, too."""
    lease_owner: str | None
    lease_until: Instant | None
    cancel_requested: bool
    created_at: Instant
    run_at: Instant
    finished_at: Instant | None
    last_error_code: str | None
    last_error_at: Instant | None
