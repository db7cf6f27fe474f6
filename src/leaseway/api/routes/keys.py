"""/v1/keys: make keys, look at them, rotate and revoke them. The secret is in one answer, and never again."""

import re
from typing import Annotated

from fastapi import Query, Request
from msgspec import Struct
from starlette.responses import Response

from leaseway.api.errors import Problem
from leaseway.api.pagination import cursor_of, place_of
from leaseway.api.request_body import body_of
from leaseway.api.responses import answer, page
from leaseway.api.routing import Asking, Routes
from leaseway.api.schemas.key_serializers import key_json
from leaseway.api.service import Service, service_of
from leaseway.domain.api_key import GRACE_US, ApiKey, KeyRequest
from leaseway.domain.identity import Caller, Role, Scope
from leaseway.domain.ids import SECOND_US
from leaseway.domain.validators import parse_duration_us
from leaseway.system import random_text
from leaseway.worker.api_keys import MadeKey, make, rotate

LIMIT_MAX = 200
ID = re.compile(r"[a-z0-9]{12}")
routes = Routes("/v1/keys", "keys")


class KeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Role = Role.TENANT
    tenant: str | None = None
    scopes: tuple[Scope, ...] | None = None
    name: str = ""
    expires_seconds: float | None = None

    def wanted(self) -> KeyRequest:
        life_us = (
            None if self.expires_seconds is None else parse_duration_us("expires_seconds", self.expires_seconds, 1)
        )
        return KeyRequest(role=self.role, tenant=self.tenant, scopes=self.scopes, name=self.name, life_us=life_us)


class RotationBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace_seconds: float = GRACE_US / SECOND_US
    expires_seconds: float | None = None


@routes.post("", Scope.ADMIN, status_code=201, body=KeyBody, summary="Make a key")
async def create(request: Request, caller: Asking) -> Response:
    body = await body_of(request, KeyBody)
    service = service_of(request)
    return shown_once(await make(service.world.store, body.wanted(), random_text, caller))


@routes.get("", Scope.ADMIN, summary="List keys")
async def list_keys(
    request: Request,
    caller: Asking,
    tenant: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 50,
    cursor: Annotated[str | None, Query(max_length=400)] = None,
) -> Response:
    service = service_of(request)
    whose = tenant if caller.sees_all else caller.tenant
    about = f"keys {caller.name} {whose}"
    after = "" if cursor is None else place_of(service.settings.cursor_secret, cursor, about)
    # There are never many: the store bounds them.
    found = [key for key in await service.world.store.keys(whose) if key.id > after]
    shown, now = found[:limit], await service.world.store.now()
    goes_on = cursor_of(service.settings.cursor_secret, shown[-1].id, about) if len(found) > limit else None
    return page([key_json(key, now) for key in shown], goes_on)


@routes.get("/{id}", Scope.ADMIN, summary="Show a key")
async def show(request: Request, caller: Asking, id: str) -> Response:
    return await shown(request, caller, id)


@routes.delete("/{id}", Scope.ADMIN, summary="Revoke a key")
async def revoke(request: Request, caller: Asking, id: str) -> Response:
    """Here at once, in other processes within half a minute. Revoking it again changes nothing."""
    key, service = await key_of(request, caller, id), service_of(request)
    await service.world.store.revoke_key(key.id)
    forget(service, key.id)
    return await shown(request, caller, id)


@routes.post(
    "/{id}/rotate",
    Scope.ADMIN,
    status_code=201,
    body=RotationBody,
    summary="Make a key that takes the place of another",
)
async def rotate_key(request: Request, caller: Asking, id: str) -> Response:
    body = await body_of(request, RotationBody)
    old, service = await key_of(request, caller, id), service_of(request)
    life_us = None if body.expires_seconds is None else parse_duration_us("expires_seconds", body.expires_seconds, 1)
    grace_us = parse_duration_us("grace_seconds", body.grace_seconds)
    made = await rotate(service.world.store, old, grace_us, random_text, life_us, caller)
    forget(service, old.id)
    return shown_once(made)


async def shown(request: Request, caller: Caller, id_: str) -> Response:
    key = await key_of(request, caller, id_)
    return answer(key_json(key, await service_of(request).world.store.now()))


def shown_once(made: MadeKey) -> Response:
    body = {**key_json(made.key, made.key.created_at), "key": made.text}
    return answer(body, 201, {"Location": f"/v1/keys/{made.key.id}"})


async def key_of(request: Request, caller: Caller, id_: str) -> ApiKey:
    """Somebody else's is like none."""
    key = await service_of(request).world.store.key(id_) if ID.fullmatch(id_) else None
    if key is None or not caller.sees(key.tenant):
        raise Problem(404, "not_found", f"there is no key {id_[:40]}")
    return key


def forget(service: Service, id_: str) -> None:
    if service.door is not None:
        service.door.forget_key(id_)
