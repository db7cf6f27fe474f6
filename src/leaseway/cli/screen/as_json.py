"""The domain's values as JSON documents. Field names are the words of the domain; they stay as they are."""

import json
import sys
from typing import Any

from leaseway.cli.screen.times import iso, seconds_of
from leaseway.domain.ids import Instant
from leaseway.domain.job import ErrorRecord, Job, LaneCount
from leaseway.domain.schedule import ScheduleRow
from leaseway.domain.why import Reason


def document(value: Any) -> None:
    """The one answer of a command."""
    print(json.dumps(value, indent=2, ensure_ascii=not _is_unicode()))


def line(value: Any) -> None:
    """One of many answers."""
    print(json.dumps(value, ensure_ascii=not _is_unicode()))


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def job_json(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "tenant": job.tenant,
        "state": job.state.value,
        "priority": job.priority,
        "attempts": job.attempts,
        "attempts_max": job.attempts_max,
        "fence": job.fence,
        "payload": stored(job.payload),
        "shard_key": job.shard_key,
        "cursor": stored(job.cursor),
        "progress": stored(job.progress),
        "result": stored(job.result),
        "lease_owner": job.lease_owner,
        "lease_until": iso(job.lease_until),
        "lease_seconds": seconds_of(job.lease_us),
        "timeout_seconds": seconds_of(job.timeout_us),
        "cancel_requested": job.cancel_requested,
        "created_at": iso(job.created_at),
        "run_at": iso(job.run_at),
        "finished_at": iso(job.finished_at),
        "last_error_code": job.last_error_code,
        "last_error_at": iso(job.last_error_at),
    }


def error_json(error: ErrorRecord) -> dict[str, Any]:
    return {
        "attempt": error.attempt,
        "at": iso(error.at),
        "code": error.code,
        "message": error.message,
        "traceback": error.traceback,
    }


def reason_json(job: Job, reason: Reason) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": job.state.value,
        "code": reason.code,
        "text": reason.text,
        "until": iso(reason.until),
        "advice": reason.advice,
    }


def lane_json(lane: LaneCount) -> dict[str, Any]:
    return {
        "queue": lane.queue,
        "tenant": lane.tenant,
        "ready": lane.ready,
        "scheduled": lane.scheduled,
        "leased": lane.leased,
        "done": lane.done,
        "failed": lane.failed,
        "cancelled": lane.cancelled,
    }


def schedule_json(row: ScheduleRow, next_fire: Instant | None) -> dict[str, Any]:
    schedule = row.schedule
    return {
        "name": schedule.name,
        "kind": schedule.kind,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "missed": schedule.missed.value,
        "last_fire": iso(row.last_fire),
        "next_fire": iso(next_fire),
        "paused": row.paused,
    }


def stored(text: str | None) -> Any:
    """What was stored as JSON, as a value again. What cannot be read is shown as it is."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text
