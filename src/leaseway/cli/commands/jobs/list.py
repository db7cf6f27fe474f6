"""leaseway jobs list"""

from leaseway.api.schemas.serializers import job_json
from leaseway.cli.job_selection import filter_of
from leaseway.cli.open_store import ask
from leaseway.cli.output.color import STATE_STYLES
from leaseway.cli.output.json import document
from leaseway.cli.output.table import Cell, Column, Row, show_table
from leaseway.cli.output.text import note
from leaseway.cli.output.times import relative, short
from leaseway.cli.settings import Filters, Settings
from leaseway.domain.ids import Instant, JobId
from leaseway.domain.job import Job, State
from leaseway.ports.store import Store

COLUMNS = (
    Column("id"),
    Column("kind", may_shrink=True),
    Column("lane", may_shrink=True, leaves=2),
    Column("state"),
    Column("attempts", right=True),
    Column("when"),
    Column("at", leaves=1),
    Column("last error", may_shrink=True, leaves=3),
)


def list_jobs(settings: Settings, filters: Filters, limit: int, before: str | None) -> None:
    async def question(store: Store) -> tuple[list[Job], Instant]:
        which = filter_of(filters)
        found = await store.jobs(which, before=JobId(before) if before else None, limit=limit)
        return found, await store.now()

    jobs, now = ask(settings, question)
    next_before = jobs[-1].id if len(jobs) == limit else None
    if settings.json:
        document({"jobs": [job_json(job) for job in jobs], "next_before": next_before})
        return
    if not jobs:
        note("no jobs match" if filters != Filters() or before else "there are no jobs yet")
        return
    show_table(COLUMNS, [row_of(job, now) for job in jobs])
    if next_before:
        note(f"there may be more: --before {next_before}")


def row_of(job: Job, now: Instant) -> Row:
    at = decisive(job)
    return (
        job.id,
        job.kind,
        lane_of(job),
        Cell(
            "cancelling" if job.state is State.LEASED and job.cancel_requested else job.state, STATE_STYLES[job.state]
        ),
        f"{job.attempts}/{job.attempts_max}",
        relative(at, now),
        Cell(short(at, now), "dim"),
        Cell(job.last_error_code or "", "red" if job.state is State.FAILED else "dim"),
    )


def lane_of(job: Job) -> str:
    """Queue and tenant, where they tell something."""
    if job.tenant != "default":
        return f"{job.queue}/{job.tenant}"
    return "" if job.queue == "default" else job.queue


def decisive(job: Job) -> Instant:
    """The instant that matters most: when it ended, when its lease ends, when it may run."""
    if job.finished_at is not None:
        return job.finished_at
    return job.run_at if job.lease_until is None else job.lease_until
