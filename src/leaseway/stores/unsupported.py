"""API keys for stores that hold none: those over HTTP, where the service holds them, and simulated ones."""

from collections.abc import Mapping
from typing import NoReturn

from leaseway.domain.api_key import ApiKey, Session
from leaseway.domain.errors import StoreRefused
from leaseway.domain.ids import Instant


class UnsupportedKeys:
    async def add(self, key: ApiKey) -> None:
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
