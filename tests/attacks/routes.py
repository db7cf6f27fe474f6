"""Every route of the service, taken from its own OpenAPI document, so that new routes are attacked without further
work.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute

from leaseway.api.routing import every_route

PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
NOBODY = "00000000000000000000000000"


class AttackedRoute(NamedTuple):
    method: str
    path: str

    def to(self, what: str = NOBODY) -> str:
        return PARAMETER.sub(what, self.path)


def served_routes(api: FastAPI) -> Iterator[AttackedRoute]:
    for route in every_route(api.routes):
        if isinstance(route, Route):
            for method in sorted(route.methods or ()):
                yield AttackedRoute(method, route.path)


def unsafe_routes(api: FastAPI) -> list[AttackedRoute]:
    found = [way for way in served_routes(api) if way.method not in ("GET", "HEAD", "OPTIONS")]
    assert len(found) > 60, "where have they gone?"
    return found


def routes_with_bodies(api: FastAPI) -> list[AttackedRoute]:
    """The routes that read a body."""
    described = api.openapi()["paths"]
    return [
        AttackedRoute(method.upper(), path)
        for path, methods in described.items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]


def websocket_paths(api: FastAPI) -> list[str]:
    return [route.path for route in every_route(api.routes) if isinstance(route, WebSocketRoute)]
