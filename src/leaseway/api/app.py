"""routes, middleware, error handlers ─► [FastAPI application]"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from leaseway import __version__
from leaseway.api.errors import Problem, log_problem, problem_response
from leaseway.api.live import routes as live
from leaseway.api.metrics import count_requests
from leaseway.api.middleware import RequestMiddleware, trace_requests
from leaseway.api.openapi import add_openapi
from leaseway.api.routes import (
    budgets,
    dashboard,
    health,
    imports,
    jobs,
    jobs_bulk,
    keys,
    lanes,
    limits,
    metrics,
    operations,
    scale,
)
from leaseway.api.routing import FastRoutes, Routes, every_route, required_scope
from leaseway.api.service import Service
from leaseway.api.settings import ServiceSettings
from leaseway.api.worker_protocol import routes as worker_protocol
from leaseway.app import App
from leaseway.domain.errors import LeasewayError, UsageError

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig  # older versions of FastAPI do not have it

ROUTES: tuple[Routes, ...] = (
    health.routes,
    metrics.routes,
    scale.routes,
    lanes.routes,
    limits.routes,
    budgets.routes,
    operations.schedule_routes,
    operations.tenant_routes,
    operations.quota_routes,
    operations.worker_routes,
    imports.routes,
    jobs_bulk.routes,
    jobs.routes,
    keys.key_routes,
    keys.session_routes,
    worker_protocol.routes,
    live.routes,
    dashboard.routes,
)
"""All routes. Each of them declares the scope that it requires."""
NO_TELEMETRY: "TelemetryConfig" = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own spans would contain the query, which may contain a ticket; `middleware` makes spans without it."""


def build_app(app: App, settings: ServiceSettings) -> FastAPI:
    service = Service(app, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.open()
        try:
            yield
        finally:
            await service.close()

    api = FastAPI(
        title="leaseway", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False,
        openapi_url="/v1/openapi.json", telemetry=NO_TELEMETRY,
    )  # fmt: skip
    api.state.service = service
    api.router.routes.extend(included_routes(ROUTES))
    refuse_unscoped(api)
    for kind in (Problem, LeasewayError, RequestValidationError, HTTPException):
        api.add_exception_handler(kind, handle_error)
    # The middleware that is added last runs first.
    api.add_middleware(FastRoutes, routes=api.routes)
    api.add_middleware(RequestMiddleware, service=service)
    count_requests(api)
    trace_requests(api, app.world.tracing)
    add_openapi(api)
    serve_openapi(api)
    return api


def serve_openapi(api: FastAPI) -> None:
    """Return the document as bytes that are encoded once. It is large, and needs no credential."""

    @cache
    def encoded() -> dashboard.Asset:
        return dashboard.make_asset("openapi.json", msgspec.json.encode(api.openapi()))

    async def document(request: Request) -> Response:
        return dashboard.asset_response(request, encoded(), dashboard.REVALIDATE)

    assert api.openapi_url is not None
    api.router.routes[:] = [route for route in api.routes if getattr(route, "path", None) != api.openapi_url]
    api.add_route(api.openapi_url, document, include_in_schema=False)


@cache
def included_routes(parts: tuple[Routes, ...]) -> list[BaseRoute]:
    """Built once per process: routes do not depend on the service, and FastAPI prepares each of them at its first
    request, which takes longer than most requests."""
    router = APIRouter(redirect_slashes=False)
    for routes in parts:
        router.include_router(routes.router)
    return router.routes


def refuse_unscoped(api: FastAPI) -> None:
    """Deny by default: a route without a declared scope is a mistake, which is reported before it is served."""
    for route in every_route(api.routes):
        if required_scope(route) is None and getattr(route, "path", None) != api.openapi_url:
            raise UsageError(f"route {getattr(route, 'path', route)} declares no scope; use api.routing.Routes")


async def handle_error(request: Request, error: Exception) -> Response:
    request_id, path = request.scope.get("leaseway.request_id", ""), request.scope["path"]
    problem = log_problem(error, request_id, path)
    if problem.status == 405:
        allowed = problem.headers["Allow"] = ", ".join(allowed_methods(request.app, path))
        problem.detail = f"this path does not support {request.method[:20]}; it supports {allowed}"
    elif isinstance(error, HTTPException) and problem.status == 404:
        problem.detail = f"there is nothing at {path[:200]}; see {request.app.openapi_url} for all paths"
    return problem_response(problem, request_id)


def allowed_methods(api: FastAPI, path: str) -> list[str]:
    """Of all routes with this path: each route knows only its own methods."""
    matching = [route for route in every_route(api.routes) if isinstance(route, Route) and route.path_regex.match(path)]
    return sorted({method for route in matching for method in route.methods or ()})
