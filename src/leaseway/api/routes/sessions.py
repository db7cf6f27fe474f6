"""/v1/session: a browser hands in a key and gets a cookie that no script can read.

The cookie is HttpOnly and SameSite=Strict, and lasts some hours. Because browsers send it by themselves, everything
that changes something also needs the session's csrf_token in a header, besides the gate's look at the page's origin.
"""

from typing import Any

from fastapi import Request
from msgspec import Struct
from starlette.responses import Response

from leaseway.api.auth.authentication import COOKIE, SECURE_COOKIE, csrf_token, session_in
from leaseway.api.errors import Problem, anonymous
from leaseway.api.request_body import body_of
from leaseway.api.responses import answer
from leaseway.api.routing import OPEN, Routes
from leaseway.api.schemas.serializers import iso
from leaseway.api.service import service_of
from leaseway.domain.api_key import SESSION_US, hash_secret
from leaseway.domain.identity import Caller
from leaseway.domain.ids import SECOND_US
from leaseway.system import random_text
from leaseway.worker.api_keys import begin_session

routes = Routes("/v1/session", "session")


class Login(Struct, frozen=True, forbid_unknown_fields=True):
    key: str


@routes.post("", OPEN, body=Login, summary="Begin a session")
async def begin(request: Request) -> Response:
    body, service = await body_of(request, Login), service_of(request)
    if service.door is None:
        raise Problem(409, "no_authentication", "this service was started without authentication: nobody has to log in")
    key = await service.door.key(body.key)
    session, id_ = await begin_session(service.world.store, key, random_text)
    reply = answer(caller_json(key.caller(), id_) | {"until": iso(session.expires_at)})
    is_secure = came_by_https(request)
    reply.set_cookie(
        SECURE_COOKIE if is_secure else COOKIE, id_, max_age=SESSION_US // SECOND_US,
        path="/", secure=is_secure, httponly=True, samesite="strict",
    )  # fmt: skip
    return reply


@routes.get("", OPEN, summary="Who am I")
async def show(request: Request) -> Response:
    caller: Caller | None = request.scope.get("leaseway.caller")
    if caller is None:
        raise anonymous()
    return answer(caller_json(caller, session_in(request.headers)))


@routes.delete("", OPEN, status_code=204, summary="End the session")
async def end(request: Request) -> Response:
    """Whether there was one or not: afterwards there is none."""
    service, id_ = service_of(request), session_in(request.headers)
    if service.door is not None and id_ is not None:
        await service.world.store.end_session(hash_secret(id_))
        service.door.forget_session(id_)
    reply = Response(status_code=204)
    for name in (COOKIE, SECURE_COOKIE):
        reply.delete_cookie(name, path="/", secure=name == SECURE_COOKIE, httponly=True, samesite="strict")
    return reply


def came_by_https(request: Request) -> bool:
    """Behind a proxy that does TLS, only the browser knows; the gate has compared the origin's host with ours."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def caller_json(caller: Caller, session: str | None) -> dict[str, Any]:
    return {
        "name": caller.name,
        "tenant": caller.tenant,
        "role": caller.role.value,
        "scopes": sorted(scope.value for scope in caller.scopes),
        "until": iso(caller.until),
        "csrf_token": None if session is None else csrf_token(session),
    }
