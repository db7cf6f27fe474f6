"""/v1/events, /v1/live and /v1/tickets: changes as they happen."""

from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from leaseway.api.live.change_log import render_frame
from leaseway.api.live.credentials import Credential, make_ticket
from leaseway.api.live.delivery import SSE_MEDIA_TYPE, EventStream, parse_seq, poll_events, serve_websocket
from leaseway.api.live.hub import LiveService
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.keys import TicketDocument
from leaseway.api.schemas.values import timestamp
from leaseway.api.settings import LiveSettings
from leaseway.domain.identity import Scope
from leaseway.system import random_text

routes = Routes("/v1", "live")

Wait = Annotated[float, Query(ge=0, le=LiveSettings().wait_seconds_max)]
Ids = Annotated[list[str], Query()]
FRAME: dict[str, Any] = {
    "type": "object",
    "required": ["seq", "events"],
    "properties": {
        "seq": {"type": "integer", "description": "The sequence number: pass it as `after` in the next request."},
        "events": {"type": "array", "items": {"type": "object", "required": ["kind"]}},
    },
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": FRAME}, SSE_MEDIA_TYPE: {"schema": {"type": "string"}}}}
}


@routes.get("/events", Scope.JOBS_READ, responses=RESPONSES)
async def events(
    request: Request,
    caller: Authenticated,
    after: str | None = None,
    wait_seconds: Wait = 0.0,
    follow: Ids = [],  # noqa: B006 - FastAPI requires it so
    tenant: str | None = None,
) -> Response:
    """Show the changes since `after`. With `Accept: text/event-stream`, stream all further changes."""
    service: LiveService = request.app.state.service
    credential = Credential(service, caller, request.headers)
    is_stream = SSE_MEDIA_TYPE in request.headers.get("accept", "")
    received = parse_seq(request.headers.get("last-event-id", "") if is_stream else "") or parse_seq(after or "")
    if is_stream:
        return EventStream(service.live, credential, service.world, received, follow, tenant)
    batch = await poll_events(service.live, credential, received, follow, tenant, wait_seconds)
    return Response(render_frame(batch.seq, batch.bodies), media_type="application/json")


@routes.post("/tickets", Scope.JOBS_READ, status_code=201)
async def create_ticket(request: Request, caller: Authenticated) -> TicketDocument:
    """Create a ticket for one WebSocket: GET /v1/live?ticket=…, valid once, within half a minute."""
    store = request.app.state.service.world.store
    ticket, until = await make_ticket(store, caller, random_text)
    return TicketDocument(ticket=ticket, expires_at=timestamp(until))


routes.websocket("/live", Scope.JOBS_READ)(serve_websocket)
