"""Jobs, submissions and explanations; lanes and their pauses."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from leaseway.api.schemas.values import Document, Timestamp, extend, seconds, timestamp
from leaseway.domain.encryption import describe_encrypted
from leaseway.domain.explain.closures import Closure, longest_closure
from leaseway.domain.explain.reasons import Reason
from leaseway.domain.ids import Instant
from leaseway.domain.job import ErrorRecord, Job, State
from leaseway.domain.lane import LaneCount, Pause
from leaseway.domain.validators import parse_stored

LISTED_LENGTH_MAX = 1_000
"""Characters of one value in a list."""


class JobDocument(Document, kw_only=True):
    id: str
    kind: str
    queue: str
    tenant: str
    state: State
    priority: int
    attempts: int
    attempts_max: int
    fence: int
    payload: Any
    shard_key: str | None
    cursor: Any
    progress: Any
    result: Any
    lease_owner: str | None
    lease_until: Timestamp | None
    lease_seconds: float
    timeout_seconds: float | None
    cancel_requested: bool
    created_at: Timestamp | None
    run_at: Timestamp | None
    finished_at: Timestamp | None
    last_error_code: str | None
    last_error_at: Timestamp | None
    needs: Any


class JobListedDocument(JobDocument, kw_only=True):
    """A job in a list."""

    shortened: list[str]
    """The fields that are null because their values are long; request the job itself to read them."""


class FailedAttemptDocument(Document, kw_only=True):
    attempt: int
    at: Timestamp | None
    code: str
    message: str
    traceback: str
    """Empty unless the caller is an operator: it shows code and paths of the worker."""


class JobEventDocument(Document, kw_only=True):
    """One event in the life of a job."""

    at: Timestamp | None
    what: str
    attempt: int | UnsetType = UNSET
    code: str | UnsetType = UNSET
    until: Timestamp | UnsetType | None = UNSET


class JobShownDocument(JobDocument, kw_only=True):
    """A job with its failed attempts and its timeline."""

    errors: list[FailedAttemptDocument]
    timeline: list[JobEventDocument]


class SubmittedDocument(Document, kw_only=True):
    id: str
    kind: str


class ItemSubmittedDocument(Document, kw_only=True):
    """The outcome of one submission of many: an id or a problem."""

    status: int
    id: str | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET
    problem: Mapping[str, Any] | UnsetType = UNSET


class ManySubmittedDocument(Document, kw_only=True):
    items: list[ItemSubmittedDocument]
    """In the order of the request."""


class WaitsForDocument(Document, kw_only=True):
    """One reason why jobs do not start."""

    what: str
    """lane, limit, tenant, budget or session"""
    name: str
    why: str
    wait_seconds: float | None
    advice: str | None


class WhyDocument(Document, kw_only=True):
    id: str
    state: State
    code: str
    text: str
    until: Timestamp | None
    advice: str | None
    waits_for: list[WaitsForDocument]


class ResultDocument(Document, kw_only=True):
    id: str
    state: State
    result: Any


class JobChangedDocument(Document, kw_only=True):
    id: str
    answer: str
    """cancelled, requested, finished, retried or ready"""


class RefusedDocument(Document, kw_only=True):
    id: str
    reason: str


class JobsChangedDocument(Document, kw_only=True):
    """How many jobs were changed. With ids: which jobs were refused. With a filter: how many jobs match, and whether
    there are more than one call changes."""

    cancelled: int | UnsetType = UNSET
    retried: int | UnsetType = UNSET
    discarded: int | UnsetType = UNSET
    refused: list[RefusedDocument] | UnsetType = UNSET
    matching: int | UnsetType = UNSET
    more: bool | UnsetType = UNSET


def job_document(job: Job) -> JobDocument:
    return JobDocument(
        id=job.id,
        kind=job.kind,
        queue=job.queue,
        tenant=job.tenant,
        state=job.state,
        priority=job.priority,
        attempts=job.attempts,
        attempts_max=job.attempts_max,
        fence=job.fence,
        payload=parse_stored(job.payload),
        shard_key=job.shard_key,
        cursor=parse_stored(job.cursor),
        progress=parse_stored(job.progress),
        result=parse_stored(job.result),
        lease_owner=job.lease_owner,
        lease_until=timestamp(job.lease_until),
        lease_seconds=seconds(job.lease_us) or 0.0,
        timeout_seconds=seconds(job.timeout_us),
        cancel_requested=job.cancel_requested,
        created_at=timestamp(job.created_at),
        run_at=timestamp(job.run_at),
        finished_at=timestamp(job.finished_at),
        last_error_code=job.last_error_code,
        last_error_at=timestamp(job.last_error_at),
        needs=parse_stored(job.needs or None),
    )


def listed_job_document(job: Job) -> JobListedDocument:
    """Long values are left out and named in `shortened`, so that the size of a page is bounded."""
    texts = {name: getattr(job, name) for name in ("payload", "cursor", "progress", "result")}
    long = [name for name, text in texts.items() if text is not None and len(text) > LISTED_LENGTH_MAX]
    shown = replace(job, **dict.fromkeys(long, None)) if long else job
    return extend(JobListedDocument, job_document(shown), shortened=long)


def shown_job_document(job: Job, errors: Sequence[ErrorRecord], *, with_tracebacks: bool) -> JobShownDocument:
    attempts = [failed_attempt_document(error, with_traceback=with_tracebacks) for error in errors]
    return extend(JobShownDocument, job_document(job), errors=attempts, timeline=job_timeline(job, errors))


def failed_attempt_document(error: ErrorRecord, *, with_traceback: bool) -> FailedAttemptDocument:
    return FailedAttemptDocument(
        attempt=error.attempt,
        at=timestamp(error.at),
        code=error.code,
        message=describe_encrypted(error.message),
        traceback=describe_encrypted(error.traceback) if with_traceback else "",
    )


def job_timeline(job: Job, errors: Sequence[ErrorRecord]) -> list[JobEventDocument]:
    """The known events in the life of a job, in order."""
    events: list[tuple[Instant, str, dict[str, Any]]] = [(job.created_at, "submitted", {})]
    if job.run_at > job.created_at:
        events.append((job.run_at, "due", {}))
    events += [(error.at, "failed_attempt", {"attempt": error.attempt, "code": error.code}) for error in errors]
    if job.lease_until is not None:
        renewed = {"attempt": job.attempts, "until": timestamp(job.lease_until)}
        events.append((job.lease_until - job.lease_us, "lease_renewed", renewed))
    if job.finished_at is not None:
        events.append((job.finished_at, job.state.value, {"attempt": job.attempts}))
    ordered = sorted(events, key=lambda event: event[0])
    return [JobEventDocument(at=timestamp(at), what=what, **more) for at, what, more in ordered]


def why_document(job: Job, reason: Reason, closures: Sequence[Closure] = ()) -> WhyDocument:
    return WhyDocument(
        id=job.id,
        state=job.state,
        code=reason.code,
        text=reason.text,
        until=timestamp(reason.until),
        advice=reason.advice,
        waits_for=[waits_for_document(closure) for closure in closures],
    )


def waits_for_document(closure: Closure) -> WaitsForDocument:
    return WaitsForDocument(
        what=closure.what,
        name=closure.name,
        why=closure.why,
        wait_seconds=seconds(closure.wait_us),
        advice=closure.advice,
    )


COUNTS = ("ready", "scheduled", "leased", "done", "failed", "cancelled")
ReadySince = Mapping[tuple[str, str, str], Instant]
"""By queue, tenant and needs: since when the oldest ready job of a lane has been ready."""


class CountsDocument(Document, kw_only=True):
    ready: int
    scheduled: int
    leased: int
    done: int
    failed: int
    cancelled: int


class LaneCountsDocument(Document, kw_only=True):
    queue: str
    tenant: str
    needs: Any
    ready: int
    scheduled: int
    leased: int
    done: int
    failed: int
    cancelled: int
    waits_for: list[WaitsForDocument]


class LaneDocument(LaneCountsDocument, kw_only=True):
    oldest_ready_seconds: float | None
    reason: str | None
    """The reason that lasts longest_closure."""
    until: Timestamp | None
    """null: the lane does not wait, or the end of the wait is not known."""


class LanesDocument(Document, kw_only=True):
    items: list[LaneDocument]
    next: str | None
    total: CountsDocument


class LanesPauseDocument(Document, kw_only=True):
    """The lanes of a queue from which no jobs are claimed."""

    queue: str
    tenant: str | None
    """null: all tenants."""
    since: Timestamp | None


class LanesPausedDocument(LanesPauseDocument, kw_only=True):
    paused: bool


def lane_counts_document(lane: LaneCount, closures: Sequence[Closure] = ()) -> LaneCountsDocument:
    return LaneCountsDocument(
        queue=lane.queue,
        tenant=lane.tenant,
        needs=parse_stored(lane.needs or None),
        waits_for=[waits_for_document(closure) for closure in closures],
        **lane_counts(lane),
    )


def lane_document(lane: LaneCount, closures: Sequence[Closure], since: ReadySince, now: Instant) -> LaneDocument:
    closure = longest_closure(closures) if closures else None
    oldest = since.get((lane.queue, lane.tenant, lane.needs))
    return extend(
        LaneDocument,
        lane_counts_document(lane, closures),
        oldest_ready_seconds=None if oldest is None else seconds(max(now - oldest, 0)),
        reason=None if closure is None else f"{closure.what} {closure.name}: {closure.why}",
        until=None if closure is None or closure.wait_us is None else timestamp(now + closure.wait_us),
    )


def lane_counts(lane: LaneCount) -> dict[str, int]:
    return {name: getattr(lane, name) for name in COUNTS}


def total_counts(lanes: Sequence[LaneCount]) -> CountsDocument:
    return CountsDocument(**{name: sum(getattr(lane, name) for lane in lanes) for name in COUNTS})


def pause_document(pause: Pause) -> LanesPauseDocument:
    return LanesPauseDocument(queue=pause.queue, tenant=pause.tenant, since=timestamp(pause.since))
