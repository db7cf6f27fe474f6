"""A route says which scope it needs, in the place where it is declared. One that does not is a mistake at start-up.

The guards are async because FastAPI would send plain functions to a thread, which costs more than the guard.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.routing import BaseRoute, Mount

from leaseway.api.errors import Problem
from leaseway.domain.identity import Caller, Scope
from leaseway.domain.validators import check_name

OPEN = "open"
"""For what anybody may ask: whether the service lives."""
BODIES: set[type] = set()
"""The types of all bodies, for the components of the description."""
COMPONENTS: dict[str, Any] = {}
"""Schemas of routes that describe bodies and answers by themselves, by name."""
Endpoint = Callable[..., Awaitable[Any]]
Busy = dict[tuple[str, str], tuple[Callable[[Request], Awaitable[Caller]], Endpoint]]
BUSY: Busy = {}
"""Routes that are found by method and path, before FastAPI looks through all of them: see `Shortcut`."""


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
        """Its endpoint looks at the scope itself: what it brings may be a ticket."""

        def add(endpoint: Endpoint) -> Endpoint:
            vars(endpoint)["x_scope"] = str(scope if scope == OPEN else Scope(scope))
            self.router.add_api_websocket_route(path, endpoint)
            return endpoint

        return add

    def _route(
        self, method: str, path: str, scope: Scope | str, options: dict[str, Any]
    ) -> Callable[[Endpoint], Endpoint]:
        """`body`: the type of what it reads. `busy`: its path is fixed, and its endpoint takes request and caller."""
        body, is_busy = options.pop("body", None), options.pop("busy", False)
        extra = {"x-scope": str(scope), **(taking(body) if body else {}), **options.pop("openapi_extra", {})}

        def add(endpoint: Endpoint) -> Endpoint:
            guards = [] if scope == OPEN else [Depends(needing(Scope(scope)))]
            if method == "GET" and scope != OPEN:
                guards.append(Depends(asking_only(query_of(path, endpoint))))
            # Answers are made by the routes themselves: no model stands between them and the wire.
            known = {"response_model": None, **options}
            self.router.add_api_route(
                path, endpoint, methods=[method], dependencies=guards, openapi_extra=extra, **known
            )
            if is_busy:
                BUSY[method, self.router.prefix + path] = needing(Scope(scope)), endpoint
            return endpoint

        return add


def every_route(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Those of included routers too, which newer FastAPIs keep as they are."""
    for route in routes:
        inner = getattr(route, "original_router", route)
        if isinstance(inner, APIRouter | Mount):
            yield from every_route(inner.routes)
        else:
            yield route


def scope_of(route: BaseRoute) -> str | None:
    """None: it does not say who may use it."""
    said = getattr(route, "openapi_extra", None) or vars(getattr(route, "endpoint", None) or route)
    found = said.get("x-scope", said.get("x_scope"))
    return None if found is None else str(found)


def taking(body: type) -> dict[str, Any]:
    """What the description says of a body that the route reads by itself."""
    BODIES.add(body)
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def needing(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    async def check(request: Request) -> Caller:
        caller: Caller | None = request.scope.get("leaseway.caller")
        if caller is None:
            raise Problem(
                401, "not_authenticated", "send a key: Authorization: Bearer lw_…",
                headers={"WWW-Authenticate": 'Bearer realm="leaseway"'},
            )  # fmt: skip
        if not caller.may(scope):
            raise Problem(403, "not_allowed", f"this credential has no scope {scope.value}")
        return caller

    return check


def query_of(path: str, endpoint: Endpoint) -> frozenset[str]:
    """What a route may be asked: its parameters, without those in its path and those that come from elsewhere."""
    found = inspect.signature(endpoint).parameters
    return frozenset(name for name in found if name not in ("request", "caller") and f"{{{name}" not in path)


def asking_only(known: frozenset[str]) -> Callable[[Request], Awaitable[None]]:
    """A word that is mistyped would choose nothing, and everything be shown."""

    async def check(request: Request) -> None:
        for name in request.query_params:
            if name not in known:
                there = f"there are {', '.join(sorted(known))}" if known else "there are none"
                detail = f"is not known here; {there}"
                errors = [{"pointer": f"/query/{name[:100]}", "detail": detail}]
                raise Problem(422, "invalid", f"/query/{name[:100]}: {detail}", errors=errors)

    return check


async def caller_of(request: Request) -> Caller:
    """Who asks. Only behind a route with a scope, which has looked before."""
    caller = request.scope["leaseway.caller"]
    assert isinstance(caller, Caller)
    return caller


Asking = Annotated[Caller, Depends(caller_of)]


def tenant_for(caller: Caller, named: str | None) -> str | None:
    """Whose things a question is about. None: those of all, which only operators may ask."""
    if named is not None:
        check_name("tenant", named)
    if caller.sees_all:
        return named
    if named not in (None, caller.tenant):
        raise Problem(403, "not_allowed", "tenant: this credential sees its own tenant only; leave it out")
    return caller.tenant
