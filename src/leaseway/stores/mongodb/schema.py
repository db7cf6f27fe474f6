"""The collections: their indexes, their validators, and the version that one document holds.

`migrate` may run in several processes at once, and again after it was interrupted: every step finds what exists. The
version is written last. A database whose version is newer than this code is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import inspect
from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import CollectionInvalid, OperationFailure, PyMongoError

from leaseway.domain.budgets.balances import HoldLine
from leaseway.domain.budgets.budget import BudgetDefinition
from leaseway.domain.budgets.holds import HoldState
from leaseway.domain.errors import SchemaVersions, StoreRefused
from leaseway.domain.history.rows import HistoryLevel
from leaseway.domain.identity import Role, Scope
from leaseway.domain.limits.level import Use
from leaseway.domain.limits.limit import LimitDefinition
from leaseway.domain.quota import Quota
from leaseway.domain.schedule import Missed
from leaseway.domain.tenant import WEIGHT_MAX
from leaseway.domain.workers import Heartbeat
from leaseway.stores.mongodb.connection import META, SCHEMA_ID, Connections, Database
from leaseway.stores.mongodb.documents import (
    COUNT,
    NUMBER,
    OR_NULL,
    SMALL,
    SUM,
    SUM_MAX,
    Types,
    between,
    object_of,
    schema_of,
    validator_of,
)
from leaseway.stores.mongodb.errors import NAMESPACE_EXISTS, UNAUTHORIZED, error_code, translate_error

VERSION = 1
VERSION_MIN = (5, 0)
PREFIX = "leaseway_"

CANCEL_REQUESTS = "leaseway_cancel_requests"
JOBS, LANES, FLOWS, LANE_CHANGES = "leaseway_jobs", "leaseway_lanes", "leaseway_flows", "leaseway_lane_changes"
TENANTS, PAUSES, SCHEDULES = "leaseway_tenants", "leaseway_pauses", "leaseway_schedules"
WORKERS, POOLS, WORK_HISTORY = "leaseway_workers", "leaseway_pools", "leaseway_work_history"
IDEMPOTENCY_KEYS, API_KEYS, SESSIONS = "leaseway_idempotency_keys", "leaseway_api_keys", "leaseway_sessions"
LIMITS, LEVELS = "leaseway_limits", "leaseway_limit_levels"
BUDGETS, BUDGET_WINDOWS = "leaseway_budgets", "leaseway_budget_windows"
HOLDS, BUDGET_JOURNAL = "leaseway_holds", "leaseway_budget_journal"


class Layout(NamedTuple):
    """What a collection needs besides its `_id`."""

    indexes: Sequence[IndexModel] = ()
    validator: Mapping[str, Any] | None = None


def index(*fields: str, where: Mapping[str, Any] | None = None, unique: bool = False) -> IndexModel:
    """An index on these fields; `-` before a name: descending. `where`: a partial index."""
    keys = [(field.removeprefix("-"), DESCENDING if field.startswith("-") else ASCENDING) for field in fields]
    options: dict[str, Any] = {"unique": True} if unique else {}
    if where is not None:
        # Two partial indexes on the same fields need names of their own.
        values = [value if isinstance(value, str) else field for field, value in where.items()]
        options |= {"partialFilterExpression": dict(where), "name": "_".join([*(field for field, _ in keys), *values])}
    return IndexModel(keys, **options)


# A claim reads the documents of many jobs, lanes and tenants at once, and a list shows all of a collection. So one
# document that leaseway cannot read would stop everything that reads it. The server refuses such documents.

OPTIONAL: Types = {
    "_id": "string", "shard_key": "string", "cursor": "string", "progress": "string", "result": "string",
    "trace": "string", "last_token": "string", "timeout_us": NUMBER, "at": NUMBER, "finished_at": NUMBER,
    "lease": object_of(owner="string", token="string", until=NUMBER),
    "last_error": object_of(code="string", at=NUMBER),
}  # fmt: skip
ERRORS: Mapping[str, Any] = {
    "bsonType": "array",
    "items": object_of({"message": "string", "traceback": "string"}, attempt=NUMBER, at=NUMBER, code="string"),
}
JOB_VALIDATOR: Mapping[str, Any] = schema_of(
    OPTIONAL,
    kind="string", queue="string", tenant="string", needs="string", payload="string", priority=NUMBER, turn=NUMBER,
    run_at=NUMBER,
    seq=NUMBER, attempts=SMALL, attempts_max=NUMBER, fence=COUNT, lease_us=NUMBER, bytes=COUNT, payload_bytes=COUNT,
    created_at=NUMBER,
    cancel_requested="bool",
) | {
    "$and": [{"$jsonSchema": {"properties": {"errors": ERRORS}}}],
    "$or": [
        {"status": "leased", "lease": {"$exists": True}, "at": {"$exists": True}},
        {"status": "ready", "lease": {"$exists": False}},
        {"status": "scheduled", "lease": {"$exists": False}, "at": {"$exists": True}},
        {"status": {"$in": ["done", "failed", "cancelled"]}, "lease": {"$exists": False},
         "finished_at": {"$exists": True}, "at": {"$exists": True}},
    ],
}  # fmt: skip
"""Refuses changes by hand that leaseway could not read: one such document would stop every claim from its lane."""

LANE_KEY: Types = {"queue": "string", "tenant": "string", "needs": "string"}
COUNTERS: Mapping[str, Any] = {"bsonType": "object", "additionalProperties": SUM}
CHARGE: Mapping[str, Any] = {"bsonType": "array", "minItems": 2, "maxItems": 2, "items": SUM}
LANE_VALIDATOR = schema_of(
    {"closed_until": NUMBER, "closed_why": ("string", "null"), "is_open": "bool"},
    **LANE_KEY, counts=COUNTERS, vtime=SUM, gate="object", is_empty="bool",
)  # fmt: skip
LANE_CHANGE_VALIDATOR = schema_of(
    {"lane_charge": CHARGE, "flow_charge": CHARGE, "vfloor": SUM, "lane_floor": SUM, "served_at": NUMBER,
     "reopened": "bool"},
    **LANE_KEY, seq=NUMBER, counts=COUNTERS,
) | {"$or": [
    {"flow_charge": {"$exists": False}},
    {field: {"$exists": True} for field in ("vfloor", "lane_floor", "served_at")},
]}  # fmt: skip
FLOW_VALIDATOR = schema_of(
    {"has_free": "bool", "has_gated": "bool"},
    queue="string", tenant="string", vtime=SUM, vfloor=SUM, lane_floor=SUM, served_at=NUMBER,
)  # fmt: skip
TENANT_VALIDATOR = schema_of(
    {"_id": "string"},
    weight=between(1, WEIGHT_MAX),
    concurrency=between(1, 1 << 30, "null"),
    starts={"bsonType": "array", "items": object_of(window_us=between(1, SUM_MAX), count=between(1, SUM_MAX))},
    quotas={
        "bsonType": "object", "properties": {quota.value: between(0, SUM_MAX, "null") for quota in Quota},
        "additionalProperties": False,
    },
)  # fmt: skip
SCHEDULE_VALIDATOR = schema_of(
    {"_id": "string", "last_fire": OR_NULL, "paused": "bool"},
    kind="string", cron="string", tz="string", missed={"enum": [each.value for each in Missed]}, seen=NUMBER,
)  # fmt: skip
WORK_HISTORY_VALIDATOR = schema_of(
    {"_id": "string"},
    level={"enum": [each.value for each in HistoryLevel]}, at=NUMBER, tenant="string", queue="string", kind="string",
    cell=object_of({
        "counts": COUNTERS,
        "times": {"bsonType": "object", "additionalProperties": {
            "bsonType": "object", "patternProperties": {"^[0-9]{1,3}$": SUM}, "additionalProperties": False,
        }},
    }),
)  # fmt: skip
API_KEY_VALIDATOR = schema_of(
    {"_id": "string"},
    hash="string", tenant="string", name="string", created_at=NUMBER, expires_at=OR_NULL, revoked_at=OR_NULL,
    used_at=OR_NULL, role={"enum": [each.value for each in Role]},
    scopes={"bsonType": "array", "items": {"enum": [each.value for each in Scope]}},
)  # fmt: skip

CANCEL_REQUEST_VALIDATOR = schema_of(_id="string", owner="string", seq=NUMBER)
PAUSE_VALIDATOR = schema_of(queue="string", tenant="string", since=NUMBER)
WORKER_VALIDATOR = schema_of(
    _id="string",
    tenant="string",
    since=NUMBER,
    seen_at=NUMBER,
    drain_requested="bool",
    beat=validator_of(inspect.type_info(Heartbeat)),
)
POOL_VALIDATOR = schema_of(_id="string", version="string", record="string", written_at=NUMBER)
IDEMPOTENCY_KEY_VALIDATOR = schema_of(
    _id=object_of(tenant="string", key="string"), job="string", fingerprint="string", expires_at=NUMBER
)
SESSION_VALIDATOR = schema_of(_id="string", key="string", created_at=NUMBER, expires_at=NUMBER)

LIMIT_VALIDATOR = schema_of(
    {"declared": validator_of(inspect.type_info(LimitDefinition | None))},
    _id="string", definition=validator_of(inspect.type_info(LimitDefinition)), version=COUNT, made="objectId",
)  # fmt: skip
LEVEL_VALIDATOR = schema_of(
    {"used": validator_of(inspect.type_info(tuple[Use, ...])), "idle_at": NUMBER},
    _id=object_of(limit="string", name="string"),
    made="objectId", since=SUM, blocked_until=SUM, percent=SUM, generation=SUM, slowed_at=SUM,
    buckets={"bsonType": "array", "items": object_of(window_us=SUM, tat=SUM, turn=SUM, permit_ns=SUM)},
    in_flight={"bsonType": "array", "items": object_of(holder="string", count=SUM, until=SUM)},
)  # fmt: skip

BUDGET_VALIDATOR = schema_of(
    {"windows_opened": COUNT},
    _id="string", definition=validator_of(inspect.type_info(BudgetDefinition)), version=COUNT,
    declared=validator_of(inspect.type_info(BudgetDefinition | None)),
)  # fmt: skip
WINDOW = object_of(name="string", start=NUMBER, end=NUMBER, label="string")
BUDGET_WINDOW_VALIDATOR = schema_of(
    {"threshold_percent": NUMBER},
    _id=WINDOW, limit_micros=SUM, spent_micros=COUNT, held_micros=COUNT, overdraft_micros=COUNT, budget="string",
    unit="string",
) | {
    "$expr": {
        "$lte": [{"$add": ["$spent_micros", "$held_micros"]}, {"$add": ["$limit_micros", "$overdraft_micros"]}]
    },
}  # fmt: skip
"""The server itself refuses a window that uses more than it has."""
LINE = validator_of(inspect.type_info(HoldLine))
LINE["properties"] |= {"window": WINDOW}
HOLD_VALIDATOR = schema_of(
    {"due": NUMBER, "start": NUMBER, "corrected_by": "string"},
    _id="string", owner="string", ttl_us=NUMBER, deadline=NUMBER, state={"enum": [each.value for each in HoldState]},
    lines={"bsonType": "array", "items": LINE, "minItems": 1},
)  # fmt: skip
JOURNAL_VALIDATOR = {"$or": [
    schema_of(_id="string", last=COUNT),
    schema_of(
        {"by": ("string", "null"), "reason": ("string", "null"), "from_micros": OR_NULL, "crossed": NUMBER},
        _id=object_of(name="string", seq=NUMBER), at=NUMBER, hold="string", window=WINDOW, kind="string",
        held_micros=SUM, spent_micros=SUM,
    ),
]}  # fmt: skip

OPEN_GATED: Mapping[str, Any] = {"is_open": True, "needs": {"$gt": ""}}
"""Lanes with requirements that are not closed and have ready jobs."""

JOB_LAYOUTS: Mapping[str, Layout] = {
    # Within a transaction, the server parses the definitions of all indexes once per index for each document that it
    # changes, so two indexes more would double the cost of a claim.
    JOBS: Layout(
        [
            # Of all statuses, `ready` and `scheduled` alone are not less than `ready`.
            index("queue", "tenant", "needs", "status", "turn", "run_at", "seq", where={"status": {"$gte": "ready"}}),
            index("status", "at", "seq", where={"at": {"$exists": True}}),
            index("tenant", "_id"),
        ],
        JOB_VALIDATOR,
    ),
    LANES: Layout(
        [
            # The lanes of a flow, in the order in which they are served; that without requirements is found by its _id.
            index("queue", "tenant", "vtime", "needs", where=OPEN_GATED),
            index("closed_until", where={"closed_until": {"$exists": True}}),
            index("is_empty", where={"is_empty": True}),
            index("gate", "queue"),
            index("tenant", "queue"),
        ],
        LANE_VALIDATOR,
    ),
    FLOWS: Layout(
        [
            index("queue", "vfloor"),
            # A claim walks the flows with work in the order of their virtual times.
            index("queue", "vtime", "tenant", where={"has_free": True}),
            index("queue", "vtime", "tenant", where={"has_gated": True}),
            index("tenant"),
        ],
        FLOW_VALIDATOR,
    ),
    LANE_CHANGES: Layout([index("seq")], LANE_CHANGE_VALIDATOR),
    CANCEL_REQUESTS: Layout([index("owner")], CANCEL_REQUEST_VALIDATOR),
    TENANTS: Layout(validator=TENANT_VALIDATOR),
    PAUSES: Layout([index("queue", "tenant")], PAUSE_VALIDATOR),
    SCHEDULES: Layout(validator=SCHEDULE_VALIDATOR),
    WORKERS: Layout(
        [index("tenant")],
        WORKER_VALIDATOR,
    ),
    POOLS: Layout(validator=POOL_VALIDATOR),
    WORK_HISTORY: Layout([index("level", "at")], WORK_HISTORY_VALIDATOR),
    IDEMPOTENCY_KEYS: Layout(
        [index("expires_at")],
        IDEMPOTENCY_KEY_VALIDATOR,
    ),
    API_KEYS: Layout([index("tenant")], API_KEY_VALIDATOR),
    SESSIONS: Layout(
        [index("key", "created_at"), index("expires_at")],
        SESSION_VALIDATOR,
    ),
}

LIMIT_LAYOUTS: Mapping[str, Layout] = {
    LIMITS: Layout(validator=LIMIT_VALIDATOR),
    LEVELS: Layout([index("idle_at", where={"idle_at": {"$exists": True}})], LEVEL_VALIDATOR),
}
BUDGET_LAYOUTS: Mapping[str, Layout] = {
    BUDGETS: Layout(validator=BUDGET_VALIDATOR),
    BUDGET_WINDOWS: Layout(
        [index("_id.name", "_id.end"), index("_id.end"), index("budget", "_id.end")], BUDGET_WINDOW_VALIDATOR
    ),
    HOLDS: Layout(
        [
            # Open holds, by deadline.
            index("due", "_id", where={"due": {"$exists": True}}),
            index("lines.name", "-deadline", "_id", where={"is_unsettled": True}),
            index("budgets", "start", "_id", where={"state": "held"}),
            index("lines.window"),
        ],
        HOLD_VALIDATOR,
    ),
    # Entries have the _id {name, seq}. The document whose _id is a name has the last number of that name.
    BUDGET_JOURNAL: Layout([index("_id.name", "window.start")], JOURNAL_VALIDATOR),
}

LAYOUTS: Mapping[str, Layout] = {META: Layout(), **JOB_LAYOUTS, **LIMIT_LAYOUTS, **BUDGET_LAYOUTS}


async def read_versions(connections: Connections) -> SchemaVersions:
    """The version of the schema and the newest known one. Refuses unsupported servers and schemas that are too new."""
    async with connections.calling() as database:
        await refuse_unsupported(connections, database)
        found = await database[META].find_one({"_id": SCHEMA_ID})
    present = 0 if found is None else int(found["version"])
    if found is not None and int(found.get("needs", present)) > VERSION:
        raise StoreRefused(
            f"{connections.address.shown}: the schema has version {present}, which needs a leaseway that knows version "
            f"{found.get('needs', present)}; this one knows versions up to {VERSION}. Install a newer leaseway"
        )
    return SchemaVersions(present, VERSION)


async def migrate(connections: Connections) -> int:
    """Bring the schema to the newest version; return the number of versions applied."""
    found = await read_versions(connections)
    if found.present >= found.newest:
        return 0
    async with connections.calling() as database:
        try:
            await create_collections(connections, database, is_new=not found.present)
            version = {"version": VERSION, "needs": VERSION}
            await database[META].update_one({"_id": SCHEMA_ID}, {"$max": version}, upsert=True)
        except PyMongoError as error:
            if error_code(error) != UNAUTHORIZED:
                raise
            raise StoreRefused(
                f"{translate_error(error, connections.address)}. The schema has version {found.present}, and {VERSION} "
                "is needed. Run as a user that may create collections and indexes: leaseway migrate"
            ) from error
    return VERSION - found.present


async def refuse_unsupported(connections: Connections, database: Database) -> None:
    """Refuse servers that are too old, and those without transactions."""
    shown = connections.address.shown
    version: Sequence[int] = (await database.client.server_info())["versionArray"]
    if tuple(version[:2]) < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        raise StoreRefused(f"{shown}: is MongoDB {'.'.join(map(str, version[:3]))}; {least} or newer is required")
    hello = await database.client.admin.command("hello")
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise StoreRefused(
            f"{shown}: is a standalone server, which has no transactions, so it cannot keep a job and its lease "
            "consistent; make it a replica set of one member: start mongod with --replSet rs0, call rs.initiate() "
            "once, and add ?replicaSet=rs0 to the URL"
        )


async def create_collections(connections: Connections, database: Database, *, is_new: bool) -> None:
    """Nothing is created if a collection is refused."""
    present = {each["name"]: each async for each in await database.list_collections()}
    if is_new:
        for name in LAYOUTS.keys() & present.keys():
            await refuse_foreign(connections, database, name, present[name])
    for name, layout in LAYOUTS.items():
        if name in present:
            await set_validator(database, name, layout, present[name])
        else:
            await create_collection(database, name, layout)
        if layout.indexes:
            await database[name].create_indexes(list(layout.indexes))


async def refuse_foreign(connections: Connections, database: Database, name: str, found: Mapping[str, Any]) -> None:
    """An empty collection is left over from an interrupted migration. One that is not may be that of another process,
    which has migrated the database meanwhile: then it has written the version before all else.
    """
    is_plain = found["type"] == "collection" and not found.get("options", {}).get("capped")
    if is_plain and await database[name].find_one({}) is None:
        return
    if is_plain and await database[META].find_one({"_id": SCHEMA_ID}) is not None:
        return
    raise StoreRefused(
        f"{connections.address.shown}: has a {found['type']} named {name} that leaseway did not create; use another "
        "database, or rename the collection"
    )


async def set_validator(database: Database, name: str, layout: Layout, found: Mapping[str, Any]) -> None:
    """Of a collection that an interrupted or an older migration has left. It needs the right `collMod`; without it,
    the collection has no validator."""
    if layout.validator is None or found.get("options", {}).get("validator") == layout.validator:
        return
    try:
        await database.command({"collMod": name, "validator": dict(layout.validator)})
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise


async def create_collection(database: Database, name: str, layout: Layout) -> None:
    options: dict[str, Any] = {} if layout.validator is None else {"validator": dict(layout.validator)}
    try:
        await database.create_collection(name, **options)
    except CollectionInvalid:
        return  # it exists
    except OperationFailure as error:
        if error.code != NAMESPACE_EXISTS:
            raise
