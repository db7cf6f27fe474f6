"""/v1/imports: plan, start and resume runs, and replay or discard quarantined records."""

from fastapi import Request
from msgspec import Struct

from leaseway.api.errors import Problem
from leaseway.api.imports.registry import ImportRegistry
from leaseway.api.request_body import read_body
from leaseway.api.responses import Reply
from leaseway.api.routes.imports import QUARANTINE_MAX, find_import, find_run, get_monitor
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.imports import (
    ImportPlanDocument,
    ImportResumedDocument,
    ImportRunDocument,
    ReplayedDocument,
    plan_document,
    replayed_document,
    run_document,
)
from leaseway.domain.errors import BadValue
from leaseway.domain.identity import Scope
from leaseway.domain.validators import check_int
from leaseway.imports.domain.run_state import RunMode
from leaseway.imports.rows import RowBuilder
from leaseway.imports.run.quarantine_replay import discard, read_quarantine, replay
from leaseway.imports.run.start import NewRun
from leaseway.system import wall_clock_us

routes = Routes("/v1/imports", "imports")

REQUESTS_MAX = 1_000_000_000
CONCURRENCY_MAX = 10_000


class PlanBody(Struct, kw_only=True, forbid_unknown_fields=True):
    mode: RunMode | None = None
    """None: chosen from the spec and the previous runs."""


class RunBody(Struct, kw_only=True, forbid_unknown_fields=True):
    run: str | None = None
    """The run's name; None: generated."""
    mode: RunMode | None = None
    requests_max: int | None = None
    """None: the budget of the spec."""
    concurrency: int = 0
    """How many shards all workers together run at the same time. Large shards are split while fewer are left. 0: not
    known."""


class ResumeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    requests_max: int | None = None
    """None: the budget stays, unless it is used up and the spec has a larger one."""


class ReplayBody(Struct, kw_only=True, forbid_unknown_fields=True):
    run: str
    """The run whose quarantined records are tried again."""


class DiscardBody(Struct, kw_only=True, forbid_unknown_fields=True):
    run: str
    numbers: list[int]


@routes.post("/{source}/plan", Scope.IMPORTS_WRITE, body=PlanBody)
async def plan(request: Request, caller: Authenticated, source: str) -> ImportPlanDocument:
    """Show which shards a run would have, and how many requests and how much time it would take.

    The source is probed; nothing is written."""
    imports, known = find_import(request, caller, source)
    given = await read_body(request, PlanBody)
    made, ahead = await imports.plan(source, given.mode)
    return plan_document(source, known.spec.sink.table, made, ahead)


@routes.post("/{source}/runs", Scope.IMPORTS_WRITE, status_code=202, body=RunBody)
async def start_run(request: Request, caller: Authenticated, source: str) -> Reply[ImportRunDocument]:
    """Start a run: its shards become jobs for workers that know the import. The service finishes the run."""
    imports, _ = find_import(request, caller, source)
    given = await read_body(request, RunBody)
    check_requests(given.requests_max)
    check_int("concurrency", given.concurrency, 0, CONCURRENCY_MAX)
    row = await imports.start(source, NewRun(given.run, given.mode, given.requests_max, given.concurrency))
    get_monitor(request).add_run(source, row.id)
    return Reply(run_document(row), headers={"Location": f"/v1/imports/{source}/runs/{row.id}"})


@routes.post("/{source}/runs/{run}/resume", Scope.IMPORTS_WRITE, status_code=202, body=ResumeBody)
async def resume_run(request: Request, caller: Authenticated, source: str, run: str) -> ImportResumedDocument:
    """Resume a run: unfinished and parked shards are tried again."""
    imports, _ = find_import(request, caller, source)
    given = await read_body(request, ResumeBody)
    check_requests(given.requests_max)
    row = await find_run(imports, source, run)
    count = await imports.resume(source, row, given.requests_max)
    get_monitor(request).add_run(source, row.id)
    return ImportResumedDocument(run=row.id, shards_open=count)


@routes.post("/{source}/quarantine/replay", Scope.IMPORTS_WRITE, body=ReplayBody)
async def replay_quarantine(request: Request, caller: Authenticated, source: str) -> ReplayedDocument:
    """Try the oldest 1,000 quarantined records of a run again, with the present spec.

    Valid records become rows; the others stay in quarantine."""
    imports, known = find_import(request, caller, source)
    row = await find_run(imports, source, (await read_body(request, ReplayBody)).run)
    sink = await imports.sink(source)
    newest = next((each.id for each in await sink.runs.find_all(source, 1)), None)
    builder = RowBuilder(known.spec.resource)
    done = await replay(sink, builder, [row.id], newest, wall_clock_us(), rows_max=QUARANTINE_MAX)
    return replayed_document(done)


@routes.post("/{source}/quarantine/discard", Scope.IMPORTS_WRITE, body=DiscardBody)
async def discard_quarantine(request: Request, caller: Authenticated, source: str) -> ReplayedDocument:
    """Discard quarantined records by their numbers. If one of the numbers is wrong, nothing is discarded."""
    imports, _ = find_import(request, caller, source)
    given = await read_body(request, DiscardBody)
    row = await find_run(imports, source, given.run)
    await check_numbers(imports, source, row.id, given.numbers)
    return replayed_document(await discard(await imports.sink(source), given.numbers))


async def check_numbers(imports: ImportRegistry, source: str, run: str, numbers: list[int]) -> None:
    """A wrong number could select another record, which must not be lost."""
    if not 0 < len(numbers) <= QUARANTINE_MAX:
        raise BadValue("numbers", f"must be 1 to {QUARANTINE_MAX:,} numbers (are {len(numbers):,})")
    sink = await imports.sink(source)
    known = {each.number async for each in read_quarantine(sink, [run], QUARANTINE_MAX)}
    unknown = [str(number) for number in numbers if number not in known]
    if unknown:
        detail = f"numbers: {', '.join(unknown[:10])}: not among the oldest quarantined records of run {run}"
        raise Problem(404, "not_found", f"{detail}; nothing was discarded")


def check_requests(requests_max: int | None) -> None:
    if requests_max is not None:
        check_int("requests_max", requests_max, 1, REQUESTS_MAX)
