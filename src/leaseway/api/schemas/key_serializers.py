"""Keys as JSON, for the API and for the command line's --json: never their secrets, never their hashes."""

from typing import Any

from leaseway.api.schemas.serializers import iso
from leaseway.domain.api_key import ApiKey
from leaseway.domain.ids import Instant


def key_json(key: ApiKey, now: Instant) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "role": key.role.value,
        "scopes": [scope.value for scope in key.scopes],
        "state": state_of(key, now),
        "created_at": iso(key.created_at),
        "expires_at": iso(key.expires_at),
        "revoked_at": iso(key.revoked_at),
        "used_at": iso(key.used_at),
    }


def state_of(key: ApiKey, now: Instant) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "live" if key.is_live(now) else "expired"
