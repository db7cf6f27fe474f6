"""/v1/imports: the imports that the service was started with: plan them, start, resume and show runs, handle bad rows.

Imports belong to the `default` tenant; other tenants cannot see them.
"""

import asyncio
import logging
from typing import Annotated

from fastapi import Query, Request
from msgspec import Meta, Struct

from leaseway.api.errors import Problem, not_found
from leaseway.api.imports.monitor import ImportMonitor
from leaseway.api.imports.registry import ImportRegistry, KnownImport
from leaseway.api.imports.simulation import simulate_spec
from leaseway.api.pagination import PageLimit, build_page, decode_cursor, encode_cursor, paginate
from leaseway.api.request_body import read_body
from leaseway.api.routing import Authenticated, DocumentPage, Reply, Routes
from leaseway.api.schemas.imports import (
    ImportDocument,
    ImportPlanDocument,
    ImportPointsDocument,
    ImportProgressDocument,
    ImportReportDocument,
    ImportResumedDocument,
    ImportRunDocument,
    ImportShardDocument,
    QuarantinedDocument,
    ReplayedDocument,
    plan_document,
    points_document,
    quarantined_document,
    replayed_document,
    run_document,
    shard_document,
)
from leaseway.api.schemas.scaling import ImportSimulationDocument, simulation_document
from leaseway.api.service import get_service
from leaseway.domain.errors import BadValue, LeasewayError
from leaseway.domain.identity import OPERATOR_TENANT, Caller, Scope
from leaseway.domain.validators import check_int
from leaseway.imports.domain.run_state import RunMode, RunRow, RunState, ShardState
from leaseway.imports.rows import RowBuilder
from leaseway.imports.run.quarantine_replay import QuarantinedRow, discard, read_quarantine, replay
from leaseway.imports.run.start import NewRun
from leaseway.system import wall_clock_us

log = logging.getLogger("leaseway.api")
routes = Routes("/v1/imports", "imports")

RUNS_MAX = 1_000
QUARANTINE_MAX = 1_000
ShardStateFilter = Annotated[ShardState | None, Query()]
RowsMax = Annotated[int, Query(ge=1, le=20_000, description="How many rows are read for one response.")]


@routes.get("", Scope.IMPORTS_READ, problems=(400,))
async def list_imports(
    request: Request, caller: Authenticated, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[ImportDocument]:
    """List the imports of the service, each with its last run."""
    imports = get_service(request).imports
    names = imports.names if imports is not None and caller.sees(OPERATOR_TENANT) else []
    shown, more = paginate(request, caller, names, str, limit, cursor)
    documents = [import_document(imports, name) for name in shown if imports is not None]
    return DocumentPage(list(await asyncio.gather(*documents)), more)


@routes.get("/{source}", Scope.IMPORTS_READ)
async def show_import(request: Request, caller: Authenticated, source: str) -> ImportDocument:
    """Show an import with its last run."""
    imports, _ = find_import(request, caller, source)
    return await import_document(imports, source)


@routes.get("/{source}/runs", Scope.IMPORTS_READ, problems=(400,))
async def list_runs(
    request: Request, caller: Authenticated, source: str, limit: PageLimit = 50, cursor: str | None = None
) -> DocumentPage[ImportRunDocument]:
    """List the runs of an import, newest first."""
    imports, _ = find_import(request, caller, source)
    runs = await (await imports.sink(source)).runs.find_all(source, RUNS_MAX)
    return build_page(request, caller, runs, lambda row: row.id, run_document, limit, cursor)


@routes.get("/{source}/runs/{run}", Scope.IMPORTS_READ)
async def show_run(request: Request, caller: Authenticated, source: str, run: str) -> ImportProgressDocument:
    """Show the progress of a run: its state, shards by state, counters and pace. Cached for a second."""
    find_import(request, caller, source)
    found = await get_monitor(request).progress(source, run) if run.isprintable() else None
    if found is None:
        raise not_found("run", run)
    return found


@routes.get("/{source}/runs/{run}/shards", Scope.IMPORTS_READ, problems=(400,))
async def list_shards(
    request: Request,
    caller: Authenticated,
    source: str,
    run: str,
    state: ShardStateFilter = None,
    limit: PageLimit = 50,
    cursor: str | None = None,
) -> DocumentPage[ImportShardDocument]:
    """List the shards of a run with their predicates and counters."""
    find_import(request, caller, source)
    shards = await get_monitor(request).shards(source, run) if run.isprintable() else None
    if shards is None:
        raise not_found("run", run)
    wanted = [each for each in shards if state in (None, each.state)]
    shown, more = paginate(request, caller, wanted, lambda each: each.shard.key, limit, cursor)
    now = wall_clock_us()
    return DocumentPage([shard_document(each, now) for each in shown], more)


@routes.get("/{source}/runs/{run}/points", Scope.IMPORTS_READ, problems=(400,))
async def list_points(
    request: Request, caller: Authenticated, source: str, run: str, after: str | None = None, limit: RowsMax = 10_000
) -> ImportPointsDocument:
    """Show where rows are located, on a grid of half a degree: [longitude, latitude, count].

    `items` are rows that this run wrote, `others` are rows that it found unchanged. Continue with `after`: immediately
    while `more` is true, from time to time while the run is running. Add up the counts of points with the same
    coordinates. `has_positions` is false if the import has no coordinates."""
    imports, known = find_import(request, caller, source)
    row, sink = await find_run(imports, source, run), await imports.sink(source)
    secret, context = get_service(request).settings.cursor_secret, f"{request.url.path} {caller.name}"
    position = "" if after is None else decode_cursor(secret, after, context)
    if known.position is None or sink.row_map is None:
        return points_document(False, [], False, None)
    found = await sink.row_map.read(source, row.id, known.position, position.removeprefix("@"), limit)
    is_over = row.state is not RunState.RUNNING and not found.has_more
    following = None if is_over else encode_cursor(secret, f"@{found.after}", context)
    return points_document(True, found.cells, found.has_more, following)


@routes.get("/{source}/runs/{run}/report", Scope.IMPORTS_READ)
async def show_report(request: Request, caller: Authenticated, source: str, run: str) -> ImportReportDocument:
    """Show the report of a run: counters, changes, drift, and the slowest shards. Cached for some seconds."""
    imports, _ = find_import(request, caller, source)
    return await get_monitor(request).reports.get(source, await find_run(imports, source, run))


@routes.get("/{source}/quarantine", Scope.IMPORTS_READ, problems=(400,))
async def list_quarantine(
    request: Request,
    caller: Authenticated,
    source: str,
    run: str | None = None,
    limit: PageLimit = 50,
    cursor: str | None = None,
) -> DocumentPage[QuarantinedDocument]:
    """List the quarantined records of a run, by default of the last one, oldest first; at most 1,000 records."""
    imports, _ = find_import(request, caller, source)
    sink = await imports.sink(source)
    rows = await sink.runs.find_all(source, 1) if run is None else [await find_run(imports, source, run)]
    kept: list[QuarantinedRow] = []
    async for each in read_quarantine(sink, [row.id for row in rows], QUARANTINE_MAX):
        kept.append(each)
    return build_page(request, caller, kept, lambda each: str(each.number), quarantined_document, limit, cursor)


# -- finding --------------------------------------------------------------------------------------------------------


def find_import(request: Request, caller: Caller, source: str) -> tuple[ImportRegistry, KnownImport]:
    imports = get_service(request).imports
    known = imports.find(source) if imports is not None and caller.sees(OPERATOR_TENANT) else None
    if imports is None or known is None:
        raise not_found("import", source, "start the service with --imports FOLDER, which must contain its spec")
    return imports, known


def get_monitor(request: Request) -> ImportMonitor:
    monitor = get_service(request).import_monitor
    assert monitor is not None, "the service has imports"
    return monitor


async def find_run(imports: ImportRegistry, source: str, run: str) -> RunRow:
    sink = await imports.sink(source)
    row = await sink.runs.find(run) if run.isprintable() else None
    if row is None or row.source != source:
        raise not_found("run", run)
    return row


async def import_document(imports: ImportRegistry, source: str) -> ImportDocument:
    """A sink that does not respond must not hide the other imports."""
    known = imports.find(source)
    assert known is not None
    try:
        runs = await (await imports.sink(source)).runs.find_all(source, 1)
    except LeasewayError as error:
        log.warning("import %s: %s", source, error)
        runs = None
    return ImportDocument(
        source=source,
        spec=known.path.name,
        table=known.spec.sink.table,
        has_positions=known.position is not None and known.sink.row_map is not None,
        is_reachable=runs is not None,
        last_run=run_document(runs[0]) if runs else None,
    )


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


class SimulationBody(Struct, kw_only=True, forbid_unknown_fields=True):
    workers: Annotated[list[Annotated[int, Meta(ge=1, le=64)]], Meta(max_length=6)] = []
    """Numbers of workers to try. Empty: 1, 2, 4 … until more do not help."""
    rows: Annotated[int, Meta(ge=0, le=2_000_000)] | None = None
    """Null: what the source reports."""
    seconds: Annotated[float, Meta(ge=0, le=3_600)] = 0.2
    """The median time of a request."""
    p95_seconds: Annotated[float, Meta(ge=0, le=3_600)] | None = None


@routes.post("/{source}/simulate", Scope.IMPORTS_WRITE, body=SimulationBody)
async def simulate(request: Request, caller: Authenticated, source: str) -> ImportSimulationDocument:
    """Run a plan of the import in virtual time against a model of the provider, for several numbers of workers.

    The source is probed; nothing is written. One simulation runs at a time, for up to a minute; otherwise the answer is
    503."""
    _, known = find_import(request, caller, source)
    given = await read_body(request, SimulationBody)
    return simulation_document(source, await simulate_spec(known.path, simulation_options(given)))


def simulation_options(given: SimulationBody) -> list[str]:
    p95 = "" if given.p95_seconds is None else f",{given.p95_seconds}"
    options = ["--provider", f"{given.seconds}{p95}"]
    options += ["--workers", ",".join(map(str, given.workers))] if given.workers else []
    return options + ([] if given.rows is None else ["--rows", str(given.rows)])


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
