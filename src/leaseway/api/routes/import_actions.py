"""/v1/imports: plan, start and resume runs, and empty the quarantine."""

from fastapi import Request
from msgspec import Struct
from starlette.responses import Response

from leaseway.api.errors import Problem
from leaseway.api.imports.registry import Imports
from leaseway.api.request_body import body_of
from leaseway.api.responses import answer
from leaseway.api.routes.imports import QUARANTINE_MAX, known_as, run_of, watch_of
from leaseway.api.routing import Asking, Routes
from leaseway.api.schemas.import_serializers import plan_json, replayed_json, run_json
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
SEATS_MAX = 10_000


class PlanBody(Struct, kw_only=True, forbid_unknown_fields=True):
    mode: RunMode | None = None
    """None: what the spec and the runs so far suggest."""


class RunBody(Struct, kw_only=True, forbid_unknown_fields=True):
    run: str | None = None
    """Its name; None: one is made."""
    mode: RunMode | None = None
    requests_max: int | None = None
    """None: what the spec's budget says."""
    seats: int = 0
    """How many shards all workers together do at once: while fewer are left, large ones are split. 0: not known."""


class ResumeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    requests_max: int | None = None
    """None: its budget stays, unless that is used up and the spec has a larger one."""


class ReplayBody(Struct, kw_only=True, forbid_unknown_fields=True):
    run: str
    """Whose records are tried again."""


class DiscardBody(Struct, kw_only=True, forbid_unknown_fields=True):
    run: str
    numbers: list[int]


@routes.post("/{source}/plan", Scope.IMPORTS_WRITE, body=PlanBody)
async def plan(request: Request, caller: Asking, source: str) -> Response:
    """What a run would ask for, and what that takes. The source is asked about itself; nothing is written."""
    imports, known = known_as(request, caller, source)
    given = await body_of(request, PlanBody)
    made, ahead = await imports.plan(source, given.mode)
    return answer(plan_json(source, known.spec.sink.table, made, ahead))


@routes.post("/{source}/runs", Scope.IMPORTS_WRITE, status_code=202, body=RunBody)
async def start_run(request: Request, caller: Asking, source: str) -> Response:
    """Start a run: its shards become jobs, for workers that know the import, and the service sees to its end."""
    imports, _ = known_as(request, caller, source)
    given = await body_of(request, RunBody)
    check_requests(given.requests_max)
    check_int("seats", given.seats, 0, SEATS_MAX)
    row = await imports.start(source, NewRun(given.run, given.mode, given.requests_max, given.seats))
    watch_of(request).began(source, row.id)
    return answer(run_json(row), 202, {"Location": f"/v1/imports/{source}/runs/{row.id}"})


@routes.post("/{source}/runs/{run}/resume", Scope.IMPORTS_WRITE, status_code=202, body=ResumeBody)
async def resume_run(request: Request, caller: Asking, source: str, run: str) -> Response:
    """Go on with a run: shards that have not ended, or were parked, are tried again."""
    imports, _ = known_as(request, caller, source)
    given = await body_of(request, ResumeBody)
    check_requests(given.requests_max)
    row = await run_of(imports, source, run)
    count = await imports.resume(source, row, given.requests_max)
    watch_of(request).began(source, row.id)
    return answer({"run": row.id, "shards_open": count}, 202)


@routes.post("/{source}/quarantine/replay", Scope.IMPORTS_WRITE, body=ReplayBody)
async def replay_quarantine(request: Request, caller: Asking, source: str) -> Response:
    """Try records again, with the spec as the service knows it now; the oldest 1,000 of the run. What is good becomes a
    row, the rest stays."""
    imports, known = known_as(request, caller, source)
    row = await run_of(imports, source, (await body_of(request, ReplayBody)).run)
    sink = await imports.sink(source)
    newest = next((each.id for each in await sink.runs(source, 1)), None)
    moulds = RowBuilder(known.spec.resource)
    return answer(replayed_json(await replay(sink, moulds, [row.id], newest, wall_clock_us(), rows_max=QUARANTINE_MAX)))


@routes.post("/{source}/quarantine/discard", Scope.IMPORTS_WRITE, body=DiscardBody)
async def discard_quarantine(request: Request, caller: Asking, source: str) -> Response:
    """Drop records by their numbers. Nothing is dropped if one of the numbers is wrong."""
    imports, _ = known_as(request, caller, source)
    given = await body_of(request, DiscardBody)
    row = await run_of(imports, source, given.run)
    await refuse_strangers(imports, source, row.id, given.numbers)
    return answer(replayed_json(await discard(await imports.sink(source), given.numbers)))


async def refuse_strangers(imports: Imports, source: str, run: str, numbers: list[int]) -> None:
    """A wrong number may stand for another record, that is dear to somebody."""
    if not 0 < len(numbers) <= QUARANTINE_MAX:
        raise BadValue("numbers", f"must be 1 to {QUARANTINE_MAX:,} numbers (are {len(numbers):,})")
    sink = await imports.sink(source)
    known = {each.number async for each in read_quarantine(sink, [run], QUARANTINE_MAX)}
    strangers = [str(number) for number in numbers if number not in known]
    if strangers:
        detail = f"numbers: {', '.join(strangers[:10])}: not among the oldest in quarantine of run {run}"
        raise Problem(404, "not_found", f"{detail}; nothing was discarded")


def check_requests(requests_max: int | None) -> None:
    if requests_max is not None:
        check_int("requests_max", requests_max, 1, REQUESTS_MAX)
