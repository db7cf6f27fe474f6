"""Keys and sessions in PostgreSQL: each verb one call of a function, so that a role may have it or not."""

from collections.abc import Mapping
from typing import Protocol

from leaseway.domain.api_key import FORGET_MAX, FORGET_US, SESSIONS_MAX, ApiKey, Session
from leaseway.domain.ids import Instant
from leaseway.ports.key_store import KEYS_MAX
from leaseway.stores.key_rows import COLUMNS, key_of, scopes_text, session_of, taken, too_many
from leaseway.stores.postgres.address import Address
from leaseway.stores.postgres.connection import Connections
from leaseway.stores.postgres.statements import statements_for


class Speaking(Protocol):
    """The store of which this is a part."""

    address: Address
    connections: Connections

    def _at(self) -> Instant | None: ...


def said(store: Speaking, verb: str) -> str:
    return statements_for(store.address.quoted)[verb]


class PostgresKeys:
    async def add_key(self: Speaking, key: ApiKey) -> None:
        values = {name: getattr(key, name) for name in COLUMNS} | {"role": key.role.value, "scopes": scopes_text(key)}
        bounds = (KEYS_MAX, FORGET_US, FORGET_MAX, self._at())
        ((kept,),) = await self.connections.call(said(self, "add_api_key"), *values.values(), *bounds)
        if kept is None:
            raise too_many()
        if kept != key.hash:
            raise taken(key.id)

    async def key(self: Speaking, id: str) -> ApiKey | None:
        found = await self.connections.look(said(self, "find_api_key"), id)
        return key_of(found[0]) if found else None

    async def keys(self: Speaking, tenant: str | None = None) -> list[ApiKey]:
        return [key_of(row) for row in await self.connections.look(said(self, "list_api_keys"), tenant, KEYS_MAX)]

    async def revoke_key(self: Speaking, id: str) -> bool:
        ((is_revoked,),) = await self.connections.call(said(self, "revoke_api_key"), id, self._at())
        return bool(is_revoked)

    async def expire_key(self: Speaking, id: str, at: Instant) -> bool:
        ((is_known,),) = await self.connections.call(said(self, "expire_api_key"), id, at)
        return bool(is_known)

    async def touch_keys(self: Speaking, used: Mapping[str, Instant]) -> None:
        await self.connections.call(said(self, "touch_api_keys"), list(used), list(used.values()))

    async def add_session(self: Speaking, session: Session) -> None:
        values = (session.hash, session.key, session.created_at, session.expires_at)
        await self.connections.call(said(self, "add_api_session"), *values, SESSIONS_MAX, FORGET_MAX, self._at())

    async def session(self: Speaking, hash: str) -> Session | None:
        found = await self.connections.look(said(self, "find_api_session"), hash)
        return session_of(found[0]) if found else None

    async def end_session(self: Speaking, hash: str) -> bool:
        ((is_known,),) = await self.connections.call(said(self, "end_api_session"), hash)
        return bool(is_known)
