"""Values to what our functions take, and their answers to values."""

from collections.abc import Sequence
from typing import Any

import msgspec

from leaseway.domain.errors import BadValue
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, Gated
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import ErrorRecord, Job, Lease, NewJob, Settlement, State, Submitted
from leaseway.domain.lane import LaneCount, admits_by_gate
from leaseway.domain.limits.limit import Rate
from leaseway.domain.schedule import Missed, Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant

STATES = {
    "ready": State.PENDING,
    "scheduled": State.PENDING,
    "leased": State.LEASED,
    "done": State.DONE,
    "failed": State.FAILED,
    "cancelled": State.CANCELLED,
}
"""The states that the schema distinguishes, as users see them."""
SETTLED_STATES = {State.PENDING: "ready", State.DONE: "done", State.FAILED: "failed", State.CANCELLED: "cancelled"}

Values = tuple[Any, ...]

json_text = msgspec.json.Encoder().encode
rates_of = msgspec.json.Decoder(tuple[Rate, ...]).decode


def as_json(value: Any) -> str:
    try:
        return json_text(value).decode()
    except UnicodeEncodeError as error:
        raise BadValue("text", f"must be Unicode without lone surrogates (has {error.object!a})") from error


def clean(text: str) -> str:
    """PostgreSQL keeps every character but one."""
    return text.replace("\0", "\ufffd")


# -- submitting -----------------------------------------------------------------------------------------------------


def spec_of(job: NewJob) -> Values:
    """All of a new job but id, payload, key and fingerprint: jobs that agree in it are described once."""
    # fmt: off
    return (job.queue, job.tenant, job.kind, int(job.priority), job.attempts_max, job.lease_us, job.timeout_us,
            job.shard_key, job.cursor, job.delay_us, job.run_at, job.needs, job.key_keep_us, job.trace)
    # fmt: on


SPEC = ("queue", "tenant", "kind", "priority", "attempts_max", "lease_us", "timeout_us", "shard_key", "cursor",
        "delay_us", "run_at", "needs", "key_keep_us", "trace")  # fmt: skip


def single(job: NewJob) -> Values:
    """As `submit_one` takes it, without key and trace."""
    return (job.id, job.payload, *spec_of(job)[:-2])


def alike(jobs: Sequence[NewJob]) -> Values | None:
    """As `submit_alike` takes them; None, if one of them has a key or a trace, or differs in more than its payload.
    Each id once."""
    first = spec_of(jobs[0]) if jobs else ()
    if not jobs or jobs[0].trace is not None or any(job.key is not None or spec_of(job) != first for job in jobs):
        return None
    return ([job.id for job in jobs], [job.payload for job in jobs], *first[:-2])


def submission(jobs: Sequence[NewJob]) -> Values:
    """ids, payloads, spec_of, specs, keys, fingerprints: as `submit` and `fire` take them. Each id once."""
    numbers: dict[Values, int] = {}
    spec_numbers = [numbers.setdefault(spec_of(job), len(numbers) + 1) for job in jobs]
    specs = as_json([dict(zip(SPEC, spec, strict=True)) for spec in numbers])
    keys = [job.key for job in jobs]
    fingerprints = [job.fingerprint for job in jobs]
    if not any(keys):
        keys = fingerprints = None  # type: ignore[assignment]
    return ([job.id for job in jobs], [job.payload for job in jobs], spec_numbers, specs, keys, fingerprints)


def submitted(jobs: Sequence[NewJob], answers: Sequence[Any]) -> list[Submitted]:
    """From the answer of `submit`, which names the job that stands for each id; nothing, if each stands for itself."""
    ((first,),) = answers
    if first is None:
        return [Submitted(job.id) for job in jobs]
    standing = dict(zip({job.id: None for job in jobs}, first, strict=True))
    return [Submitted(standing[job.id], standing[job.id] != job.id) for job in jobs]


# -- exchange -------------------------------------------------------------------------------------------------------


def is_plainly_done(settlement: Settlement) -> bool:
    """With a result and nothing else to write."""
    return settlement.state is State.DONE and settlement.failure is None and settlement.progress is None


def settlements_of(settlements: Sequence[Settlement]) -> Values:
    """done_ids, done_tokens, done_results, others. In the order of ids, so that nobody waits in a circle."""
    in_order = sorted(settlements, key=lambda settlement: settlement.id)
    done = [settlement for settlement in in_order if is_plainly_done(settlement)]
    others = [other_of(settlement) for settlement in in_order if not is_plainly_done(settlement)]
    return (
        [settlement.id for settlement in done] or None,
        [settlement.token for settlement in done] or None,
        [settlement.result for settlement in done] or None,
        as_json(others) if others else None,
    )


def other_of(settlement: Settlement) -> dict[str, Any]:
    failure = settlement.failure
    fault = {} if failure is None else {
        "code": clean(failure.code), "message": clean(failure.message), "traceback": clean(failure.traceback)
    }  # fmt: skip
    return {
        "id": settlement.id, "token": settlement.token, "state": SETTLED_STATES[settlement.state],
        "delay_us": settlement.delay_us, "run_at": settlement.run_at, "gives_back": settlement.gives_back,
        "result": settlement.result, "progress": settlement.progress, **fault,
    }  # fmt: skip


def wants_of(call: Exchange) -> Values:
    """wanted_queues, wanted, new_token, is_repeat."""
    wants = call.wants
    if wants is None:
        return ([], 0, None, False)
    return (list(wants.queues), max(wants.count, 0), wants.token, call.repeat)


def admits_of(call: Exchange) -> str | None:
    """As JSON; None if nothing is admitted, which is the shorter way."""
    if call.wants is None or not call.wants.admits:
        return None
    return as_json(
        [
            {"needs": gate.needs, "tenant": gate.tenant, "count": count}
            for gate, count in admits_by_gate(call.wants.admits).items()
        ]
    )


def gates_of(gates: Sequence[Gate]) -> str | None:
    return as_json(gates) if gates else None


def children_of(settlements: Sequence[Settlement]) -> Values:
    """parents, parent_tokens, and their children as `submission` describes them; parents once for each child."""
    born = [(settlement, child) for settlement in settlements for child in settlement.children]
    if not born:
        return (None,) * 8
    parents = [settlement.id for settlement, _ in born]
    tokens = [settlement.token for settlement, _ in born]
    return (parents, tokens, *submission([child for _, child in born]))


def exchanged(call: Exchange, answers: Sequence[Any]) -> ExchangeReply:
    token = Token("") if call.wants is None else call.wants.token
    leases: list[Lease] = []
    lost: list[JobId] = []
    cancelled: list[JobId] = []
    gated: list[Gated] = []
    for row in answers:
        (
            what,
            id_,
            fence,
            kind,
            queue,
            tenant,
            payload,
            attempts,
            most,
            lease_us,
            timeout_us,
            shard,
            cursor,
            priority,
            needs,
        ) = row
        if what == "lease":
            leases.append(
                Lease(
                    id=id_, token=token, fence=fence, kind=kind, queue=queue, tenant=tenant, payload=payload,
                    attempts=attempts, attempts_max=most, lease_us=lease_us, timeout_us=timeout_us, shard_key=shard,
                    cursor=cursor, priority=priority, needs=needs,
                )
            )  # fmt: skip
        elif what == "gate":
            gated.append(Gated(Gate(needs, tenant), attempts))
        else:
            (lost if what == "lost" else cancelled).append(id_)
    if lost:
        late = set(lost)
        lost = [settlement.id for settlement in call.settlements if settlement.id in late]
    return ExchangeReply(tuple(leases), tuple(lost), tuple(cancelled), tuple(gated))


# -- reading --------------------------------------------------------------------------------------------------------


def job_of(row: Any) -> Job:
    return Job(
        id=row["id"], kind=row["kind"], queue=row["queue"], tenant=row["tenant"], state=STATES[row["state"]],
        priority=row["priority"], attempts=row["attempts"], attempts_max=row["attempts_max"], fence=row["fence"],
        payload=row["payload"], shard_key=row["shard_key"], cursor=row["cursor"], progress=row["progress"],
        result=row["result"], lease_owner=row["owner"], lease_until=row["until"], lease_us=row["lease_us"],
        timeout_us=row["timeout_us"], cancel_requested=row["cancel_requested"], created_at=row["created_at"],
        run_at=row["run_at"], finished_at=row["finished_at"], last_error_code=row["last_error_code"],
        last_error_at=row["last_error_at"], needs=row["needs"],
    )  # fmt: skip


def error_of(row: Any) -> ErrorRecord:
    job, attempt, at, code, message, traceback = row
    return ErrorRecord(job=job, attempt=attempt, at=at, code=code, message=message, traceback=traceback)


def lane_of(row: Any) -> LaneCount:
    queue, tenant, needs, *counts = row
    ready, scheduled, leased, done, failed, cancelled = map(int, counts)
    return LaneCount(
        queue=queue, tenant=tenant, needs=needs, ready=ready, scheduled=scheduled, leased=leased, done=done,
        failed=failed, cancelled=cancelled,
    )  # fmt: skip


def tenant_of(row: Any) -> Tenant:
    name, weight, starts, concurrency = row
    return Tenant(name=name, weight=weight, starts=rates_of(starts), concurrency=concurrency)


def schedule_of(row: Any, now: Instant) -> StoredSchedule:
    name, kind, cron, tz, missed, seen, last_fire, paused = row
    schedule = Schedule(name=name, kind=kind, cron=cron, tz=tz, missed=Missed(missed))
    return StoredSchedule(schedule=schedule, seen=seen, now=now, last_fire=last_fire, paused=paused)


def filter_conditions(which: JobFilter, values: list[object]) -> tuple[list[str], list[object]]:
    """A filter as SQL: the texts are fixed, and every value is bound, after the given ones."""
    conditions = []
    if which.states is not None:
        names = [f"'{name}'" for name, state in STATES.items() if state in which.states]
        conditions.append(f"state IN ({', '.join(names)})" if names else "false")
    sought: dict[str, object | None] = {
        "id": None if which.ids is None else list(which.ids),
        "kind": which.kind,
        "queue": which.queue,
        "tenant": which.tenant,
        "last_error_code": which.error_code,
        "shard_key": which.shard_key,
    }
    for column, value in sought.items():
        if value is not None:
            values.append(value)
            conditions.append(f"{column} = ANY (${len(values)})" if column == "id" else f"{column} = ${len(values)}")
    return conditions, values
