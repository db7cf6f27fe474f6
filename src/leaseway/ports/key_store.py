"""API keys and browser sessions. `leaseway.testing.key_store_contract` proves every store."""

from collections.abc import Mapping
from typing import Protocol

from leaseway.domain.identity import ApiKey, Session
from leaseway.domain.ids import Instant

KEYS_MAX = 10_000


class KeyStore(Protocol):
    async def add(self, key: ApiKey, tenant_max: int | None = None) -> None:
        """Store a key durably. Adding the same key again changes nothing; another key with its id is refused, and so
        is a key beyond KEYS_MAX. Keys that expired or were revoked FORGET_US ago are deleted, FORGET_MAX at a time.

        With `tenant_max`, the tenant has at most so many valid keys: `QuotaExceeded`. Of its other keys, the newest
        `tenant_max` are kept."""
        ...

    async def find(self, id: str) -> ApiKey | None:
        """Return a key, revoked and expired ones included: `domain.identity` decides whether it is valid."""
        ...

    async def all(self, tenant: str | None = None) -> list[ApiKey]:
        """Return the keys of one tenant or of all, by id, at most KEYS_MAX."""
        ...

    async def revoke(self, id: str) -> bool:
        """Revoke a key. False: it does not exist, or it was revoked before."""
        ...

    async def expire(self, id: str, at: Instant) -> bool:
        """End the key's validity at this instant, or earlier if it ends earlier. False: it does not exist."""
        ...

    async def touch(self, used: Mapping[str, Instant]) -> None:
        """Record when keys were last used. A later recorded instant stays; unknown ids are ignored."""
        ...


class SessionStore(Protocol):
    async def add(self, session: Session) -> None:
        """Store a session durably. Adding the same session again changes nothing. A key has at most SESSIONS_MAX
        sessions: the oldest are deleted. Expired sessions of all keys are deleted, FORGET_MAX at a time."""
        ...

    async def find(self, hash: str) -> Session | None:
        """Return a session, expired ones included. Its validity depends on its key as well."""
        ...

    async def end(self, hash: str) -> bool:
        """Delete a session. False: it does not exist."""
        ...
