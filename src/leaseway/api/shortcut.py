"""Behind the gate, before the routes: the few that are asked thousands of times a second.

FastAPI tries one route after the other and prepares for all that an endpoint might want, which takes longer than
storing a job. A route that is declared as busy is found by its method and path; it is guarded by the same scope, and
stands among the others for the description.
"""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from leaseway.api.routes import BUSY


class Shortcut:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = BUSY.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        guard, endpoint = found
        request = Request(scope, receive, send)
        response = await endpoint(request, await guard(request))
        await response(scope, receive, send)
