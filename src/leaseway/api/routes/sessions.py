"""/v1/session: a browser exchanges an API key for a session cookie that scripts cannot read.

The cookie is HttpOnly and SameSite=Strict, and expires after some hours. Browsers send cookies automatically, so a
request that changes something also needs the session's csrf_token in a header, in addition to the origin check of the
middleware.
"""

from fastapi import Request
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from leaseway.api.auth.authentication import COOKIE, SECURE_COOKIE, csrf_token, session_cookie
from leaseway.api.errors import Problem, missing_credential
from leaseway.api.request_body import read_body
from leaseway.api.responses import json_response
from leaseway.api.routing import OPEN, Routes
from leaseway.api.schemas.keys import IdentityDocument
from leaseway.api.schemas.values import timestamp
from leaseway.api.service import get_service
from leaseway.domain.api_key import SESSION_US, hash_secret
from leaseway.domain.identity import Caller
from leaseway.domain.ids import SECOND_US
from leaseway.system import random_text
from leaseway.worker.api_keys import begin_session

routes = Routes("/v1/session", "session")


class Login(Struct, frozen=True, forbid_unknown_fields=True):
    key: str


@routes.post("", OPEN, body=Login, returns=IdentityDocument, problems=(401, 409))
async def begin(request: Request) -> Response:
    """Begin a session with an API key. The response sets the session cookie."""
    body, service = await read_body(request, Login), get_service(request)
    if service.authenticator is None:
        raise Problem(409, "no_authentication", "this service runs without authentication; no session is needed")
    key = await service.authenticator.verify_key(body.key)
    session, id_ = await begin_session(service.world.store, key, random_text)
    document = replace(identity_document(key.caller(), id_), until=timestamp(session.expires_at))
    response, is_secure = json_response(document), is_https(request)
    response.set_cookie(
        SECURE_COOKIE if is_secure else COOKIE, id_, max_age=SESSION_US // SECOND_US,
        path="/", secure=is_secure, httponly=True, samesite="strict",
    )  # fmt: skip
    return response


@routes.get("", OPEN, problems=(401,))
async def show(request: Request) -> IdentityDocument:
    """Show the caller and its rights."""
    caller: Caller | None = request.scope.get("leaseway.caller")
    if caller is None:
        raise missing_credential()
    return identity_document(caller, session_cookie(request.headers))


@routes.delete("", OPEN, status_code=204)
async def end(request: Request) -> Response:
    """End the session, if there is one."""
    service, id_ = get_service(request), session_cookie(request.headers)
    if service.authenticator is not None and id_ is not None:
        await service.world.store.sessions.end(hash_secret(id_))
        service.authenticator.invalidate_session(id_)
    response = Response(status_code=204)
    for name in (COOKIE, SECURE_COOKIE):
        response.delete_cookie(name, path="/", secure=name == SECURE_COOKIE, httponly=True, samesite="strict")
    return response


def is_https(request: Request) -> bool:
    """Behind a proxy that terminates TLS, only the Origin header shows it; the middleware has checked its host."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def identity_document(caller: Caller, session: str | None) -> IdentityDocument:
    return IdentityDocument(
        name=caller.name,
        tenant=caller.tenant,
        role=caller.role,
        scopes=sorted(caller.scopes),
        until=timestamp(caller.until),
        csrf_token=None if session is None else csrf_token(session),
    )
