"""Jobs as documents, and back.

    {_id, kind, queue, tenant, needs, shard_key, status, priority, run_at, seq, attempts, attempts_max, fence,
     lease: {owner, until, token}, cursor, progress, payload, result, last_error: {code, at}, errors: [...], ...}

A field without a value is left out. `lease` exists if and only if the job is leased, `finished_at` if and only if it
has finished. `at` is when the status ends or began, for the index that orders jobs of a status by time: `run_at` of a
scheduled job, `lease.until` of a leased one, `finished_at` of a finished one; ready jobs have none. `turn` orders the
pending jobs of a lane: a small one comes first.

Times are microseconds since 1970 on the server's clock: in a shell, `new Date(job.run_at / 1000)`.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from threading import Lock
from typing import Any, TypeVar

import msgspec
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.int64 import Int64
from msgspec import inspect

from leaseway.domain.exchange import ERRORS_MAX
from leaseway.domain.ids import Instant, JobId, Token, WorkerId
from leaseway.domain.inspection import SUMMARY_PROGRESS_BYTES_MAX, JobSummary
from leaseway.domain.job import ErrorRecord, Failure, Job, Lease, NewJob, Settlement, State
from leaseway.domain.lane import Pause
from leaseway.domain.limits.limit import Rate
from leaseway.domain.outcome import usable_lease_us
from leaseway.domain.quota import Quotas
from leaseway.domain.tenant import Tenant

READY, SCHEDULED, LEASED, DONE, FAILED, CANCELLED = "ready", "scheduled", "leased", "done", "failed", "cancelled"
STATUSES = (READY, SCHEDULED, LEASED, DONE, FAILED, CANCELLED)
PENDING = (READY, SCHEDULED)
FINAL = (DONE, FAILED, CANCELLED)
AFTER_EXPIRY = {State.PENDING: READY, State.FAILED: FAILED, State.CANCELLED: CANCELLED}

T = TypeVar("T")
Doc = dict[str, Any]
TIMED: Doc = {"at": {"$exists": True}}
"""Holds for scheduled, leased and finished jobs: their index on the time at which something is due has no others."""
ALL_LEASED: Doc = {"status": LEASED, **TIMED}
"""Without the second condition, the server would read every job that is stored."""
LaneKey = tuple[str, str, str]
"""Queue, tenant and needs."""

KEPT_TEXTS = ("cursor", "progress", "result")
"""What a job keeps besides its payload and its errors."""


class PlainIntegers(TypeDecoder):
    """The driver's own numbers of 64 bits, which cannot be encoded as JSON, become plain ones."""

    bson_type = Int64

    def transform_bson(self, value: int) -> int:
        return int(value)


CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True, tzinfo=UTC, type_registry=TypeRegistry([PlainIntegers()])
)

FAST_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True, tzinfo=UTC)
"""For many documents at once; `parse_lease` makes the numbers plain. Calling `PlainIntegers` for each number of 64
bits takes as long as all else that decoding does."""


class Sequence64:
    """Numbers that increase with every submission of this process, and follow the store's clock between processes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last = 0

    def next(self, now: Instant) -> int:
        with self._lock:
            self._last = max(self._last + 1, now)
            return self._last


next_seq: Callable[[Instant], int] = Sequence64().next
"""One for all stores of a process, because two of them may use the same database."""


def lane_key(doc: Mapping[str, Any]) -> LaneKey:
    return (doc["queue"], doc["tenant"], doc["needs"])


def lane_fields(key: LaneKey) -> Doc:
    return dict(zip(("queue", "tenant", "needs"), key, strict=True))


def pending_status(run_at: Instant, now: Instant) -> str:
    return SCHEDULED if run_at > now else READY


def turn(status: str, priority: int) -> int:
    """Comes first in the order of the jobs of a lane: ready ones by priority, scheduled ones by time alone."""
    return -priority if status == READY else 0


def start_time(asked: NewJob | Settlement, now: Instant) -> Instant:
    return asked.run_at if asked.run_at is not None else now + asked.delay_us


def render_job(job: NewJob, now: Instant) -> Doc:
    run_at, size = start_time(job, now), len(job.payload.encode())
    status = pending_status(run_at, now)
    doc: Doc = {
        "_id": job.id, "kind": job.kind, "queue": job.queue, "tenant": job.tenant, "needs": job.needs,
        "status": status, "priority": job.priority, "turn": turn(status, job.priority), "run_at": run_at,
        "seq": next_seq(now), "attempts": 0, "attempts_max": job.attempts_max, "fence": 0, "lease_us": job.lease_us,
        "cancel_requested": False, "created_at": now, "payload": job.payload, "payload_bytes": size,
        "bytes": size + len((job.cursor or "").encode()),
    }  # fmt: skip
    optional = {
        "at": run_at if run_at > now else None, "shard_key": job.shard_key, "timeout_us": job.timeout_us,
        "cursor": job.cursor, "trace": job.trace,
    }  # fmt: skip
    return doc | {name: value for name, value in optional.items() if value is not None}


def render_error(attempt: int, failure: Failure, now: Instant) -> Doc:
    return {
        "attempt": attempt,
        "at": now,
        "code": failure.code,
        "message": failure.message,
        "traceback": failure.traceback,
    }


def append_error(doc: Doc, failure: Failure, now: Instant) -> None:
    doc["errors"] = [*doc.get("errors", ()), render_error(doc["attempts"], failure, now)][-ERRORS_MAX:]
    doc["last_error"] = {"code": failure.code, "at": now}


def text_size(doc: Mapping[str, Any]) -> int:
    """The bytes of a job that its lane counts: see `LaneCount.bytes`."""
    texts = [doc.get(name) for name in KEPT_TEXTS]
    texts += [error.get(name) for error in doc.get("errors", ()) for name in ("message", "traceback")]
    return int(doc["payload_bytes"]) + sum(len(text.encode()) for text in texts if isinstance(text, str))


def job_state(status: str) -> State:
    return State.PENDING if status in PENDING else State(status)


def statuses_of(states: Sequence[State]) -> list[str]:
    return [status for status in STATUSES if job_state(status) in states]


def parse_lease(doc: Mapping[str, Any], token: Token) -> Lease:
    timeout_us = doc.get("timeout_us")
    return Lease(
        id=doc["_id"], token=token, fence=int(doc["fence"]), kind=doc["kind"], queue=doc["queue"],
        tenant=doc["tenant"], payload=doc["payload"], attempts=int(doc["attempts"]),
        attempts_max=int(doc["attempts_max"]), lease_us=int(usable_lease_us(doc["lease_us"])),
        timeout_us=None if timeout_us is None else int(timeout_us), shard_key=doc.get("shard_key"),
        cursor=doc.get("cursor"), priority=int(doc["priority"]), needs=doc["needs"],
    )  # fmt: skip


def parse_facts(doc: Mapping[str, Any]) -> Doc:
    """The fields that a job and its summary share."""
    lease, last_error = doc.get("lease") or {}, doc.get("last_error") or {}
    return {
        "id": JobId(doc["_id"]), "kind": doc["kind"], "queue": doc["queue"], "tenant": doc["tenant"],
        "state": job_state(doc["status"]), "priority": doc["priority"], "attempts": doc["attempts"],
        "attempts_max": doc["attempts_max"], "progress": doc.get("progress"),
        "lease_owner": lease.get("owner"), "lease_until": lease.get("until"),
        "cancel_requested": bool(doc["cancel_requested"]), "created_at": doc["created_at"], "run_at": doc["run_at"],
        "finished_at": doc.get("finished_at"), "last_error_code": last_error.get("code"),
        "last_error_at": last_error.get("at"),
    }  # fmt: skip


def parse_summary(doc: Mapping[str, Any]) -> JobSummary:
    facts = parse_facts(doc)
    if len((facts["progress"] or "").encode()) > SUMMARY_PROGRESS_BYTES_MAX:
        facts["progress"] = None
    return JobSummary(**facts)


def parse_job(doc: Mapping[str, Any]) -> Job:
    return Job(
        **parse_facts(doc), fence=doc["fence"], payload=doc["payload"], shard_key=doc.get("shard_key"),
        cursor=doc.get("cursor"), result=doc.get("result"), lease_us=doc["lease_us"],
        timeout_us=doc.get("timeout_us"), needs=doc["needs"],
    )  # fmt: skip


def only_readable(docs: Iterable[Doc], parse: Callable[[Mapping[str, Any]], T]) -> list[T]:
    """What these documents contain. One that cannot be read, because a program has bypassed validation, is left out: a
    list must show all the others. `leaseway doctor` names it."""
    found: list[T] = []
    for doc in docs:
        with contextlib.suppress(*UNREADABLE):
            found.append(parse(doc))
    return found


UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


def parse_errors(doc: Mapping[str, Any]) -> list[ErrorRecord]:
    return [ErrorRecord(job=JobId(doc["_id"]), **error) for error in doc.get("errors", ())]


def parse_tenant(doc: Mapping[str, Any]) -> Tenant:
    return Tenant(
        name=doc["_id"],
        weight=doc["weight"],
        concurrency=doc["concurrency"],
        starts=msgspec.convert(doc["starts"], tuple[Rate, ...]),
        quotas=msgspec.convert(doc["quotas"], Quotas),
    )


def parse_pause(doc: Mapping[str, Any]) -> Pause:
    return Pause(doc["queue"], doc["tenant"] or None, doc["since"])


def renewal(until: Instant) -> Doc:
    """The update that renews a lease."""
    return {"$set": {"lease.until": until, "at": until}}


def new_lease(owner: WorkerId, until: Instant, token: Token) -> Doc:
    return {"owner": owner, "until": until, "token": token}


# -- validators --------------------------------------------------------------------------------------------------------

FieldType = str | Sequence[str] | Mapping[str, Any]
"""A BSON type, several of them, or the schema of a value."""
Types = Mapping[str, FieldType]


def schema_of(optional: Types | None = None, **types: FieldType) -> dict[str, Any]:
    """A validator: these fields exist and have these types; the fields of `optional` have them if they exist."""
    properties = {name: value_of(kind) for name, kind in {**types, **(optional or {})}.items()}
    required = {"required": list(types)} if types else {}
    return {"$jsonSchema": {**required, "properties": properties}}


def value_of(kind: FieldType) -> dict[str, Any]:
    if isinstance(kind, Mapping):
        return dict(kind)
    return {"bsonType": kind if isinstance(kind, str) else list(kind)}


def object_of(optional: Types | None = None, **types: FieldType) -> dict[str, Any]:
    return {"bsonType": "object", **schema_of(optional, **types)["$jsonSchema"]}


def between(least: int, most: int, *others: str) -> dict[str, Any]:
    """A whole number in this range, or a value of one of the other types."""
    return {"bsonType": [*NUMBER, *others], "minimum": least, "maximum": most}


def validator_of(kind: inspect.Type) -> dict[str, Any]:
    """What a value must look like so that `msgspec.convert` reads it as this type."""
    match kind:
        case inspect.StructType(fields=fields):
            types = {field.encode_name: validator_of(field.type) for field in fields}
            required = {field.encode_name for field in fields if field.required}
            optional = {name: type_ for name, type_ in types.items() if name not in required}
            return object_of(optional, **{name: types[name] for name in types if name in required})
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return {"bsonType": "array", "items": validator_of(item)}
        case inspect.UnionType(types=types_):
            return {"anyOf": [validator_of(each) for each in types_]}
        case inspect.EnumType(cls=cls):
            return {"enum": [each.value for each in cls]}
        case inspect.IntType():
            return SUM
        case _:
            return {"bsonType": BSON_TYPES[type(kind)]}


BSON_TYPES: Mapping[type[inspect.Type], Any] = {
    inspect.StrType: "string", inspect.BoolType: "bool", inspect.NoneType: "null",
    inspect.FloatType: ["double", "int", "long"],
}  # fmt: skip

NUMBER = ("int", "long")
OR_NULL = (*NUMBER, "null")

SUM_MAX = 1 << 62
"""What is added to such a number still fits into 64 bits. Otherwise the server would refuse every later change."""
SUM, COUNT, SMALL = between(-SUM_MAX, SUM_MAX), between(0, SUM_MAX), between(0, 1 << 30)
