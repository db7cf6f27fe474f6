"""For stores that keep no keys: those over HTTP, where the service keeps them, and those of a simulation."""

from collections.abc import Mapping
from typing import NoReturn

from leaseway.domain.api_key import ApiKey, Session
from leaseway.domain.errors import StoreRefused
from leaseway.domain.ids import Instant


class Keyless:
    async def add_key(self, key: ApiKey) -> None:
        refuse()

    async def key(self, id: str) -> ApiKey | None:
        refuse()

    async def keys(self, tenant: str | None = None) -> list[ApiKey]:
        refuse()

    async def revoke_key(self, id: str) -> bool:
        refuse()

    async def expire_key(self, id: str, at: Instant) -> bool:
        refuse()

    async def touch_keys(self, used: Mapping[str, Instant]) -> None:
        refuse()

    async def add_session(self, session: Session) -> None:
        refuse()

    async def session(self, hash: str) -> Session | None:
        refuse()

    async def end_session(self, hash: str) -> bool:
        refuse()


def refuse() -> NoReturn:
    raise StoreRefused("this store keeps no keys; name the store of the service itself, or use its routes /v1/keys")
