"""/v1/keys: create, list, rotate and revoke API keys. Only the response that creates a key contains its secret."""

import re
from typing import Annotated

from fastapi import Query, Request
from msgspec import Struct

from leaseway.api.errors import Problem
from leaseway.api.pagination import CURSOR_LENGTH_MAX, PageLimit, decode_cursor, encode_cursor
from leaseway.api.request_body import read_body
from leaseway.api.responses import DocumentPage, Reply
from leaseway.api.routing import Authenticated, Routes
from leaseway.api.schemas.keys import KeyDocument, KeyMadeDocument, key_document
from leaseway.api.schemas.values import extend
from leaseway.api.service import Service, get_service
from leaseway.domain.api_key import GRACE_US, ApiKey, KeyRequest
from leaseway.domain.identity import Caller, Role, Scope
from leaseway.domain.ids import SECOND_US
from leaseway.domain.validators import parse_duration_us
from leaseway.system import random_text
from leaseway.worker.api_keys import MadeKey, make, rotate

ID = re.compile(r"[a-z0-9]{12}")
routes = Routes("/v1/keys", "keys")


class KeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Role = Role.TENANT
    tenant: str | None = None
    scopes: tuple[Scope, ...] | None = None
    name: str = ""
    expires_seconds: float | None = None


class RotationBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace_seconds: float = GRACE_US / SECOND_US
    expires_seconds: float | None = None


@routes.post("", Scope.ADMIN, status_code=201, body=KeyBody)
async def create_key(request: Request, caller: Authenticated) -> Reply[KeyMadeDocument]:
    """Create a key. This is the only response that contains the key itself."""
    body, store = await read_body(request, KeyBody), get_service(request).world.store
    life_us = parse_life(body.expires_seconds)
    wanted = KeyRequest(role=body.role, tenant=body.tenant, scopes=body.scopes, name=body.name, life_us=life_us)
    return made_key(await make(store, wanted, random_text, caller))


@routes.get("", Scope.ADMIN, problems=(400,))
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


@routes.get("/{id}", Scope.ADMIN)
async def show_key(request: Request, caller: Authenticated, id: str) -> KeyDocument:
    """Show a key."""
    key = await find_key(request, caller, id)
    return key_document(key, await get_service(request).world.store.reads.now())


@routes.delete("/{id}", Scope.ADMIN)
async def revoke_key(request: Request, caller: Authenticated, id: str) -> KeyDocument:
    """Revoke a key. It takes effect immediately in this process and within half a minute in others.

    Revoking a revoked key changes nothing."""
    key, service = await find_key(request, caller, id), get_service(request)
    await service.world.store.keys.revoke(key.id)
    invalidate(service, key.id)
    revoked = await find_key(request, caller, id)
    return key_document(revoked, await service.world.store.reads.now())


@routes.post("/{id}/rotate", Scope.ADMIN, status_code=201, body=RotationBody, problems=(409,))
async def rotate_key(request: Request, caller: Authenticated, id: str) -> Reply[KeyMadeDocument]:
    """Create a key that replaces another one. The old key stays valid for `grace_seconds`."""
    body = await read_body(request, RotationBody)
    old, service = await find_key(request, caller, id), get_service(request)
    life_us, grace_us = parse_life(body.expires_seconds), parse_duration_us("grace_seconds", body.grace_seconds)
    made = await rotate(service.world.store, old, grace_us, random_text, life_us, caller)
    invalidate(service, old.id)
    return made_key(made)


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
