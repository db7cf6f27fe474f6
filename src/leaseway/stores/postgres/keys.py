"""API keys and browser sessions in PostgreSQL. Each method calls one function, so that it can be granted or not."""

from collections.abc import Mapping

from leaseway.domain.identity import FORGET_MAX, FORGET_US, SESSIONS_MAX, ApiKey, Session
from leaseway.domain.ids import Instant
from leaseway.domain.inspection import only_usable
from leaseway.domain.quota import Quota, exceeded
from leaseway.ports.key_store import KEYS_MAX
from leaseway.stores.keys import COLUMNS, key_id_taken, parse_key, parse_session, render_scopes, too_many_keys
from leaseway.stores.postgres.database import Database


class PostgresKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: ApiKey, tenant_max: int | None = None) -> None:
        values = {name: getattr(key, name) for name in COLUMNS} | {"role": key.role.value, "scopes": render_scopes(key)}
        bounds = (tenant_max, KEYS_MAX, FORGET_US, FORGET_MAX, self._database.at())
        ((kept, tenant_keys),) = await self._database.call("add_api_key", *values.values(), *bounds)
        if tenant_keys is not None and tenant_max is not None:
            raise exceeded(key.tenant, Quota.KEYS, tenant_max, tenant_keys, 1)
        if kept is None:
            raise too_many_keys()
        if kept != key.hash:
            raise key_id_taken(key.id)

    async def find(self, id: str) -> ApiKey | None:
        found = await self._database.read("find_api_key", id)
        return next(iter(only_usable(found, parse_key)), None)  # one that cannot be read opens nothing

    async def all(self, tenant: str | None = None) -> list[ApiKey]:
        return only_usable(await self._database.read("list_api_keys", tenant, KEYS_MAX), parse_key)

    async def revoke(self, id: str) -> bool:
        ((is_revoked,),) = await self._database.call("revoke_api_key", id, self._database.at())
        return bool(is_revoked)

    async def expire(self, id: str, at: Instant) -> bool:
        ((is_known,),) = await self._database.call("expire_api_key", id, at)
        return bool(is_known)

    async def touch(self, used: Mapping[str, Instant]) -> None:
        await self._database.call("touch_api_keys", list(used), list(used.values()))


class PostgresSessions:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, session: Session) -> None:
        values = (session.hash, session.key, session.created_at, session.expires_at)
        await self._database.call("add_api_session", *values, SESSIONS_MAX, FORGET_MAX, self._database.at())

    async def find(self, hash: str) -> Session | None:
        found = await self._database.read("find_api_session", hash)
        return parse_session(found[0]) if found else None

    async def end(self, hash: str) -> bool:
        ((is_known,),) = await self._database.call("end_api_session", hash)
        return bool(is_known)
