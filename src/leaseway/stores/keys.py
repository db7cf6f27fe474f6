"""API keys and sessions: parsing of rows and errors for stores that hold keys, and refusals for stores that hold none.

Stores over HTTP hold none, because the service holds them; neither do simulated stores.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from leaseway.domain.errors import BadValue, StoreRefused
from leaseway.domain.identity import ApiKey, Role, Scope, Session
from leaseway.domain.ids import Instant
from leaseway.ports.key_store import KEYS_MAX

COLUMNS = ("id", "hash", "tenant", "role", "scopes", "name", "created_at", "expires_at", "revoked_at", "used_at")
SCOPES = msgspec.json.Decoder(tuple[Scope, ...])


def parse_key(row: Any) -> ApiKey:
    values = dict(zip(COLUMNS, row, strict=True))
    return ApiKey(**values | {"role": Role(values["role"]), "scopes": SCOPES.decode(values["scopes"])})


def render_scopes(key: ApiKey) -> str:
    return msgspec.json.encode(key.scopes).decode()


def parse_session(row: Any) -> Session:
    hash_, key, created_at, expires_at = row
    return Session(hash=hash_, key=key, created_at=created_at, expires_at=expires_at)


def key_id_taken(id_: str) -> BadValue:
    return BadValue("id", f"another key has the id {id_}; create a new key")


def too_many_keys() -> StoreRefused:
    return StoreRefused(f"there are {KEYS_MAX:,} keys, the maximum; revoked and expired keys are deleted after 90 days")


class UnsupportedKeys:
    async def add(self, key: ApiKey, tenant_max: int | None = None) -> None:
        refuse()

    async def find(self, id: str) -> ApiKey | None:
        refuse()

    async def all(self, tenant: str | None = None) -> list[ApiKey]:
        refuse()

    async def revoke(self, id: str) -> bool:
        refuse()

    async def expire(self, id: str, at: Instant) -> bool:
        refuse()

    async def touch(self, used: Mapping[str, Instant]) -> None:
        refuse()


class UnsupportedSessions:
    async def add(self, session: Session) -> None:
        refuse()

    async def find(self, hash: str) -> Session | None:
        refuse()

    async def end(self, hash: str) -> bool:
        refuse()


def refuse() -> NoReturn:
    raise StoreRefused("this store has no API keys; use the address of the service's database, or its routes /v1/keys")
