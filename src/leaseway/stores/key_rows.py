"""What the key stores share: parsing of rows, and the errors for a key that is not accepted."""

from typing import Any

import msgspec

from leaseway.domain.api_key import ApiKey, Session
from leaseway.domain.errors import BadValue, StoreRefused
from leaseway.domain.identity import Role, Scope
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
