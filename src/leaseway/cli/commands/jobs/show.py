"""leaseway jobs show, leaseway jobs why"""

import json
import sys

from leaseway.api.schemas.jobs import failed_attempt_document, job_document, why_document
from leaseway.api.schemas.values import as_dict, parse_stored
from leaseway.cli.commands.lanes import pauses_in
from leaseway.cli.open_limiter import shut_gates
from leaseway.cli.open_store import ask, find_job
from leaseway.cli.output.color import STATE_STYLES, painted
from leaseway.cli.output.json import document
from leaseway.cli.output.text import block, facts, heading, moment, needs_in_words, relative, say, wrapped
from leaseway.cli.settings import CliSettings
from leaseway.domain.exchange import Gate
from leaseway.domain.explain import Reason, explain
from leaseway.domain.gates import Closure, closed_by_pauses
from leaseway.domain.health import render_duration
from leaseway.domain.ids import Instant
from leaseway.domain.job import ErrorRecord, Job, State
from leaseway.domain.lane import LaneCount
from leaseway.ports.store import Store


def show_job(settings: CliSettings, id_: str) -> None:
    async def question(store: Store) -> tuple[Job, list[ErrorRecord], Instant]:
        job = await find_job(store, id_)
        return job, await store.reads.errors(job.id), await store.reads.now()

    job, errors, now = ask(settings, question)
    if settings.json:
        document({**as_dict(job_document(job)), "errors": [failed_attempt_document(error) for error in errors]})
        return
    title(job)
    facts(record(job, now))
    for name, text in (("payload", job.payload), ("cursor", job.cursor), ("result", job.result)):
        if text is not None:
            heading(name)
            block(json.dumps(parse_stored(text), indent=2, ensure_ascii=False))
    show_errors(errors, now, all_tracebacks=settings.traceback)


def title(job: Job) -> None:
    say(f"job {job.id}  {painted(job.state, STATE_STYLES[job.state], sys.stdout)}")
    say()


def record(job: Job, now: Instant) -> list[tuple[str, str]]:
    is_pending = job.state is State.PENDING
    return [
        ("kind", job.kind),
        ("queue", job.queue),
        ("tenant", job.tenant),
        ("needs", needs_in_words(job.needs)),
        ("priority", str(job.priority) if job.priority else ""),
        ("shard key", job.shard_key or ""),
        ("attempts", f"{job.attempts} of {job.attempts_max}"),
        ("submitted", moment(job.created_at, now)),
        ("runs" if job.run_at > now else "ready since", moment(job.run_at, now) if is_pending else ""),
        ("finished", moment(job.finished_at, now)),
        ("lease", lease_in_words(job, now)),
        ("timeout", "" if job.timeout_us is None else render_duration(job.timeout_us)),
        ("cancel", "requested" if job.cancel_requested and not job.state.is_final else ""),
        ("progress", progress_in_words(job.progress)),
    ]


def lease_in_words(job: Job, now: Instant) -> str:
    if job.lease_owner is None or job.lease_until is None:
        return ""
    fate = "ends" if job.lease_until > now else "expired"
    return f"of {job.lease_owner}, {fate} {moment(job.lease_until, now)}, fence {job.fence}"


def progress_in_words(text: str | None) -> str:
    told = parse_stored(text)
    if not isinstance(told, dict):
        return "" if told is None else str(told)
    done, total, message = told.get("done"), told.get("total"), told.get("message")
    numbers = f"{done:,}" if isinstance(done, int | float) else ""
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        numbers = f"{done:,} of {total:,} ({done / total:.0%})"
    return ", ".join(part for part in (numbers, message) if part)


def show_errors(errors: list[ErrorRecord], now: Instant, *, all_tracebacks: bool) -> None:
    if errors:
        heading("errors, oldest first")
    for error in errors:
        facts([(f"attempt {error.attempt}", f"{moment(error.at, now)}  {error.code}: {error.message}")])
    for error in errors if all_tracebacks else errors[-1:]:
        if error.traceback:
            heading(f"traceback of attempt {error.attempt}")
            block(error.traceback)


def why_job(settings: CliSettings, id_: str) -> None:
    async def question(store: Store) -> tuple[Job, LaneCount | None, list[Closure], Instant]:
        job, now = await find_job(store, id_), await store.reads.now()
        gate = Gate(job.needs, job.tenant)
        is_ready = job.state is State.PENDING and job.run_at <= now
        shuts = await shut_gates(settings, store, [gate] if is_ready else [], now)
        lanes = {(lane.queue, lane.tenant, lane.needs): lane for lane in await store.reads.lanes()}
        paused = closed_by_pauses(job.queue, job.tenant, await pauses_in(store)) if is_ready else []
        return job, lanes.get((job.queue, job.tenant, job.needs)), [*paused, *shuts.get(gate, [])], now

    job, lane, shuts, now = ask(settings, question)
    reason = explain(job, lane, now, shuts)
    if settings.json:
        document(why_document(job, reason, shuts))
        return
    title(job)
    say(wrapped(sentence(reason, job, now)))
    if reason.advice:
        say()
        say(wrapped(reason.advice), "dim")


def sentence(reason: Reason, job: Job, now: Instant) -> str:
    if reason.until is not None:
        return f"{reason.text} {reason.then} {moment(reason.until, now)}."
    if job.finished_at is not None:
        return f"{reason.text} That was {relative(job.finished_at, now)}."
    return reason.text
