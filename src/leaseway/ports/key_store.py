"""Where the keys of the API are kept, and the sessions of browsers. One contract,
`leaseway.testing.key_store_contract`, proves every store."""

from collections.abc import Mapping
from typing import Protocol

from leaseway.domain.api_key import ApiKey, Session
from leaseway.domain.ids import Instant


class KeyStore(Protocol):
    async def add_key(self, key: ApiKey) -> None:
        """Durable when it answers. The same key again changes nothing; another one under its id is refused, and so is
        one more than KEYS_MAX. Keys that have been dead for FORGET_US are forgotten, FORGET_MAX at a time."""
        ...

    async def key(self, id: str) -> ApiKey | None:
        """Revoked and expired ones too: what they are worth is decided by `domain.keys`."""
        ...

    async def keys(self, tenant: str | None = None) -> list[ApiKey]:
        """By id. At most KEYS_MAX."""
        ...

    async def revoke_key(self, id: str) -> bool:
        """False: there is none, or it was revoked before."""
        ...

    async def expire_key(self, id: str, at: Instant) -> bool:
        """Its life ends at this instant, or before if it would have. False: there is none."""
        ...

    async def touch_keys(self, used: Mapping[str, Instant]) -> None:
        """When keys were used last, gathered. A later instant stays; an unknown id is passed over."""
        ...

    async def add_session(self, session: Session) -> None:
        """Durable when it answers; the same again changes nothing. The key has SESSIONS_MAX at most: its oldest make
        room. Expired ones of all keys are forgotten, FORGET_MAX at a time."""
        ...

    async def session(self, hash: str) -> Session | None:
        """Expired ones too. What it is worth depends on its key as well."""
        ...

    async def end_session(self, hash: str) -> bool:
        """False: there is none."""
        ...


KEYS_MAX = 10_000
