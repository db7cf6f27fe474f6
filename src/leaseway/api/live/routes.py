"""/v1/events, /v1/live and /v1/tickets: what changes, as it changes."""

from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from leaseway.api.live.change_log import frame_of
from leaseway.api.live.credential_recheck import Guest
from leaseway.api.live.hub import House
from leaseway.api.live.settings import Bounds
from leaseway.api.live.sse import MEDIA_TYPE, EventStream, polled
from leaseway.api.live.tickets import make_ticket
from leaseway.api.live.websocket import seq_of, socket
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.keys import TicketDocument
from leaseway.api.schemas.values import timestamp
from leaseway.domain.identity import Scope
from leaseway.system import random_text

routes = Routes("/v1", "live")

Wait = Annotated[float, Query(ge=0, le=Bounds().wait_seconds_max)]
Ids = Annotated[list[str], Query()]
FRAME: dict[str, Any] = {
    "type": "object",
    "required": ["seq", "events"],
    "properties": {
        "seq": {"type": "integer", "description": "where to go on: the `after` of the next question"},
        "events": {"type": "array", "items": {"type": "object", "required": ["kind"]}},
    },
}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": FRAME}, MEDIA_TYPE: {"schema": {"type": "string"}}}}
}


@routes.get("/events", Scope.JOBS_READ, responses=ANSWERS)
async def events(
    request: Request,
    caller: Authenticated,
    after: str | None = None,
    wait_seconds: Wait = 0.0,
    follow: Ids = [],  # noqa: B006 - as FastAPI takes it
    tenant: str | None = None,
) -> Response:
    """What differs since `after`; with `Accept: text/event-stream`, all that differs from now on."""
    service: House = request.app.state.service
    guest, is_stream = Guest(service, caller, request.headers), MEDIA_TYPE in request.headers.get("accept", "")
    told = seq_of(request.headers.get("last-event-id", "") if is_stream else "") or seq_of(after or "")
    if is_stream:
        return EventStream(service.live, guest, service.world, told, follow, tenant)
    batch = await polled(service.live, guest, told, follow, tenant, wait_seconds)
    return Response(frame_of(batch.seq, batch.bodies), media_type="application/json")


@routes.post("/tickets", Scope.JOBS_READ, status_code=201)
async def ticket(request: Request, caller: Authenticated) -> TicketDocument:
    """A ticket for one WebSocket: GET /v1/live?ticket=…, used once, within half a minute."""
    store = request.app.state.service.world.store
    made, until = await make_ticket(store, caller, random_text)
    return TicketDocument(ticket=made, expires_at=timestamp(until))


routes.websocket("/live", Scope.JOBS_READ)(socket)
