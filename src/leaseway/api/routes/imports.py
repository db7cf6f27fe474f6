"""/v1/imports: the imports that the service was started with, and how their runs are doing.

Imports are the house's own: their jobs belong to the tenant `default`. Who sees that tenant sees them, and to others
they are not there. What changes something is in `import_changes`.
"""

import asyncio
import logging
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from leaseway.api.imports.monitor import ImportWatch
from leaseway.api.imports.registry import Imports, Known
from leaseway.api.pagination import Limit, cursor_of, paged, place_of, unknown
from leaseway.api.responses import answer, page
from leaseway.api.routing import Asking, Routes
from leaseway.api.schemas.import_serializers import quarantined_json, run_json, shard_json
from leaseway.api.service import service_of
from leaseway.domain.errors import LeasewayError
from leaseway.domain.identity import Caller, Scope
from leaseway.imports.domain.run_state import RunRow, RunState, ShardState
from leaseway.imports.run.quarantine_replay import QuarantinedRow, read_quarantine
from leaseway.imports.sinks.port import RowMap
from leaseway.imports.sinks.row_map import DEGREES, GridCell
from leaseway.system import wall_clock_us

log = logging.getLogger("leaseway.api")
routes = Routes("/v1/imports", "imports")

OWNER = "default"
RUNS_MAX = 1_000
QUARANTINE_MAX = 1_000
State = Annotated[ShardState | None, Query()]
RowsMax = Annotated[int, Query(ge=1, le=20_000, description="Rows that are looked at for one answer.")]


@routes.get("", Scope.IMPORTS_READ)
async def list_imports(request: Request, caller: Asking, limit: Limit = 50, cursor: str | None = None) -> Response:
    """Every import that the service knows, with its last run."""
    imports = service_of(request).imports
    names = imports.names if imports is not None and caller.sees(OWNER) else []
    shown, more = paged(request, caller, names, str, limit, cursor)
    documents = [import_json(imports, name) for name in shown if imports is not None]
    return page(list(await asyncio.gather(*documents)), more)


@routes.get("/{source}", Scope.IMPORTS_READ)
async def show_import(request: Request, caller: Asking, source: str) -> Response:
    """One import, with its last run."""
    imports, _ = known_as(request, caller, source)
    return answer(await import_json(imports, source))


@routes.get("/{source}/runs", Scope.IMPORTS_READ)
async def list_runs(
    request: Request, caller: Asking, source: str, limit: Limit = 50, cursor: str | None = None
) -> Response:
    """The runs of an import, the newest first."""
    imports, _ = known_as(request, caller, source)
    runs = await (await imports.sink(source)).runs(source, RUNS_MAX)
    shown, more = paged(request, caller, runs, lambda row: row.id, limit, cursor)
    return page([run_json(row) for row in shown], more)


@routes.get("/{source}/runs/{run}", Scope.IMPORTS_READ)
async def show_run(request: Request, caller: Asking, source: str, run: str) -> Response:
    """How far a run has come: its state, its shards by state, its counters, its pace. Believed for a second."""
    known_as(request, caller, source)
    found = await watch_of(request).progress(source, run) if run.isprintable() else None
    if found is None:
        raise unknown("run", run)
    return answer(found)


@routes.get("/{source}/runs/{run}/shards", Scope.IMPORTS_READ)
async def list_shards(
    request: Request,
    caller: Asking,
    source: str,
    run: str,
    state: State = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> Response:
    """The shards of a run, with what they ask for and how far they are."""
    known_as(request, caller, source)
    shards = await watch_of(request).shards(source, run) if run.isprintable() else None
    if shards is None:
        raise unknown("run", run)
    wanted = [each for each in shards if state in (None, each.state)]
    shown, more = paged(request, caller, wanted, lambda each: each.shard.key, limit, cursor)
    now = wall_clock_us()
    return page([shard_json(each, now) for each in shown], more)


@routes.get("/{source}/runs/{run}/points", Scope.IMPORTS_READ)
async def list_points(
    request: Request, caller: Asking, source: str, run: str, after: str | None = None, limit: RowsMax = 10_000
) -> Response:
    """Where rows lie, counted on a grid of half a degree: [longitude, latitude, count].

    `items` are rows that this run wrote, `others` those that it found as they were. Go on with `after`: at once while
    there is `more`, and now and then as long as the run goes on; counts of one place are to be added. Where nobody can
    tell, `has_positions` is false."""
    imports, known = known_as(request, caller, source)
    row, sink = await run_of(imports, source, run), await imports.sink(source)
    settings, about = service_of(request).settings, f"{request.url.path} {caller.name}"
    place = "" if after is None else place_of(settings.cursor_secret, after, about)
    if known.position is None or not isinstance(sink, RowMap):
        return answer(points_json(False, [], False, None))
    found = await sink.places(source, row.id, known.position, place.removeprefix("@"), limit)
    is_over = row.state is not RunState.RUNNING and not found.has_more
    following = None if is_over else cursor_of(settings.cursor_secret, f"@{found.after}", about)
    return answer(points_json(True, found.cells, found.has_more, following))


@routes.get("/{source}/runs/{run}/report", Scope.IMPORTS_READ)
async def show_report(request: Request, caller: Asking, source: str, run: str) -> Response:
    """What a run has done: counters, changes, drift, and the slowest shards. Believed for some seconds."""
    imports, _ = known_as(request, caller, source)
    return answer(await watch_of(request).reports.of(source, await run_of(imports, source, run)))


@routes.get("/{source}/quarantine", Scope.IMPORTS_READ)
async def list_quarantine(
    request: Request,
    caller: Asking,
    source: str,
    run: str | None = None,
    limit: Limit = 50,
    cursor: str | None = None,
) -> Response:
    """Records that could not become rows, the oldest first, of one run or of the last one; at most the first 1,000."""
    imports, _ = known_as(request, caller, source)
    sink = await imports.sink(source)
    rows = await sink.runs(source, 1) if run is None else [await run_of(imports, source, run)]
    kept: list[QuarantinedRow] = []
    async for each in read_quarantine(sink, [row.id for row in rows], QUARANTINE_MAX):
        kept.append(each)
    shown, more = paged(request, caller, kept, lambda each: str(each.number), limit, cursor)
    return page([quarantined_json(each) for each in shown], more)


# -- finding --------------------------------------------------------------------------------------------------------


def known_as(request: Request, caller: Caller, source: str) -> tuple[Imports, Known]:
    imports = service_of(request).imports
    known = imports.named(source) if imports is not None and caller.sees(OWNER) else None
    if imports is None or known is None:
        raise unknown("import", source, "start the service with --imports FOLDER, where its spec is")
    return imports, known


def watch_of(request: Request) -> ImportWatch:
    watch = service_of(request).import_watch
    assert watch is not None, "there are imports"
    return watch


async def run_of(imports: Imports, source: str, run: str) -> RunRow:
    sink = await imports.sink(source)
    row = await sink.run(run) if run.isprintable() else None
    if row is None or row.source != source:
        raise unknown("run", run)
    return row


async def import_json(imports: Imports, source: str) -> dict[str, Any]:
    """One whose table cannot be reached does not hide the others."""
    known = imports.named(source)
    assert known is not None
    try:
        runs = await (await imports.sink(source)).runs(source, 1)
    except LeasewayError as error:
        log.warning("import %s: %s", source, error)
        runs = None
    return {
        "source": source,
        "spec": known.path.name,
        "table": known.spec.sink.table,
        "has_positions": known.position is not None and isinstance(known.sink, RowMap),
        "is_reachable": runs is not None,
        "last_run": run_json(runs[0]) if runs else None,
    }


def points_json(has_positions: bool, cells: list[GridCell], more: bool, after: str | None) -> dict[str, Any]:
    return {
        "items": [[*cell.middle, cell.rows] for cell in cells if cell.is_of_run],
        "others": [[*cell.middle, cell.rows] for cell in cells if not cell.is_of_run],
        "degrees": DEGREES,
        "has_positions": has_positions,
        "more": more,
        "next": after,
    }
