"""Limits in MongoDB: a document per limit, another one per level; `domain.limits.buckets` decides.

    read the time, definitions and levels ─► decide ─► write the levels

Both happen in one transaction, which calls of one event loop share (`group_commit`). If another process has changed a
level since it was read, the server aborts the transaction, and it is repeated.

A majority has every acknowledged write in its journal, so an election or a crash loses no grant, and a lost reply means
that permits are used. Restored copies are different: they contain older levels. The fence names the collection that
holds the levels by its UUID, which a restored collection does not have; then everything before counts as used. A new
database knows that nothing was ever used: its first fence lies in the past.

`now_us` is for tests that move time.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from bson import ObjectId
from msgspec import Struct
from pymongo import ReplaceOne

from leaseway.domain.errors import LeasewayError
from leaseway.domain.ids import Instant
from leaseway.domain.inspection import only_usable
from leaseway.domain.limits import buckets
from leaseway.domain.limits.buckets import IN_FLIGHT_GRACE_US, Acquisition, Granted, Notice, Verdict
from leaseway.domain.limits.level import CLOSED, NEW, Breaker, Bucket, InFlight, Level, Use
from leaseway.domain.limits.limit import KNOWN_US, LimitDefinition, PermitRequest, Sizing, check_limit, size_limit
from leaseway.domain.limits.validation import (
    check_acquire,
    check_ended,
    check_in_flight,
    check_notice,
    check_requests,
    check_unused,
)
from leaseway.ports.limiter import LimitDefinitions
from leaseway.stores.group_commit import GroupCommit
from leaseway.stores.mongodb.connection import (
    META,
    Connections,
    Database,
    Document,
    Transaction,
    lookup,
)
from leaseway.stores.mongodb.errors import WriteConflict, parse_document
from leaseway.stores.mongodb.schema import LEVELS, LIMITS, migrate
from leaseway.stores.python_limiter import FORGET_MAX, LimitLevels, StoredLimit, change_limit, check_all, declare_limit

FENCE_ID = "limiter_fence"

T = TypeVar("T")
Key = tuple[str, str]
"""The name of a definition, and the name of a limit."""


class LevelCall(NamedTuple):
    """One call of the limiter: the levels that it needs, and what it does with them."""

    keys: Sequence[Key]
    verb: "Callable[[MongoLevels], Any]"


class MongoLevels(LimitLevels):
    """The definitions and levels that a batch of calls has read, and what it changes."""

    def __init__(self, now: Instant, found: Document) -> None:
        # Processes that use this database go on while it is restored, so their calls get time to be reported.
        super().__init__(IN_FLIGHT_GRACE_US)
        self.now = now
        self.since = int(found["fence"][0]["since"])
        self._limits = {each["_id"]: each for each in found["limits"]}
        self._documents = {(each["_id"]["limit"], each["_id"]["name"]): each for each in found["levels"]}
        self._levels: dict[Key, Level] = {}
        self.changed: dict[Key, Sizing] = {}
        self.added = 0
        """How many levels are new, as far as the limits that are defined now are concerned."""

    def sizing(self, limit: str) -> Sizing | None:
        found = self._limits.get(limit)
        return None if found is None else parse_limit(found).sizing

    def read(self, limit: str, name: str) -> Level:
        key = limit, name
        if key not in self._levels:
            found = self._documents.get(key)
            # A level that a forgotten definition of the same name has left behind does not count.
            is_current = found is not None and found["made"] == self._limits[limit]["made"]
            self._levels[key] = parse_level(found) if found is not None and is_current else NEW
        return self._levels[key]

    def write(self, taking: Acquisition, level: Level) -> None:
        key = taking.ask.limit, taking.ask.name
        self.added += taking.level is NEW
        self._levels[key], self.changed[key] = level, taking.sizing

    def documents(self) -> list[dict[str, Any]]:
        """The documents to write."""
        return [
            render_level(key, self._levels[key], sizing, self._limits[key[0]]["made"])
            for key, sizing in self.changed.items()
        ]


class MongoLimitDefinitions:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        check_all(definitions)
        await self._change([each.name for each in definitions], lambda known: declare_all(known, definitions))

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        check_all([definition])
        (news,) = await self._change(
            [definition.name], lambda known: [change_limit(known.get(definition.name), definition, expected)]
        )
        return news.sizing.version

    async def _change(
        self, names: Sequence[str], decide: Callable[[Mapping[str, StoredLimit]], list[StoredLimit]]
    ) -> list[StoredLimit]:
        async def work(transaction: Transaction) -> list[StoredLimit]:
            found = {each["_id"]: each for each in transaction.found["limits"]}
            news = decide({name: parse_limit(each) for name, each in found.items()})
            documents = [render_limit(each, found.get(each.definition.name)) for each in news]
            writes = [ReplaceOne({"_id": each["_id"]}, each, upsert=True) for each in documents]
            if writes:
                await transaction.database[LIMITS].bulk_write(writes, session=transaction.session)
            return news

        return await self._connections.transaction(work, [lookup(LIMITS, "limits", {"_id": {"$in": list(names)}})])

    async def all(self) -> list[tuple[LimitDefinition, int]]:
        async def query(database: Database) -> list[tuple[LimitDefinition, int]]:
            found = only_usable(await database[LIMITS].find().sort("_id").to_list(), parse_usable_limit)
            return [(each.definition, each.sizing.version) for each in found]

        return await self._connections.read(query)

    async def forget(self, name: str) -> bool:
        """The levels are deleted afterwards. A new definition has another `made`, so none of them counts for it."""
        async with self._connections.calling() as database:
            found = await database[LIMITS].delete_one({"_id": name})
            await database[LEVELS].delete_many({"_id.limit": name})
            return found.deleted_count > 0


class MongoLimiter:
    """Any event loop may call it."""

    def __init__(
        self, url: str, now_us: Callable[[], Instant] | None = None, *, connections: Connections | None = None
    ) -> None:
        self.connections = connections or Connections(url, now_us)
        self._is_owner = connections is None
        self.definitions: LimitDefinitions = MongoLimitDefinitions(self.connections)
        self._calls: GroupCommit[LevelCall, Any] = GroupCommit(self._serve)

    async def open(self) -> None:
        await migrate(self.connections)
        async with self.connections.calling() as database:
            await establish_fence(self.connections, database)

    async def close(self) -> None:
        if self._is_owner:
            await self.connections.close()

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        check_acquire(asks, least, most, in_flight_us)
        return await self._call(asks, lambda levels: levels.acquire(asks, least, most, holder, in_flight_us))

    async def return_unused(self, granted: Granted, unused: int) -> None:
        check_unused(granted, unused)
        await self._call(granted.asks, lambda levels: levels.return_unused(granted, unused))

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int] = ()) -> None:
        check_ended(asks, holder, count, used)
        await self._call(asks, lambda levels: levels.end_calls(asks, holder, count, used))

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        check_in_flight(asks, holder, count, in_flight_us)
        await self._call(asks, lambda levels: levels.renew_calls(asks, holder, count, in_flight_us))

    async def observe(self, notice: Notice) -> None:
        check_notice(notice)
        await self._call([PermitRequest(notice.name, notice.limit)], lambda levels: levels.observe(notice))

    async def levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        check_requests(asks)
        stages = level_stages([(ask.limit, ask.name) for ask in asks])

        async def query(database: Database) -> tuple[Instant, list[Level]]:
            found = await self.connections.look(database, stages)
            return (await self._read(database, *found)).read_levels(asks)

        return await self.connections.repeat(lambda _: self.connections.read(query))

    async def _call(self, asks: Sequence[PermitRequest], verb: Callable[[MongoLevels], T]) -> T:
        answer: T = await self._calls.call(LevelCall([(ask.limit, ask.name) for ask in asks], verb))
        return answer

    # -- reading and writing ----------------------------------------------------------------------------------------

    async def _serve(self, calls: Sequence[LevelCall]) -> list[Any]:
        keys = sorted({key for call in calls for key in call.keys})
        answers, levels = await self.connections.transaction(
            lambda transaction: self._decide(calls, transaction), level_stages(keys)
        )
        if levels.added:
            with contextlib.suppress(LeasewayError):  # the permits are granted; the next new level tries again
                await self._forget_idle(levels.now, FORGET_MAX * levels.added)
        return answers

    async def _decide(self, calls: Sequence[LevelCall], transaction: Transaction) -> tuple[list[Any], MongoLevels]:
        levels = await self._read(transaction.database, transaction.now, transaction.found)
        answers = [answer(call, levels) for call in calls]
        writes = [ReplaceOne({"_id": each["_id"]}, each, upsert=True) for each in levels.documents()]
        if writes:
            await transaction.database[LEVELS].bulk_write(writes, session=transaction.session)
        return answers, levels

    async def _read(self, database: Database, now: Instant, found: Document) -> MongoLevels:
        if not found["fence"]:
            await establish_fence(self.connections, database)
            raise WriteConflict(f"{self.connections.address.shown}: the limiter's fence was missing; try again")
        return MongoLevels(now, found)

    async def _forget_idle(self, now: Instant, count: int) -> None:
        """Delete levels that have been idle for long, so that they do not accumulate. Their definitions may have
        changed since they were written, so it is computed again whether they are idle."""
        async with self.connections.calling() as database:
            idle = await database[LEVELS].find({"idle_at": {"$lte": now}}).sort("idle_at").limit(count).to_list()
            names = list({each["_id"]["limit"] for each in idle})
            limits = {each["_id"]: each async for each in database[LIMITS].find({"_id": {"$in": names}})}
            for document in idle:
                # Every use moves this instant, so a level that is in use again stays.
                where = {"_id": document["_id"], "idle_at": document["idle_at"]}
                limit = limits.get(document["_id"]["limit"])
                until = None if limit is None else idle_at(document, limit)
                if limit is None or (until is not None and until <= now):
                    await database[LEVELS].delete_one(where)
                else:
                    change = {"$unset": {"idle_at": ""}} if until is None else {"$set": {"idle_at": until}}
                    await database[LEVELS].update_one(where, change)


def declare_all(known: Mapping[str, StoredLimit], definitions: Sequence[LimitDefinition]) -> list[StoredLimit]:
    """The definitions that change. The last one of a name counts."""
    last = {each.name: each for each in definitions}
    news = [declare_limit(known.get(name), definition) for name, definition in last.items()]
    return [each for each in news if each is not None]


def level_stages(keys: Sequence[Key]) -> list[Document]:
    names = sorted({limit for limit, _ in keys})
    ids = [{"limit": limit, "name": name} for limit, name in keys]
    return [
        lookup(META, "fence", {"_id": FENCE_ID}),
        lookup(LIMITS, "limits", {"_id": {"$in": names}}),
        lookup(LEVELS, "levels", {"_id": {"$in": ids}}),
    ]


def answer(call: LevelCall, levels: MongoLevels) -> Any:
    """The answer of one call. A call that is refused has changed nothing, and the others go on."""
    try:
        return call.verb(levels)
    except LeasewayError as error:
        return error


async def establish_fence(connections: Connections, database: Database) -> None:
    """Since when the use of limits is known: since ever in a new database, since now in a restored one."""
    (levels,) = [each["info"]["uuid"] async for each in await database.list_collections(filter={"name": LEVELS})]
    found = await database[META].find_one({"_id": FENCE_ID})
    if found is not None and found["levels"] == levels:
        return
    now = await connections.now(database)
    is_new = found is None and await database[LEVELS].find_one({}) is None
    fence = {"since": now - KNOWN_US if is_new else now, "levels": levels}
    if found is None:
        await database[META].update_one({"_id": FENCE_ID}, {"$setOnInsert": fence}, upsert=True)
    else:
        await database[META].update_one({"_id": FENCE_ID, "levels": found["levels"]}, {"$set": fence})


# -- documents ------------------------------------------------------------------------------------------------------


class DefinitionDocument(Struct, frozen=True):
    definition: LimitDefinition
    version: int
    declared: LimitDefinition | None = None


class BucketDocument(Struct, frozen=True):
    window_us: int
    tat: Instant
    turn: Instant
    permit_ns: int


class CallsDocument(Struct, frozen=True):
    holder: str
    count: int
    until: Instant


class LevelDocument(Struct, frozen=True):
    since: Instant
    blocked_until: Instant
    percent: int
    generation: int
    slowed_at: Instant
    buckets: list[BucketDocument]
    in_flight: list[CallsDocument]
    used: list[Use] = []
    breaker: Breaker = CLOSED


def parse_limit(document: Document) -> StoredLimit:
    found = parse_document(LIMITS, document, DefinitionDocument)
    return StoredLimit(found.definition, found.declared, size_limit(found.definition, found.version))


def parse_usable_limit(document: Document) -> StoredLimit:
    check_limit(parse_document(LIMITS, document, DefinitionDocument).definition)
    return parse_limit(document)


def render_limit(limit: StoredLimit, before: Document | None) -> dict[str, Any]:
    """`made` stays the same until the limit is forgotten."""
    declared = None if limit.declared is None else msgspec.to_builtins(limit.declared)
    return {
        "_id": limit.definition.name,
        "version": limit.sizing.version,
        "definition": msgspec.to_builtins(limit.definition),
        "declared": declared,
        "made": ObjectId() if before is None else before["made"],
    }


def parse_level(document: Document) -> Level:
    found = parse_document(LEVELS, document, LevelDocument)
    return Level(
        buckets={each.window_us: Bucket(each.tat, each.turn, each.permit_ns) for each in found.buckets},
        since=found.since,
        blocked_until=found.blocked_until,
        percent=found.percent,
        generation=found.generation,
        slowed_at=found.slowed_at,
        in_flight={each.holder: InFlight(each.count, each.until) for each in found.in_flight},
        used=tuple(found.used),
        breaker=found.breaker,
    )


def render_level(key: Key, level: Level, sizing: Sizing, made: ObjectId) -> dict[str, Any]:
    limit, name = key
    document: dict[str, Any] = msgspec.to_builtins(level) | {
        "_id": {"limit": limit, "name": name},
        "made": made,
        "buckets": [{"window_us": us, **msgspec.structs.asdict(bucket)} for us, bucket in level.buckets.items()],
        "in_flight": [{"holder": who, **msgspec.structs.asdict(calls)} for who, calls in level.in_flight.items()],
    }
    until = buckets.idle_at(level, sizing)
    return document if until is None else document | {"idle_at": until}


def idle_at(document: Document, limit: Document) -> Instant | None:
    if document["made"] != limit["made"]:
        return 0
    return buckets.idle_at(parse_level(document), parse_limit(limit).sizing)
