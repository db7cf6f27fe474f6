"""leaseway jobs list|show|why"""

import json
from collections.abc import Sequence
from urllib.parse import quote

from leaseway.aes_gcm import AesGcm
from leaseway.api.schemas.jobs import WhyDocument, failed_attempt_document, job_document, why_document
from leaseway.api.schemas.values import as_dict
from leaseway.cli.commands.jobs.change import parse_filters
from leaseway.cli.commands.lanes import pauses_in
from leaseway.cli.load_app import load_app
from leaseway.cli.open_limiter import shut_gates
from leaseway.cli.open_store import ask, ask_service, find_job, ledger_in
from leaseway.cli.options import CliSettings, Filters
from leaseway.cli.output.console import (
    FOREIGN,
    STATE_STYLES,
    Styled,
    block,
    facts,
    heading,
    moment,
    needs_in_words,
    note,
    print_json,
    relative,
    say,
    short,
    wrapped,
)
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.domain.budgets.holds import Hold
from leaseway.domain.encryption import Encryption, describe_encrypted, is_encrypted
from leaseway.domain.exchange import Gate
from leaseway.domain.explain.closures import Closure, closed_by_pauses, closed_by_session, closed_by_worker
from leaseway.domain.explain.reasons import Reason, explain
from leaseway.domain.health import render_duration
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.job import ErrorRecord, Job, State
from leaseway.domain.lane import LaneCount
from leaseway.domain.validators import parse_stored
from leaseway.ports.store import Store
from leaseway.worker.definitions import booked_for_job


def show_job(settings: CliSettings, id_: str, app: str | None) -> None:
    encryption = Encryption(AesGcm.from_environment()) if app is None else load_app(app).world.encryption

    async def question(store: Store) -> tuple[Job, list[ErrorRecord], Instant]:
        job = await find_job(store, id_)
        errors = encryption.open_errors(job, await store.reads.errors(job.id))
        return encryption.open_job(job), errors, await store.reads.now()

    job, errors, now = ask(settings, question)
    if settings.json:
        print_json(
            {
                **as_dict(job_document(job)),
                "errors": [failed_attempt_document(error, with_traceback=True) for error in errors],
            }
        )
        return
    title(job)
    facts(record(job, now))
    for name, text in (("payload", job.payload), ("cursor", job.cursor), ("result", job.result)):
        if text is not None:
            heading(name)
            shown = json.dumps(parse_stored(text), indent=2, ensure_ascii=False)
            block(describe_encrypted(text) if is_encrypted(text) else shown)
    show_errors(errors, now, all_tracebacks=settings.traceback)


def title(job: Job | WhyDocument) -> None:
    say([f"job {job.id}  ", Styled(job.state, STATE_STYLES[job.state])])
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
    done, total, message = told.get("done"), told.get("total"), told.get("message") or ""
    numbers = f"{done:,}" if isinstance(done, int | float) else ""
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        numbers = f"{done:,} of {total:,} ({done / total:.0%})"
    return ", ".join(part for part in (numbers, str(message)) if part)


def show_errors(errors: list[ErrorRecord], now: Instant, *, all_tracebacks: bool) -> None:
    if errors:
        heading("errors, oldest first")
    for error in errors:
        facts(
            [
                (
                    f"attempt {error.attempt}",
                    f"{moment(error.at, now)}  {error.code}: {describe_encrypted(error.message)}",
                )
            ]
        )
    for error in errors if all_tracebacks else errors[-1:]:
        if error.traceback:
            heading(f"traceback of attempt {error.attempt}")
            block(describe_encrypted(error.traceback), FOREIGN)


def why_job(settings: CliSettings, id_: str) -> None:
    told = ask_service(settings, f"/v1/jobs/{quote(id_, safe='')}/why", WhyDocument)
    if told is None:
        why_in_store(settings, id_)
    elif settings.json:
        print_json(told)
    else:
        title(told)
        say(wrapped(told.text if told.until is None else f"{told.text} Until {told.until}."))
        advise(told.advice)


def why_in_store(settings: CliSettings, id_: str) -> None:
    async def question(store: Store) -> tuple[Job, list[LaneCount], list[Closure], Sequence[Hold], Instant]:
        job, now = await find_job(store, id_), await store.reads.now()
        gate = Gate(job.needs, job.tenant)
        is_ready = job.state is State.PENDING and job.run_at <= now
        shuts = await shut_gates(settings, store, [gate] if is_ready else [], now)
        lanes = [lane for lane in await store.reads.lanes() if lane.queue == job.queue]
        paused = closed_by_pauses(job.queue, job.tenant, await pauses_in(store)) if is_ready else []
        locked = closed_by_session(await store.reads.locked_by(job.id) if is_ready else None)
        waits = job.state is State.PENDING and not is_ready
        booked = await booked_for_job(ledger_in(store, settings), job) if waits else ()
        return job, lanes, [*locked, *paused, *shuts.get(gate, [])], booked, now

    job, lanes, shuts, booked, now = ask(settings, question)
    lane = next((lane for lane in lanes if (lane.tenant, lane.needs) == (job.tenant, job.needs)), None)
    shuts += closed_by_worker(lane, now, shuts)
    reason = explain(job, lane, now, shuts, booked=booked, busy_elsewhere=sum(each.leased for each in lanes))
    if settings.json:
        print_json(why_document(job, reason, shuts))
        return
    title(job)
    say(wrapped(sentence(reason, job, now)))
    advise(reason.advice)


def advise(advice: str | None) -> None:
    if advice:
        say()
        for line in advice.split("\n"):  # names in it cannot contain line breaks
            say(wrapped(line), "dim")


def sentence(reason: Reason, job: Job, now: Instant) -> str:
    if reason.until is not None:
        return f"{reason.text} {reason.then} {moment(reason.until, now)}."
    if job.finished_at is not None:
        return f"{reason.text} That was {relative(job.finished_at, now)}."
    return reason.text


COLUMNS = (
    TableColumn("id"),
    TableColumn("kind", may_shrink=True),
    TableColumn("lane", may_shrink=True, leaves=2),
    TableColumn("state"),
    TableColumn("attempts", right=True),
    TableColumn("when"),
    TableColumn("at", leaves=1),
    TableColumn("last error", may_shrink=True, leaves=3),
)


def list_jobs(settings: CliSettings, filters: Filters, limit: int, before: str | None) -> None:
    async def question(store: Store) -> tuple[list[Job], Instant]:
        which = parse_filters(filters)
        found = await store.reads.jobs(which, before=JobId(before) if before else None, limit=limit)
        return found, await store.reads.now()

    jobs, now = ask(settings, question)
    next_before = jobs[-1].id if len(jobs) == limit else None
    if settings.json:
        print_json({"jobs": [job_document(job) for job in jobs], "next_before": next_before})
        return
    if not jobs:
        note("no jobs match" if filters != Filters() or before else "there are no jobs yet")
        return
    show_table(COLUMNS, [job_row(job, now) for job in jobs])
    if next_before:
        note(f"more jobs may follow: --before {next_before}")


def job_row(job: Job, now: Instant) -> Row:
    at = decisive(job)
    return (
        job.id,
        job.kind,
        lane_text(job),
        TableCell(
            "cancelling" if job.state is State.LEASED and job.cancel_requested else job.state, STATE_STYLES[job.state]
        ),
        f"{job.attempts}/{job.attempts_max}",
        relative(at, now),
        TableCell(short(at, now), "dim"),
        TableCell(job.last_error_code or "", "red" if job.state is State.FAILED else "dim"),
    )


def lane_text(job: Job) -> str:
    """Queue and tenant, unless both are the default."""
    if job.tenant != "default":
        return f"{job.queue}/{job.tenant}"
    return "" if job.queue == "default" else job.queue


def decisive(job: Job) -> Instant:
    """The most relevant instant: when the job ended, when its lease ends, or when it may run."""
    if job.finished_at is not None:
        return job.finished_at
    return job.run_at if job.lease_until is None else job.lease_until
