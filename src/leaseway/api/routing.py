"""request ─► [routing] ─► route ─► [response]

Routes are declared together with the scope that they require. A route without a scope prevents the service from
starting. The guards are async because FastAPI runs plain functions in a thread, which costs more than the guard itself.

A route returns a struct, a `DocumentPage` of structs, either of them in a `Reply` with its status or headers, or None.
Its return annotation is the description of the response: the OpenAPI document is derived from it.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from fastapi import APIRouter, Depends, Request
from msgspec import Struct
from starlette.requests import Request as PlainRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from leaseway.api.errors import Problem, missing_credential
from leaseway.api.request_body import holding_bodies
from leaseway.api.schemas.values import Document
from leaseway.domain.identity import ANY_TENANT, Caller, Scope
from leaseway.domain.validators import check_name
from leaseway.stores.tenant_share import calls_for

T = TypeVar("T")

_encoder = msgspec.json.Encoder()

RESPONSE_BYTES_MAX = 16 * 1024 * 1024


class DocumentPage(Struct, Generic[T]):
    """One page of a list."""

    items: list[T]
    next: str | None
    """The cursor of the next page; None: this is the last one."""


class Reply(NamedTuple, Generic[T]):
    """A value with a status or headers of its own."""

    value: T
    status: int | None = None
    """None: the status that the route declares."""
    headers: Mapping[str, str] | None = None


def render(returned: Any, status: int) -> Response:
    """The response for a route's return value; `status` is the status that the route declares."""
    match returned:
        case Response():
            return returned
        case None:
            return Response(status_code=status)
        case Reply():
            return json_response(returned.value, returned.status or status, returned.headers)
        case _:
            return json_response(returned, status)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, bytes_max: int | None = RESPONSE_BYTES_MAX
) -> Response:
    body = _encoder.encode(value)
    if bytes_max is not None and len(body) > bytes_max:
        detail = f"the response would have {len(body):,} bytes; at most {bytes_max:,} are sent. Ask for fewer: limit"
        raise Problem(422, "response_too_large", detail)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


OPEN = "open"
"""For routes that need no credential, such as health checks."""
COMPONENTS: dict[str, Any] = {}
"""OpenAPI schemas, by name, of routes that describe their bodies and responses themselves."""
Endpoint = Callable[..., Awaitable[Any]]
Guard = Callable[[Request], Awaitable[Caller]]


class RouteDescription(NamedTuple):
    """What FastAPI cannot see about a route; the OpenAPI document needs it."""

    body: type | None
    returns: type | None
    """The struct of the response; None: it has none, or describes itself."""
    is_page: bool
    media_type: str | None
    """Of a response that is not JSON."""
    problems: tuple[int, ...]
    """Statuses of errors that are specific to this route."""
    also: tuple[int, ...]
    """Further statuses of success with the same response."""
    headers: tuple[tuple[str, str], ...]
    """Request headers that the route reads: name and description."""


DESCRIBING = ("body", "returns", "media_type", "problems", "also", "headers")


class Routes:
    """The routes of one resource, below one prefix."""

    def __init__(self, prefix: str, tag: str) -> None:
        self.router = APIRouter(prefix=prefix, tags=[tag])

    def get(self, path: str, scope: Scope | str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._route("GET", path, scope, options)

    def post(self, path: str, scope: Scope | str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._route("POST", path, scope, options)

    def put(self, path: str, scope: Scope | str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._route("PUT", path, scope, options)

    def delete(self, path: str, scope: Scope | str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        return self._route("DELETE", path, scope, options)

    def websocket(self, path: str, scope: Scope | str) -> Callable[[Endpoint], Endpoint]:
        """The endpoint checks the scope itself, because the credential may be a ticket in the query."""

        def add(endpoint: Endpoint) -> Endpoint:
            vars(endpoint)["x_scope"] = str(scope if scope == OPEN else Scope(scope))
            self.router.add_api_websocket_route(path, endpoint)
            return endpoint

        return add

    def _route(
        self, method: str, path: str, scope: Scope | str, options: dict[str, Any]
    ) -> Callable[[Endpoint], Endpoint]:
        """Options besides those of FastAPI: those of `describe`, and `is_fast` for a route with a fixed path whose
        endpoint takes request and caller only."""
        is_fast, status = options.pop("is_fast", False), options.get("status_code", 200)
        described = {name: options.pop(name) for name in DESCRIBING if name in options}
        extra = {"x-scope": str(scope), **options.pop("openapi_extra", {})}

        def add(endpoint: Endpoint) -> Endpoint:
            guards: list[Any] = [] if scope == OPEN else [Depends(require_scope(Scope(scope)))]
            if method == "GET" and scope != OPEN:
                guards.append(Depends(refuse_unknown_query(query_parameters(path, endpoint))))
            respond = rendering(endpoint, status)
            # The routes encode their responses themselves: FastAPI must not validate them with a model.
            known = {"response_model": None, **options}
            self.router.add_api_route(
                path, respond, methods=[method], dependencies=guards, openapi_extra=extra, **known
            )
            # With the route, not in a table of the process: another application may not have this route.
            vars(respond)["x_description"] = describe(endpoint, **described)
            if is_fast:
                vars(respond)["x_fast_guard"] = require_scope(Scope(scope))
            return endpoint

        return add


def describe(
    endpoint: Endpoint,
    body: type | None = None,
    returns: type | None = None,
    media_type: str | None = None,
    problems: Sequence[int] = (),
    also: Sequence[int] = (),
    headers: Sequence[tuple[str, str]] = (),
) -> RouteDescription:
    """`body`: the type of the request's body. The response is described by the endpoint's return annotation, or by
    `returns` or `media_type` if the endpoint makes the response itself."""
    returns = returns or get_type_hints(endpoint).get("return")
    if get_origin(returns) is Reply:
        (returns,) = get_args(returns)
    is_page = get_origin(returns) is DocumentPage
    if is_page:
        (returns,) = get_args(returns)
    has_struct = isinstance(returns, type) and issubclass(returns, Document)
    return RouteDescription(
        body, returns if has_struct else None, is_page, media_type, tuple(problems), tuple(also), tuple(headers)
    )


def rendering(endpoint: Endpoint, status: int) -> Endpoint:
    """The same endpoint, whose return value becomes a response. Its calls to the store and the room for its body count
    for the tenant."""

    @wraps(endpoint)
    async def respond(*arguments: Any, **named: Any) -> Any:
        caller = named.get("caller") or next((each for each in arguments if isinstance(each, Caller)), None)
        with calls_for(None if caller is None else confined_tenant(caller)), holding_bodies():
            return render(await endpoint(*arguments, **named), status)

    return respond


def confined_tenant(caller: Caller) -> str | None:
    """The tenant to which a credential is limited; None: it belongs to an operator, or to workers of all tenants."""
    return None if caller.sees_all or caller.tenant == ANY_TENANT else caller.tenant


class FastRoutes:
    """Middleware that finds the routes with the highest request rates by method and path.

    FastAPI tries one route after the other and prepares everything that an endpoint might ask for, which takes longer
    than storing a job. A fast route has the same guard and appears in the OpenAPI document like every other route.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self.routes = {
            (method, route.path): route
            for route in every_route(routes)
            if isinstance(route, Route) and "x_fast_guard" in vars(route.endpoint)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        found = self.routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = found
        endpoint, request = found.endpoint, PlainRequest(scope, receive, send)
        response = await endpoint(request, await vars(endpoint)["x_fast_guard"](request))
        await response(scope, receive, send)


# -- finding routes -------------------------------------------------------------------------------------------------


def every_route(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """All routes, also those of included routers, which newer versions of FastAPI keep nested."""
    for route in routes:
        inner = getattr(route, "original_router", route)
        if isinstance(inner, APIRouter | Mount):
            yield from every_route(inner.routes)
        else:
            yield route


def route_descriptions(routes: Iterable[BaseRoute]) -> dict[str, RouteDescription]:
    """By method and path: "GET /v1/jobs/{id}"."""
    return {
        f"{method} {route.path.replace(':path}', '}')}": vars(route.endpoint)["x_description"]
        for route in every_route(routes)
        if isinstance(route, Route) and "x_description" in vars(route.endpoint)
        for method in route.methods or ()
    }


def required_scope(route: BaseRoute) -> str | None:
    """None: the route declares no scope."""
    declared = getattr(route, "openapi_extra", None) or vars(getattr(route, "endpoint", None) or route)
    found = declared.get("x-scope", declared.get("x_scope"))
    return None if found is None else str(found)


# -- guards ---------------------------------------------------------------------------------------------------------


def require_scope(scope: Scope) -> Guard:
    async def check(request: Request) -> Caller:
        caller: Caller | None = request.scope.get("leaseway.caller")
        if caller is None:
            raise missing_credential()
        if not caller.may(scope):
            raise Problem(403, "not_allowed", f"this credential lacks the scope {scope.value}")
        return caller

    return check


def query_parameters(path: str, endpoint: Endpoint) -> frozenset[str]:
    """The parameters of an endpoint that come from the query."""
    found = inspect.signature(endpoint).parameters
    return frozenset(name for name in found if name not in ("request", "caller") and f"{{{name}" not in path)


def refuse_unknown_query(known: frozenset[str]) -> Callable[[Request], Awaitable[None]]:
    """Refuse unknown query parameters: a misspelled filter would otherwise select everything."""

    async def check(request: Request) -> None:
        for name in request.query_params:
            if name not in known:
                accepted = f"accepted are {', '.join(sorted(known))}" if known else "this route takes none"
                detail = f"unknown query parameter; {accepted}"
                errors = [{"pointer": f"/query/{name[:100]}", "detail": detail}]
                raise Problem(422, "invalid", f"/query/{name[:100]}: {detail}", errors=errors)

    return check


async def authenticated_caller(request: Request) -> Caller:
    """The caller of a route with a scope, whose guard has checked that there is one."""
    caller = request.scope["leaseway.caller"]
    assert isinstance(caller, Caller)
    return caller


Authenticated = Annotated[Caller, Depends(authenticated_caller)]


def visible_tenant(caller: Caller, named: str | None) -> str | None:
    """The tenant whose data a request may read. None: the data of all tenants, which only operators may read."""
    if named is not None:
        check_name("tenant", named)
    if caller.sees_all:
        return named
    if named not in (None, caller.tenant):
        raise Problem(403, "not_allowed", "tenant: this credential can read its own tenant only; omit the parameter")
    return caller.tenant
