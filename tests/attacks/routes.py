"""Every route that the service has, as it says itself: one that is added later is attacked by being there."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from fastapi import FastAPI
from starlette.routing import Route, WebSocketRoute

from leaseway.api.routing import every_route

PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
NOBODY = "00000000000000000000000000"


class Way(NamedTuple):
    method: str
    path: str

    def to(self, what: str = NOBODY) -> str:
        return PARAMETER.sub(what, self.path)


def ways_of(api: FastAPI) -> Iterator[Way]:
    for route in every_route(api.routes):
        if isinstance(route, Route):
            for method in sorted(route.methods or ()):
                yield Way(method, route.path)


def unsafe_ways_of(api: FastAPI) -> list[Way]:
    found = [way for way in ways_of(api) if way.method not in ("GET", "HEAD", "OPTIONS")]
    assert len(found) > 60, "where have they gone?"
    return found


def taking_bodies(api: FastAPI) -> list[Way]:
    """Those that say that they read one."""
    described = api.openapi()["paths"]
    return [
        Way(method.upper(), path)
        for path, methods in described.items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]


def sockets_of(api: FastAPI) -> list[str]:
    return [route.path for route in every_route(api.routes) if isinstance(route, WebSocketRoute)]
