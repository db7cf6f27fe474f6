"""/v1/imports: the imports that the service was started with, and the state of their runs.

Imports belong to the `default` tenant; other tenants cannot see them. `import_actions` has the routes that change
something.
"""

import asyncio
import logging
from typing import Annotated

from fastapi import Query, Request

from leaseway.api.errors import not_found
from leaseway.api.imports.monitor import ImportMonitor
from leaseway.api.imports.registry import ImportRegistry, KnownImport
from leaseway.api.pagination import PageLimit, build_page, decode_cursor, encode_cursor, paginate
from leaseway.api.responses import DocumentPage
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.imports import (
    ImportDocument,
    ImportPointsDocument,
    ImportProgressDocument,
    ImportReportDocument,
    ImportRunDocument,
    ImportShardDocument,
    QuarantinedDocument,
    points_document,
    quarantined_document,
    run_document,
    shard_document,
)
from leaseway.api.service import get_service
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import Caller, Scope
from leaseway.imports.domain.run_state import RunRow, RunState, ShardState
from leaseway.imports.run.quarantine_replay import QuarantinedRow, read_quarantine
from leaseway.system import wall_clock_us

log = logging.getLogger("leaseway.api")
routes = Routes("/v1/imports", "imports")

OWNER = "default"
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
    names = imports.names if imports is not None and caller.sees(OWNER) else []
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
    known = imports.find(source) if imports is not None and caller.sees(OWNER) else None
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
