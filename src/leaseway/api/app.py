"""The service, put together: its routes with their scopes, and what stands before all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from leaseway import __version__
from leaseway.api.errors import Problem, answer_of, told
from leaseway.api.live import routes as live
from leaseway.api.metrics.request_metrics import count_requests
from leaseway.api.middleware import Gate, Shortcut, trace_requests
from leaseway.api.openapi import describe
from leaseway.api.routes import (
    budgets,
    dashboard,
    health,
    import_actions,
    imports,
    jobs,
    jobs_bulk,
    keys,
    lanes,
    limits,
    limits_write,
    metrics,
    schedules,
    sessions,
    tenants,
    workers,
)
from leaseway.api.routing import Routes, every_route, scope_of
from leaseway.api.service import Service
from leaseway.api.settings import ServiceSettings
from leaseway.api.worker_protocol import routes as worker_protocol
from leaseway.app import App
from leaseway.domain.errors import LeasewayError, UsageError

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig  # which older ones have not

ROUTES: tuple[Routes, ...] = (
    health.routes,
    metrics.routes,
    lanes.routes,
    limits.routes,
    limits_write.routes,
    budgets.routes,
    schedules.routes,
    tenants.routes,
    workers.routes,
    imports.routes,
    import_actions.routes,
    jobs_bulk.routes,
    jobs.routes,
    keys.routes,
    sessions.routes,
    worker_protocol.routes,
    live.routes,
    dashboard.routes,
)
"""Everything that is served. Each of them says who may use it."""
NO_TELEMETRY: "TelemetryConfig" = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""Spans are our own: those of FastAPI would hold the query, where a ticket may be."""


def web_of(app: App, settings: ServiceSettings) -> FastAPI:
    service = Service(app, settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await service.open()
        try:
            yield
        finally:
            await service.close()

    api = FastAPI(
        title="leaseway", version=__version__, lifespan=life, docs_url=None, redoc_url=None, redirect_slashes=False,
        openapi_url="/v1/openapi.json", telemetry=NO_TELEMETRY,
    )  # fmt: skip
    api.state.service = service
    api.router.routes.extend(included(ROUTES))
    refuse_unscoped(api)
    for kind in (Problem, LeasewayError, RequestValidationError, HTTPException):
        api.add_exception_handler(kind, answered)
    api.add_middleware(Shortcut)
    api.add_middleware(Gate, service=service)
    count_requests(api)
    trace_requests(api, app.world.tracing)
    describe(api)
    return api


@cache
def included(parts: tuple[Routes, ...]) -> list[BaseRoute]:
    """Made once in a process: they know nothing of the service that they serve, and what FastAPI makes of each of them
    at its first request takes longer than most requests."""
    together = APIRouter(redirect_slashes=False)
    for routes in parts:
        together.include_router(routes.router)
    return together.routes


def refuse_unscoped(api: FastAPI) -> None:
    """Deny by default: a route that says nothing about who may use it is a mistake, found before it is served."""
    for route in every_route(api.routes):
        if scope_of(route) is None and getattr(route, "path", None) != api.openapi_url:
            raise UsageError(f"route {getattr(route, 'path', route)} declares no scope; use api.routes.Routes")


async def answered(request: Request, error: Exception) -> Response:
    request_id, path = request.scope.get("leaseway.request_id", ""), request.scope["path"]
    problem = told(error, request_id, path)
    if problem.status == 405:
        allowed = problem.headers["Allow"] = ", ".join(methods_at(request.app, path))
        problem.detail = f"{request.method[:20]} is not for this path; it takes {allowed}"
    elif isinstance(error, HTTPException) and problem.status == 404:
        problem.detail = f"there is nothing at {path[:200]}; {request.app.openapi_url} says what there is"
    return answer_of(problem, request_id)


def methods_at(api: FastAPI, path: str) -> list[str]:
    """All of them: the first route that fits knows only its own."""
    fitting = [route for route in every_route(api.routes) if isinstance(route, Route) and route.path_regex.match(path)]
    return sorted({method for route in fitting for method in route.methods or ()})
