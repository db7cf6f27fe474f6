"""leaseway jobs list"""

from leaseway.api.schemas.jobs import job_document
from leaseway.cli.job_selection import parse_filters
from leaseway.cli.open_store import ask
from leaseway.cli.output.color import STATE_STYLES
from leaseway.cli.output.json import document
from leaseway.cli.output.table import Row, TableCell, TableColumn, show_table
from leaseway.cli.output.text import note, relative, short
from leaseway.cli.settings import CliSettings, Filters
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.job import Job, State
from leaseway.ports.store import Store

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
        document({"jobs": [job_document(job) for job in jobs], "next_before": next_before})
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
