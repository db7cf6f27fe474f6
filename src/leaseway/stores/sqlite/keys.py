"""API keys and browser sessions in the same SQLite file as the jobs."""

from collections.abc import Mapping

from leaseway.domain.identity import FORGET_MAX, FORGET_US, SESSIONS_MAX, ApiKey, Session
from leaseway.domain.ids import Instant
from leaseway.domain.inspection import only_usable
from leaseway.domain.quota import Quota, exceeded
from leaseway.ports.key_store import KEYS_MAX
from leaseway.stores.keys import COLUMNS, key_id_taken, parse_key, parse_session, render_scopes, too_many_keys
from leaseway.stores.sqlite.database import Database, Transaction, as_json


class SqliteKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: ApiKey, tenant_max: int | None = None) -> None:
        await self._database.write(lambda transaction: add_key(transaction, key, tenant_max))

    async def find(self, id: str) -> ApiKey | None:
        found = await self._database.read("api_key_find", id=id)
        return next(iter(only_usable(found, parse_key)), None)  # one that cannot be read opens nothing

    async def all(self, tenant: str | None = None) -> list[ApiKey]:
        return only_usable(await self._database.read("api_key_list", tenant=tenant, limit=KEYS_MAX), parse_key)

    async def revoke(self, id: str) -> bool:
        return bool(
            await self._database.write(
                lambda transaction: transaction.run("api_key_revoke", id=id, now=transaction.now)
            )
        )

    async def expire(self, id: str, at: Instant) -> bool:
        return bool(await self._database.write(lambda transaction: transaction.run("api_key_expire", id=id, at=at)))

    async def touch(self, used: Mapping[str, Instant]) -> None:
        sent = as_json(dict(used))
        await self._database.write(lambda transaction: transaction.run("api_key_touch", used=sent))


class SqliteSessions:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, session: Session) -> None:
        def work(transaction: Transaction) -> None:
            transaction.run("session_forget", now=transaction.now, limit=FORGET_MAX)
            transaction.run("session_make_room", key=session.key, hash=session.hash, keep=SESSIONS_MAX - 1)
            transaction.run(
                "session_add",
                hash=session.hash,
                key=session.key,
                created_at=session.created_at,
                expires_at=session.expires_at,
            )

        await self._database.write(work)

    async def find(self, hash: str) -> Session | None:
        found = await self._database.read("session_find", hash=hash)
        return parse_session(found[0]) if found else None

    async def end(self, hash: str) -> bool:
        return bool(await self._database.write(lambda transaction: transaction.run("session_end", hash=hash)))


def add_key(transaction: Transaction, key: ApiKey, tenant_max: int | None) -> None:
    found = transaction.run("api_key_find", id=key.id)
    if found:
        if parse_key(found[0]).hash != key.hash:
            raise key_id_taken(key.id)
        return
    transaction.run("api_key_forget", before=transaction.now - FORGET_US, limit=FORGET_MAX)
    if tenant_max is not None:
        make_room(transaction, key.tenant, tenant_max)
    ((count,),) = transaction.run("api_key_count")
    if count >= KEYS_MAX:
        raise too_many_keys()
    values = {name: getattr(key, name) for name in COLUMNS}
    transaction.run("api_key_add", **values | {"role": key.role.value, "scopes": render_scopes(key)})


def make_room(transaction: Transaction, tenant: str, most: int) -> None:
    ((live,),) = transaction.run("api_key_count_live", tenant=tenant, now=transaction.now)
    if live >= most:
        raise exceeded(tenant, Quota.KEYS, most, live, 1)
    transaction.run("api_key_trim", tenant=tenant, now=transaction.now, most=most)
