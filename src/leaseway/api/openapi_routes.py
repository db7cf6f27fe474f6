"""Which route answers what, and with which problems. A route that is not in here, or describes its answer itself, makes
a test fail."""

from typing import NamedTuple

from leaseway.api.schemas import imports, jobs
from leaseway.api.schemas import operations as ops


class One(NamedTuple):
    shape: type
    codes: tuple[int, ...] = ()
    """Problems of its own, besides those that every route may answer with."""
    also: tuple[int, ...] = ()
    """Other statuses of success, with the same answer."""


class Many(NamedTuple):
    """A page of a list."""

    shape: type
    codes: tuple[int, ...] = ()
    also: tuple[int, ...] = ()


class Plain(NamedTuple):
    """A text of another kind."""

    media_type: str
    codes: tuple[int, ...] = ()
    also: tuple[int, ...] = ()


class Nothing(NamedTuple):
    codes: tuple[int, ...] = ()
    also: tuple[int, ...] = ()


Answer = One | Many | Plain | Nothing

MATCH = (400, 412)

ANSWERS: dict[str, Answer] = {
    "GET /healthz": One(ops.Alive),
    "GET /readyz": One(ops.Ready),
    "GET /metrics": Plain("text/plain"),
    "GET /v1/metrics": One(ops.Metrics),
    "GET /v1/lanes": One(ops.Lanes, (400,)),
    "GET /v1/lanes/pauses": Many(ops.LanesPause, (400,)),
    "POST /v1/lanes/pause": One(ops.LanesPaused),
    "POST /v1/lanes/resume": One(ops.LanesPaused, (404,)),
    "GET /v1/limits": Many(ops.Limit, (400,)),
    "GET /v1/limits/{name}": One(ops.Limit),
    "PUT /v1/limits/{name}": One(ops.LimitChanged, MATCH, (201,)),
    "DELETE /v1/limits/{name}": Nothing(MATCH),
    "POST /v1/limits/{name}/pause": One(ops.LimitChanged, MATCH),
    "POST /v1/limits/{name}/resume": One(ops.LimitChanged, MATCH),
    "GET /v1/budgets": Many(ops.Budget, (400,)),
    "GET /v1/budgets/{name}": One(ops.Budget),
    "GET /v1/budgets/{name}/journal": Many(ops.Entry),
    "PUT /v1/budgets/{name}": One(ops.BudgetChanged, MATCH, (201,)),
    "DELETE /v1/budgets/{name}": Nothing((*MATCH, 409)),
    "POST /v1/budgets/{name}/pause": One(ops.BudgetChanged, MATCH),
    "POST /v1/budgets/{name}/resume": One(ops.BudgetChanged, MATCH),
    "GET /v1/schedules": Many(ops.Schedule, (400,)),
    "GET /v1/schedules/{name}": One(ops.Schedule),
    "POST /v1/schedules/{name}/pause": One(ops.Schedule),
    "POST /v1/schedules/{name}/resume": One(ops.Schedule),
    "GET /v1/tenants": Many(ops.Tenant, (400,)),
    "GET /v1/tenants/{name}": One(ops.Tenant),
    "PUT /v1/tenants/{name}": One(ops.Tenant, (), (201,)),
    "DELETE /v1/tenants/{name}": Nothing(),
    "GET /v1/workers": Many(ops.Worker, (400,)),
    "GET /v1/imports": Many(imports.Import, (400,)),
    "GET /v1/imports/{source}": One(imports.Import),
    "GET /v1/imports/{source}/runs": Many(imports.ImportRun, (400,)),
    "GET /v1/imports/{source}/runs/{run}": One(imports.ImportProgress),
    "GET /v1/imports/{source}/runs/{run}/shards": Many(imports.ImportShard, (400,)),
    "GET /v1/imports/{source}/runs/{run}/points": One(imports.ImportPoints, (400,)),
    "GET /v1/imports/{source}/runs/{run}/report": One(imports.ImportReport),
    "GET /v1/imports/{source}/quarantine": Many(imports.Quarantined, (400,)),
    "POST /v1/imports/{source}/plan": One(imports.ImportPlan),
    "POST /v1/imports/{source}/runs": One(imports.ImportRun),
    "POST /v1/imports/{source}/runs/{run}/resume": One(imports.ImportResumed),
    "POST /v1/imports/{source}/quarantine/replay": One(imports.Replayed),
    "POST /v1/imports/{source}/quarantine/discard": One(imports.Replayed),
    "POST /v1/jobs": One(jobs.Submitted, (400, 409)),
    "POST /v1/jobs/bulk": One(jobs.ManySubmitted),
    "GET /v1/jobs": Many(jobs.JobListed, (400,)),
    "GET /v1/jobs/{id}": One(jobs.JobShown),
    "GET /v1/jobs/{id}/why": One(jobs.Why),
    "GET /v1/jobs/{id}/result": One(jobs.Result, (409,)),
    "POST /v1/jobs/{id}/cancel": One(jobs.Answered),
    "POST /v1/jobs/{id}/retry": One(jobs.Answered, (409,)),
    "DELETE /v1/jobs/{id}": Nothing((409,)),
    "POST /v1/jobs/cancel": One(jobs.Changed, (409,)),
    "POST /v1/jobs/retry": One(jobs.Changed, (409,)),
    "POST /v1/jobs/discard": One(jobs.Changed, (409,)),
    "GET /v1/keys": Many(jobs.Key, (400,)),
    "POST /v1/keys": One(jobs.KeyMade),
    "GET /v1/keys/{id}": One(jobs.Key),
    "DELETE /v1/keys/{id}": One(jobs.Key),
    "POST /v1/keys/{id}/rotate": One(jobs.KeyMade, (409,)),
    "GET /v1/session": One(jobs.Identity, (401,)),
    "POST /v1/session": One(jobs.Identity, (401, 409)),
    "DELETE /v1/session": Nothing(),
    "POST /v1/tickets": One(jobs.Ticket),
}

VERSIONED = {f"{method} /v1/{what}/{{name}}" for method in ("PUT", "DELETE") for what in ("limits", "budgets")}
VERSIONED |= {f"POST /v1/{what}/{{name}}/{verb}" for verb in ("pause", "resume") for what in ("limits", "budgets")}
PRECONDITIONS = (
    ("If-Match", "The ETag of an answer: nobody has changed it since. 412 otherwise."),
    ("If-None-Match", "`*`: there is none yet. 412 otherwise."),
)
HEADERS: dict[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(VERSIONED, PRECONDITIONS),
    "POST /v1/jobs": (
        ("Idempotency-Key", "The same key with the same body gives the first answer; with another body 422."),
    ),
}
"""Headers that routes read by themselves."""
