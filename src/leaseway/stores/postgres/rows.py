"""Arguments of the schema's functions, and their answers as values of the domain."""

from collections.abc import Sequence
from typing import Any

import msgspec

from leaseway.domain.errors import BadValue
from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, Gated
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import ErrorRecord, Job, Lease, NewJob, Settlement, State, Submitted
from leaseway.domain.lane import LaneCount, admits_by_gate, distinct_closings
from leaseway.domain.limits.limit import Rate
from leaseway.domain.quota import Quotas
from leaseway.domain.schedule import Missed, Schedule, StoredSchedule
from leaseway.domain.tenant import Tenant, check_tenant

STATES = {
    "ready": State.PENDING,
    "scheduled": State.PENDING,
    "leased": State.LEASED,
    "done": State.DONE,
    "failed": State.FAILED,
    "cancelled": State.CANCELLED,
}
"""The states of the schema, and the state that users see."""
SETTLED_STATES = {State.PENDING: "ready", State.DONE: "done", State.FAILED: "failed", State.CANCELLED: "cancelled"}

Values = tuple[Any, ...]

json_text = msgspec.json.Encoder().encode
parse_rates = msgspec.json.Decoder(tuple[Rate, ...]).decode
parse_quotas = msgspec.json.Decoder(Quotas).decode


def encode_json(value: Any) -> str:
    try:
        return json_text(value).decode()
    except UnicodeEncodeError as error:
        raise BadValue("text", f"must be Unicode without lone surrogates (has {error.object!a})") from error


def replace_nul(text: str) -> str:
    """PostgreSQL stores every character except NUL."""
    return text.replace("\0", "\ufffd")


# -- submitting -----------------------------------------------------------------------------------------------------


def job_spec(job: NewJob) -> Values:
    """Everything of a new job but id, payload, key and fingerprint. Jobs with equal specs share one."""
    # fmt: off
    return (job.queue, job.tenant, job.kind, int(job.priority), job.attempts_max, job.lease_us, job.timeout_us,
            job.shard_key, job.cursor, job.delay_us, job.run_at, job.needs, job.key_keep_us, job.trace)
    # fmt: on


SPEC = ("queue", "tenant", "kind", "priority", "attempts_max", "lease_us", "timeout_us", "shard_key", "cursor",
        "delay_us", "run_at", "needs", "key_keep_us", "trace")  # fmt: skip


def single_arguments(job: NewJob) -> Values:
    """The arguments of `submit_one` for a job without key and trace."""
    return (job.id, job.payload, *job_spec(job)[:-2])


def uniform_arguments(jobs: Sequence[NewJob]) -> Values | None:
    """The arguments of `submit_uniform`; None if a job has a key or a trace, or differs in more than its payload.

    Ids must be unique.
    """
    first = job_spec(jobs[0]) if jobs else ()
    if not jobs or jobs[0].trace is not None or any(job.key is not None or job_spec(job) != first for job in jobs):
        return None
    return ([job.id for job in jobs], [job.payload for job in jobs], *first[:-2])


def submit_arguments(jobs: Sequence[NewJob]) -> Values:
    """ids, payloads, spec_numbers, specs, keys, fingerprints of `submit` and `fire_schedule`. Ids must be unique."""
    numbers: dict[Values, int] = {}
    spec_numbers = [numbers.setdefault(job_spec(job), len(numbers) + 1) for job in jobs]
    specs = encode_json([dict(zip(SPEC, spec, strict=True)) for spec in numbers])
    keys = [job.key for job in jobs]
    fingerprints = [job.fingerprint for job in jobs]
    if not any(keys):
        keys = fingerprints = None  # type: ignore[assignment]
    return ([job.id for job in jobs], [job.payload for job in jobs], spec_numbers, specs, keys, fingerprints)


def parse_submitted(jobs: Sequence[NewJob], answers: Sequence[Any]) -> list[Submitted]:
    """The answer of `submit` names the job for each id; it is NULL if every job was stored under its own id."""
    ((first,),) = answers
    if first is None:
        return [Submitted(job.id) for job in jobs]
    answered = dict(zip({job.id: None for job in jobs}, first, strict=True))
    return [Submitted(answered[job.id], answered[job.id] != job.id) for job in jobs]


# -- exchange -------------------------------------------------------------------------------------------------------


def is_plainly_done(settlement: Settlement) -> bool:
    """Done with a result and nothing else to write."""
    return settlement.state is State.DONE and settlement.failure is None and settlement.progress is None


def settle_arguments(settlements: Sequence[Settlement]) -> Values:
    """done_ids, done_tokens, done_results, others; in the order of ids, so that transactions cannot deadlock."""
    in_order = sorted(settlements, key=lambda settlement: settlement.id)
    done = [settlement for settlement in in_order if is_plainly_done(settlement)]
    others = [settlement_fields(settlement) for settlement in in_order if not is_plainly_done(settlement)]
    return (
        [settlement.id for settlement in done] or None,
        [settlement.token for settlement in done] or None,
        [settlement.result for settlement in done] or None,
        encode_json(others) if others else None,
    )


def settlement_fields(settlement: Settlement) -> dict[str, Any]:
    failure = settlement.failure
    fault = {} if failure is None else {
        "code": replace_nul(failure.code), "message": replace_nul(failure.message),
        "traceback": replace_nul(failure.traceback),
    }  # fmt: skip
    return {
        "id": settlement.id, "token": settlement.token, "state": SETTLED_STATES[settlement.state],
        "delay_us": settlement.delay_us, "run_at": settlement.run_at, "returns_attempt": settlement.returns_attempt,
        "result": settlement.result, "progress": settlement.progress, **fault,
    }  # fmt: skip


def claim_arguments(call: Exchange) -> Values:
    """wanted_queues, wanted, new_token, is_repeat."""
    wants = call.wants
    if wants is None:
        return ([], 0, None, False)
    return (list(wants.queues), max(wants.count, 0), wants.token, call.repeat)


def render_admits(call: Exchange) -> str | None:
    """The admitted gates as JSON; None, which is faster, if there are none."""
    if call.wants is None or not call.wants.admits:
        return None
    return encode_json(
        [
            {"needs": gate.needs, "tenant": gate.tenant, "count": count}
            for gate, count in admits_by_gate(call.wants.admits).items()
        ]
    )


def render_closings(call: Exchange) -> str | None:
    """The closed gates as JSON; None, which is faster, if there are none."""
    if call.wants is None or not call.wants.closed:
        return None
    return encode_json(
        [
            {
                "needs": each.gate.needs,
                "tenant": each.gate.tenant,
                "wait_us": each.wait_us,
                "why": replace_nul(each.why),
            }
            for each in distinct_closings(call.wants.closed)
        ]
    )


def render_gates(gates: Sequence[Gate]) -> str | None:
    return encode_json(gates) if gates else None


def child_arguments(settlements: Sequence[Settlement]) -> Values:
    """parents, parent_tokens, and the children as in `submit_arguments`; a parent is repeated for each child."""
    children = [(settlement, child) for settlement in settlements for child in settlement.children]
    if not children:
        return (None,) * 8
    parents = [settlement.id for settlement, _ in children]
    tokens = [settlement.token for settlement, _ in children]
    return (parents, tokens, *submit_arguments([child for _, child in children]))


def parse_exchange(call: Exchange, answers: Sequence[Any]) -> ExchangeReply:
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


def parse_job(row: Any) -> Job:
    return Job(
        id=row["id"], kind=row["kind"], queue=row["queue"], tenant=row["tenant"], state=STATES[row["state"]],
        priority=row["priority"], attempts=row["attempts"], attempts_max=row["attempts_max"], fence=row["fence"],
        payload=row["payload"], shard_key=row["shard_key"], cursor=row["cursor"], progress=row["progress"],
        result=row["result"], lease_owner=row["owner"], lease_until=row["until"], lease_us=row["lease_us"],
        timeout_us=row["timeout_us"], cancel_requested=row["cancel_requested"], created_at=row["created_at"],
        run_at=row["run_at"], finished_at=row["finished_at"], last_error_code=row["last_error_code"],
        last_error_at=row["last_error_at"], needs=row["needs"],
    )  # fmt: skip


def parse_error(row: Any) -> ErrorRecord:
    job, attempt, at, code, message, traceback = row
    return ErrorRecord(job=job, attempt=attempt, at=at, code=code, message=message, traceback=traceback)


def parse_lane(row: Any) -> LaneCount:
    queue, tenant, needs, *counts, closed_until, closed_why = row
    ready, scheduled, leased, done, failed, cancelled, size = map(int, counts)
    return LaneCount(
        queue=queue, tenant=tenant, needs=needs, ready=ready, scheduled=scheduled, leased=leased, done=done,
        failed=failed, cancelled=cancelled, bytes=size, closed_until=closed_until, closed_why=closed_why,
    )  # fmt: skip


def parse_tenant(row: Any) -> Tenant:
    name, weight, starts, concurrency, quotas = row
    rates, allowed = parse_rates(starts), parse_quotas(quotas)
    return check_tenant(Tenant(name=name, weight=weight, starts=rates, concurrency=concurrency, quotas=allowed))


def parse_schedule(row: Any, now: Instant) -> StoredSchedule:
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
