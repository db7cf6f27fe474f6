"""Rows to values and back."""

import sqlite3
from typing import Any

import msgspec

from leaseway.domain.exchange import Gate
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import ErrorRecord, Job, Lease, NewJob, Settlement, State
from leaseway.domain.lane import LaneCount, LaneTurn
from leaseway.domain.limits.limit import Rate
from leaseway.domain.schedule import Missed, Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant

READY, SCHEDULED, LEASED, DONE, FAILED, CANCELLED = range(6)
STATES = (State.PENDING, State.PENDING, State.LEASED, State.DONE, State.FAILED, State.CANCELLED)
STAGES = {State.LEASED: LEASED, State.DONE: DONE, State.FAILED: FAILED, State.CANCELLED: CANCELLED}

Row = tuple[Any, ...]

json_text = msgspec.json.Encoder().encode
unpacked = msgspec.json.Decoder(list[Row]).decode
rates_of = msgspec.json.Decoder(tuple[Rate, ...]).decode


def as_json(value: Any) -> str:
    return json_text(value).decode()


def pending(run_at: Instant | None, delay_us: int, now: Instant) -> tuple[int, Instant]:
    """Stage and time to run of a job that waits."""
    at = now + delay_us if run_at is None else run_at
    return (SCHEDULED if at > now else READY), at


Lanes = dict[int, tuple[str, str, str]]
"""Queue, tenant and needs of lanes, by their number."""

Alike = tuple[str, str, str, str, int, int, int, int | None, str | None, str | None, int, Instant | None, str | None]


def alike(job: NewJob) -> Alike:
    """All of a new job but id and payload: jobs that agree in it are stored by one statement."""
    # fmt: off
    return (job.queue, job.tenant, job.needs, job.kind, job.priority, job.attempts_max, job.lease_us, job.timeout_us,
            job.shard_key, job.cursor, job.delay_us, job.run_at, job.trace)
    # fmt: on


def is_plainly_done(settlement: Settlement) -> bool:
    """With a result and nothing else to write."""
    return settlement.state is State.DONE and settlement.failure is None and settlement.progress is None


def settlement_row(settlement: Settlement, now: Instant) -> Row:
    """In the order of settle.sql."""
    if settlement.state is State.PENDING:
        stage, run_at = pending(settlement.run_at, settlement.delay_us, now)
    else:
        stage, run_at = STAGES[settlement.state], None
    code = settlement.failure.code if settlement.failure else None
    # fmt: off
    return (settlement.id, settlement.token, stage, run_at, int(settlement.gives_back), settlement.result,
            code, settlement.progress)
    # fmt: on


def lease_of(row: Row, token: Token, lanes: Lanes) -> Lease:
    """From the columns of claimable.sql and adoptable.sql."""
    # fmt: off
    (_, id_, fence, kind, payload, attempts, most, lease_us, timeout_us, shard_key, cursor, priority, lane) = row
    # fmt: on
    queue, tenant, needs = lanes[lane]
    return Lease(
        id=id_, token=token, fence=fence, kind=kind, queue=queue, tenant=tenant, payload=payload, attempts=attempts,
        attempts_max=most, lease_us=lease_us, timeout_us=timeout_us, shard_key=shard_key, cursor=cursor,
        priority=priority, needs=needs,
    )  # fmt: skip


def job_of(row: sqlite3.Row) -> Job:
    return Job(
        id=JobId(row["id"]), kind=row["kind"], queue=row["queue"], tenant=row["tenant"], state=STATES[row["stage"]],
        priority=row["priority"], attempts=row["attempts"], attempts_max=row["attempts_max"], fence=row["fence"],
        payload=row["payload"], shard_key=row["shard_key"], cursor=row["cursor"], progress=row["progress"],
        result=row["result"], lease_owner=row["owner"], lease_until=row["until"], lease_us=row["lease_us"],
        timeout_us=row["timeout_us"], cancel_requested=bool(row["cancel_requested"]), created_at=row["created_at"],
        run_at=row["run_at"], finished_at=row["finished_at"], last_error_code=row["last_error_code"],
        last_error_at=row["last_error_at"], needs=row["needs"],
    )  # fmt: skip


def error_of(row: Row) -> ErrorRecord:
    job, attempt, at, code, message, traceback = row
    return ErrorRecord(job=job, attempt=attempt, at=at, code=code, message=message, traceback=traceback)


def lane_of(row: Row) -> LaneCount:
    queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled = row
    return LaneCount(
        queue=queue, tenant=tenant, needs=needs, ready=ready, scheduled=scheduled, leased=leased, done=done,
        failed=failed, cancelled=cancelled,
    )  # fmt: skip


def turn_of(row: Row) -> LaneTurn:
    """From the columns of lanes_with_work.sql."""
    lane, _, tenant, needs, ready, weight, is_gated, place = row
    return LaneTurn(lane, ready, weight, Gate(needs, tenant) if is_gated else None, place)


def tenant_of(row: Row) -> Tenant:
    name, weight, starts, concurrency = row
    return Tenant(name=name, weight=weight, starts=rates_of(starts), concurrency=concurrency)


def schedule_of(row: Row, now: Instant) -> StoredSchedule:
    name, kind, cron, tz, missed, seen, last_fire, paused = row
    schedule = Schedule(name=name, kind=kind, cron=cron, tz=tz, missed=Missed(missed))
    return StoredSchedule(schedule=schedule, seen=seen, now=now, last_fire=last_fire, paused=bool(paused))


def filter_conditions(which: JobFilter) -> tuple[list[str], dict[str, object]]:
    """A filter as SQL: the texts are fixed, and every value is bound."""
    conditions = []
    values: dict[str, object] = {}
    if which.ids is not None:
        conditions.append("jobs.id IN (SELECT value FROM json_each(:ids))")
        values["ids"] = as_json(which.ids)
    if which.states is not None:
        stages = [stage for stage, state in enumerate(STATES) if state in which.states]
        # A single stage is compared by equality: only then does SQLite use the index on that stage.
        conditions.append(f"stage = {stages[0]}" if len(stages) == 1 else f"stage IN ({', '.join(map(str, stages))})")
    for field in ("kind", "queue", "tenant", "shard_key"):
        if getattr(which, field) is not None:
            conditions.append(f"{field} = :{field}")
            values[field] = getattr(which, field)
    if which.error_code is not None:
        conditions.append("last_error_code = :error_code")
        values["error_code"] = which.error_code
    return conditions, values
