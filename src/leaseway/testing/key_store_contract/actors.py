"""Keys and sessions with little effort."""

from typing import Any

from leaseway.domain.api_key import ApiKey, Session, hash_secret
from leaseway.domain.identity import Role, Scope
from leaseway.testing.clock import FakeClock


def new_key(number: int, clock: FakeClock, **given: Any) -> ApiKey:
    fields: dict[str, Any] = {
        "id": f"key{number:09}",
        "hash": hash_secret(f"secret {number}"),
        "tenant": "acme",
        "role": Role.TENANT,
        "scopes": (Scope.JOBS_READ, Scope.JOBS_WRITE),
        "name": 'shop’s "own" key',
        "created_at": clock.now_us(),
    }
    return ApiKey(**fields | given)


def new_session(number: int, clock: FakeClock, *, key: str = "key000000001", seconds: int = 3_600) -> Session:
    now = clock.now_us()
    return Session(hash=hash_secret(f"session {number}"), key=key, created_at=now, expires_at=now + seconds * 1_000_000)
