"""/v1/keys and /v1/session: API keys, and the session that a browser gets for one.

Only the response that creates a key contains its secret. A browser exchanges a key for a session cookie that scripts
cannot read: it is HttpOnly and SameSite=Strict, and expires after some hours. Browsers send cookies automatically, so a
request that changes something also needs the session's csrf_token in a header, in addition to the origin check of the
middleware.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Query, Request
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from leaseway.api.auth.authentication import COOKIE, SECURE_COOKIE, csrf_token, session_cookie
from leaseway.api.errors import Problem, missing_credential
from leaseway.api.pagination import CURSOR_LENGTH_MAX, PageLimit, decode_cursor, encode_cursor
from leaseway.api.request_body import LOGIN_BYTES_MAX, read_body
from leaseway.api.routing import OPEN, Authenticated, DocumentPage, Reply, Routes, json_response
from leaseway.api.schemas.keys import IdentityDocument, KeyDocument, KeyMadeDocument, key_document
from leaseway.api.schemas.values import extend, timestamp
from leaseway.api.service import Service, get_service
from leaseway.domain.errors import QuotaExceeded
from leaseway.domain.identity import (
    GRACE_US,
    SESSION_US,
    ApiKey,
    Caller,
    KeyRequest,
    Role,
    Scope,
    hash_secret,
    key_tenant,
)
from leaseway.domain.ids import SECOND_US
from leaseway.domain.quota import Quota
from leaseway.domain.validators import parse_duration_us
from leaseway.system import random_text
from leaseway.worker.api_keys import MadeKey, begin_session, make, rotate

ID = re.compile(r"[a-z0-9]{12}")
key_routes = Routes("/v1/keys", "keys")


class KeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Role = Role.TENANT
    tenant: str | None = None
    scopes: tuple[Scope, ...] | None = None
    name: str = ""
    expires_seconds: float | None = None


class RotationBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace_seconds: float = GRACE_US / SECOND_US
    expires_seconds: float | None = None


@key_routes.post("", Scope.ADMIN, status_code=201, body=KeyBody)
async def create_key(request: Request, caller: Authenticated) -> Reply[KeyMadeDocument]:
    """Create a key. This is the only response that contains the key itself."""
    body, store = await read_body(request, KeyBody), get_service(request).world.store
    life_us = parse_life(body.expires_seconds)
    wanted = KeyRequest(role=body.role, tenant=body.tenant, scopes=body.scopes, name=body.name, life_us=life_us)
    most = await keys_max(request, caller, key_tenant(wanted))
    with counted_refusal(request):
        return made_key(await make(store, wanted, random_text, caller, most))


@key_routes.get("", Scope.ADMIN, problems=(400,))
async def list_keys(
    request: Request,
    caller: Authenticated,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    limit: PageLimit = 50,
    cursor: Annotated[str | None, Query(max_length=CURSOR_LENGTH_MAX)] = None,
) -> DocumentPage[KeyDocument]:
    """List keys."""
    service = get_service(request)
    visible, secret = tenant if caller.sees_all else caller.tenant, service.settings.cursor_secret
    context = f"keys {caller.name} {visible}"
    after = "" if cursor is None else decode_cursor(secret, cursor, context)
    # The store bounds the number of keys, so that all of them can be read.
    found = [key for key in await service.world.store.keys.all(visible) if key.id > after]
    shown, now = found[:limit], await service.world.store.reads.now()
    more = encode_cursor(secret, shown[-1].id, context) if len(found) > limit else None
    return DocumentPage([key_document(key, now) for key in shown], more)


@key_routes.get("/{id}", Scope.ADMIN)
async def show_key(request: Request, caller: Authenticated, id: str) -> KeyDocument:
    """Show a key."""
    key = await find_key(request, caller, id)
    return key_document(key, await get_service(request).world.store.reads.now())


@key_routes.delete("/{id}", Scope.ADMIN)
async def revoke_key(request: Request, caller: Authenticated, id: str) -> KeyDocument:
    """Revoke a key. It takes effect immediately in this process and within half a minute in others.

    Revoking a revoked key changes nothing."""
    key, service = await find_key(request, caller, id), get_service(request)
    await service.world.store.keys.revoke(key.id)
    invalidate(service, key.id)
    revoked = await find_key(request, caller, id)
    return key_document(revoked, await service.world.store.reads.now())


@key_routes.post("/{id}/rotate", Scope.ADMIN, status_code=201, body=RotationBody, problems=(409,))
async def rotate_key(request: Request, caller: Authenticated, id: str) -> Reply[KeyMadeDocument]:
    """Create a key that replaces another one. The old key stays valid for `grace_seconds`."""
    body = await read_body(request, RotationBody)
    old, service = await find_key(request, caller, id), get_service(request)
    life_us, grace_us = parse_life(body.expires_seconds), parse_duration_us("grace_seconds", body.grace_seconds)
    most = await keys_max(request, caller, old.tenant)
    with counted_refusal(request):
        made = await rotate(service.world.store, old, grace_us, random_text, life_us, caller, most)
    invalidate(service, old.id)
    return made_key(made)


async def keys_max(request: Request, caller: Caller, tenant: str) -> int | None:
    """The quota of a tenant. None: unlimited."""
    return (await get_service(request).quotas.quotas(tenant, caller)).limit(Quota.KEYS)


@contextmanager
def counted_refusal(request: Request) -> Iterator[None]:
    try:
        yield
    except QuotaExceeded as error:
        get_service(request).quotas.count_refusals([error])
        raise


def parse_life(seconds: float | None) -> int | None:
    return None if seconds is None else parse_duration_us("expires_seconds", seconds, 1)


def made_key(made: MadeKey) -> Reply[KeyMadeDocument]:
    document = extend(KeyMadeDocument, key_document(made.key, made.key.created_at), key=made.text)
    return Reply(document, headers={"Location": f"/v1/keys/{made.key.id}"})


async def find_key(request: Request, caller: Caller, id_: str) -> ApiKey:
    """A key of another tenant is reported like one that does not exist."""
    key = await get_service(request).world.store.keys.find(id_) if ID.fullmatch(id_) else None
    if key is None or not caller.sees(key.tenant):
        raise Problem(404, "not_found", f"there is no key {id_[:40]}")
    return key


def invalidate(service: Service, id_: str) -> None:
    if service.authenticator is not None:
        service.authenticator.invalidate_key(id_)


session_routes = Routes("/v1/session", "session")


class Login(Struct, frozen=True, forbid_unknown_fields=True):
    key: str


@session_routes.post("", OPEN, body=Login, returns=IdentityDocument, problems=(401, 409))
async def start_session(request: Request) -> Response:
    """Begin a session with an API key. The response sets the session cookie."""
    body, service = await read_body(request, Login, LOGIN_BYTES_MAX), get_service(request)
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


@session_routes.get("", OPEN, problems=(401,))
async def show_session(request: Request) -> IdentityDocument:
    """Show the caller and its rights."""
    caller: Caller | None = request.scope.get("leaseway.caller")
    if caller is None:
        raise missing_credential()
    return identity_document(caller, session_cookie(request.headers))


@session_routes.delete("", OPEN, status_code=204)
async def end_session(request: Request) -> Response:
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
