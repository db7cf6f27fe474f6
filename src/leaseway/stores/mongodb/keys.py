"""API keys and browser sessions in the same MongoDB database as the jobs. Only hashes of their secrets are stored."""

from collections.abc import Mapping
from typing import Any

from pymongo import UpdateOne

from leaseway.domain.identity import FORGET_MAX, FORGET_US, SESSIONS_MAX, ApiKey, Role, Scope, Session
from leaseway.domain.ids import Instant
from leaseway.domain.quota import Quota, exceeded
from leaseway.ports.key_store import KEYS_MAX
from leaseway.stores.keys import COLUMNS, key_id_taken, too_many_keys
from leaseway.stores.mongodb.connection import Database
from leaseway.stores.mongodb.database import JobDatabase, JobTransaction
from leaseway.stores.mongodb.documents import Doc
from leaseway.stores.mongodb.schema import API_KEYS, SESSIONS


class MongoKeys:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def add(self, key: ApiKey, tenant_max: int | None = None) -> None:
        await self._database.write(lambda transaction: add_key(transaction, key, tenant_max))

    async def find(self, id: str) -> ApiKey | None:
        async def query(database: Database) -> ApiKey | None:
            found = await database[API_KEYS].find_one({"_id": id})
            return None if found is None else parse_key(found)

        return await self._database.connections.read(query)

    async def all(self, tenant: str | None = None) -> list[ApiKey]:
        where = {} if tenant is None else {"tenant": tenant}

        async def query(database: Database) -> list[ApiKey]:
            return [parse_key(doc) async for doc in database[API_KEYS].find(where).sort("_id", 1).limit(KEYS_MAX)]

        return await self._database.connections.read(query)

    async def revoke(self, id: str) -> bool:
        async def work(transaction: JobTransaction) -> bool:
            where, update = {"_id": id, "revoked_at": None}, {"$set": {"revoked_at": transaction.now}}
            answer = await transaction[API_KEYS].update_one(where, update, session=transaction.session)
            return bool(answer.matched_count)

        return await self._database.write(work)

    async def expire(self, id: str, at: Instant) -> bool:
        async def work(transaction: JobTransaction) -> bool:
            # $min ignores null in an expression, and a missing end is stored as null.
            update = [{"$set": {"expires_at": {"$min": ["$expires_at", at]}}}]
            answer = await transaction[API_KEYS].update_one({"_id": id}, update, session=transaction.session)
            return bool(answer.matched_count)

        return await self._database.write(work)

    async def touch(self, used: Mapping[str, Instant]) -> None:
        updates = [
            UpdateOne({"_id": id_}, [{"$set": {"used_at": {"$max": ["$used_at", at]}}}]) for id_, at in used.items()
        ]

        async def work(transaction: JobTransaction) -> None:
            await transaction[API_KEYS].bulk_write(updates, ordered=False, session=transaction.session)

        if updates:
            await self._database.write(work)


class MongoSessions:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def add(self, session: Session) -> None:
        await self._database.write(lambda transaction: add_session(transaction, session))

    async def find(self, hash: str) -> Session | None:
        async def query(database: Database) -> Session | None:
            found = await database[SESSIONS].find_one({"_id": hash})
            return None if found is None else parse_session(found)

        return await self._database.connections.read(query)

    async def end(self, hash: str) -> bool:
        async def work(transaction: JobTransaction) -> bool:
            return bool(
                (await transaction[SESSIONS].delete_one({"_id": hash}, session=transaction.session)).deleted_count
            )

        return await self._database.write(work)


async def add_key(transaction: JobTransaction, key: ApiKey, tenant_max: int | None) -> None:
    present = await transaction.find(API_KEYS, {"_id": key.id})
    if present:
        if present[0]["hash"] != key.hash:
            raise key_id_taken(key.id)
        return
    before = transaction.now - FORGET_US
    for field in ("expires_at", "revoked_at"):
        # A comparison with a number leaves out null.
        old = await transaction.find(API_KEYS, {field: {"$lte": before}}, "_id", limit=FORGET_MAX)
        await delete(transaction, API_KEYS, old)
    if tenant_max is not None:
        await make_room(transaction, key.tenant, tenant_max)
    if await transaction[API_KEYS].count_documents({}, session=transaction.session) >= KEYS_MAX:
        raise too_many_keys()
    await transaction.insert(API_KEYS, [render_key(key)])


async def make_room(transaction: JobTransaction, tenant: str, most: int) -> None:
    own = await transaction.find(API_KEYS, {"tenant": tenant}, sort=[("created_at", 1), ("_id", 1)])
    live = [doc for doc in own if parse_key(doc).is_live(transaction.now)]
    if len(live) >= most:
        raise exceeded(tenant, Quota.KEYS, most, len(live), 1)
    dead = [doc for doc in own if not parse_key(doc).is_live(transaction.now)]
    await delete(transaction, API_KEYS, dead[: max(len(dead) - most, 0)])


async def add_session(transaction: JobTransaction, session: Session) -> None:
    old = await transaction.find(SESSIONS, {"expires_at": {"$lte": transaction.now}}, "_id", limit=FORGET_MAX)
    newest_first = [("created_at", -1), ("_id", -1)]
    others = {"key": session.key, "_id": {"$ne": session.hash}}
    of_key = await transaction.find(SESSIONS, others, "_id", sort=newest_first, skip=SESSIONS_MAX - 1)
    await delete(transaction, SESSIONS, [*old, *of_key])
    if any(doc["_id"] == session.hash for doc in old) or session.expires_at <= transaction.now:
        return
    new = {"key": session.key, "created_at": session.created_at, "expires_at": session.expires_at}
    await transaction[SESSIONS].update_one(
        {"_id": session.hash}, {"$setOnInsert": new}, upsert=True, session=transaction.session
    )


async def delete(transaction: JobTransaction, name: str, docs: list[Doc]) -> None:
    if docs:
        await transaction[name].delete_many({"_id": {"$in": [doc["_id"] for doc in docs]}}, session=transaction.session)


def render_key(key: ApiKey) -> Doc:
    values = {name: getattr(key, name) for name in COLUMNS if name != "id"}
    return {"_id": key.id} | values | {"role": key.role.value, "scopes": [scope.value for scope in key.scopes]}


def parse_key(doc: Mapping[str, Any]) -> ApiKey:
    values = {name: doc[name] for name in COLUMNS if name != "id"}
    scopes = tuple(Scope(scope) for scope in doc["scopes"])
    return ApiKey(id=doc["_id"], **values | {"role": Role(doc["role"]), "scopes": scopes})


def parse_session(doc: Mapping[str, Any]) -> Session:
    return Session(hash=doc["_id"], key=doc["key"], created_at=doc["created_at"], expires_at=doc["expires_at"])
