"""Health checks of a MongoDB database, in an order that leads from cause to effect."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from leaseway.domain.budgets.balances import judge_ledger
from leaseway.domain.errors import LeasewayError, SchemaVersions
from leaseway.domain.health import (
    STUCK_US_MAX,
    Finding,
    FindingLevel,
    find_causes,
    judge_clock,
    judge_counters,
    judge_failed,
    judge_leases,
    judge_waiting,
    ok,
    problem,
    render_bytes,
    warning,
)
from leaseway.domain.ids import Instant
from leaseway.domain.lane import Flow
from leaseway.domain.tenant import check_tenant
from leaseway.stores.mongodb.budget_transaction import parse_usable_budget
from leaseway.stores.mongodb.budgets import MongoBudgetReads
from leaseway.stores.mongodb.connection import Database, Session
from leaseway.stores.mongodb.database import JobDatabase
from leaseway.stores.mongodb.definitions import MongoPauses, MongoWorkers, parse_usable_schedule
from leaseway.stores.mongodb.documents import ALL_LEASED, LEASED, READY, SCHEDULED, Doc, LaneKey, lane_key, parse_tenant
from leaseway.stores.mongodb.lanes import CHANGES_MAX, HAS_FREE, HAS_GATED, KINDS, LaneState, flow_of, read_lanes
from leaseway.stores.mongodb.limits import parse_usable_limit
from leaseway.stores.mongodb.schema import (
    BUDGET_JOURNAL,
    BUDGETS,
    FLOWS,
    JOBS,
    LANE_CHANGES,
    LANES,
    LAYOUTS,
    LIMITS,
    SCHEDULES,
    TENANTS,
    read_versions,
)

RECOUNT_MAX = 200_000
"""With more jobs, counters are checked only by a deep check: it reads every job."""


async def check_health(jobs: JobDatabase, deep: bool) -> list[Finding]:
    findings: list[Finding] = []
    try:
        async for finding in run_checks(jobs, deep):
            findings.append(finding)
    except LeasewayError as error:
        findings.append(sick("database" if findings else "server", error))
    return findings


def sick(check: str, error: LeasewayError) -> Finding:
    """Split an error message into what happened and what to do."""
    text, _, advice = str(error).partition("; ")
    return problem(check, text, (advice[:1].upper() + advice[1:]) or "Look at the server's log")


async def run_checks(jobs: JobDatabase, deep: bool) -> AsyncIterator[Finding]:
    versions = await read_versions(jobs.connections)
    hello, version = await jobs.connections.read(describe_server)
    yield ok("server", f"{jobs.address.shown}, MongoDB {version}")
    yield members(hello)
    yield schema_finding(versions, jobs.address.database)
    if versions.present < versions.newest:
        return
    yield await jobs.connections.read(sizes)
    yield await jobs.connections.read(changes)
    readable = await jobs.connections.read(lambda database: documents(database, deep))
    yield readable
    if readable.level is FindingLevel.PROBLEM:  # the other checks read these documents
        return
    now, lanes = await jobs.now(), await jobs.lanes()
    yield await counters(jobs, lanes, deep)
    yield await budgets(jobs, deep)
    yield judge_clock(await jobs.connections.read(newest_time), now)
    yield judge_leases(*await jobs.connections.read(lambda database: leases(database, now)), now)
    counted = [lane.count() for lane in lanes]
    for finding in judge_waiting(
        await jobs.connections.read(lambda database: oldest(database, now)),
        await jobs.connections.read(served),
        now,
        find_causes(counted, await MongoPauses(jobs).all(), await MongoWorkers(jobs).all()),
    ):
        yield finding
    yield judge_failed(counted)


async def describe_server(database: Database) -> tuple[Doc, str]:
    hello = await database.client.admin.command("hello")
    return hello, (await database.client.server_info())["version"]


def members(hello: Mapping[str, Any]) -> Finding:
    if hello.get("msg") == "isdbgrid":
        return ok("members", "a sharded cluster")
    count = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    text = f"replica set {hello.get('setName')!r}, members with data: {count}"
    if count < 3:
        return ok("members", text, "One member less than three: a failure of one stops every write until it is back")
    return ok("members", text)


def schema_finding(found: SchemaVersions, name: str) -> Finding:
    if found.present < found.newest:
        what = f"{name!r} has version {found.present}" if found.present else f"{name!r} has no schema of leaseway"
        return problem("schema", f"{what}; the newest is {found.newest}", "Migrate it: leaseway migrate")
    return ok("schema", f"{name!r} has version {found.present}, the newest")


async def sizes(database: Database) -> Finding:
    found = await database.command({"collStats": JOBS})
    text = f"{found['count']:,} jobs, {render_bytes(found['storageSize'] + found['totalIndexSize'])} on disk"
    return ok("size", text)


async def changes(database: Database) -> Finding:
    count = await database[LANE_CHANGES].estimated_document_count()
    text = f"{count:,} changes of lanes are not folded"
    if count > CHANGES_MAX:
        return warning("changes", text, "Workers and submissions fold them; check that one of them runs without errors")
    return ok("changes", text)


async def documents(database: Database, deep: bool) -> Finding:
    """The server refuses documents that leaseway cannot read, except from programs that bypass validation, such as
    mongorestore."""
    large: list[str] = []
    for name, layout in LAYOUTS.items():
        if layout.validator is None:
            continue
        if not deep and await database[name].estimated_document_count() > RECOUNT_MAX:
            large.append(name)
            continue
        found = await database[name].find_one({"$nor": [dict(layout.validator)]}, {"_id": 1})
        if found is not None:
            text = f"{name}: the document {found['_id']!r} has fields or values that leaseway cannot read"
            advice = "It may stop claims and lists, so restore it from a backup, or delete it. A deleted job is lost"
            return problem("documents", text, advice)
    unusable = await find_unusable(database)
    if unusable is not None:
        return warning("documents", unusable, "Set it again, or delete it. Until then it is not listed")
    if large:
        return ok("documents", f"not read: {', '.join(large)}", "To read every document: leaseway doctor --deep")
    return ok("documents", "all can be read")


USABLE: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    LIMITS: parse_usable_limit,
    BUDGETS: parse_usable_budget,
    SCHEDULES: lambda doc: parse_usable_schedule(doc, 0),
    TENANTS: lambda doc: check_tenant(parse_tenant(doc)),
}


async def find_unusable(database: Database) -> str | None:
    """Definitions of the right types whose values nothing can work with, such as an unknown time zone."""
    for name, parse in USABLE.items():
        async for doc in database[name].find():
            try:
                parse(doc)
            except LeasewayError as error:
                return f"{name}: the document {doc['_id']!r} cannot be used: {error}"
    return None


async def counters(jobs: JobDatabase, lanes: list[LaneState], deep: bool) -> Finding:
    if not deep and sum(lane.jobs for lane in lanes) > RECOUNT_MAX:
        return ok("counters", f"{len(lanes):,} lanes were not recounted", "To read every job: leaseway doctor --deep")
    counted, recounted = await jobs.snapshot(recount)
    found = judge_counters([lane.count() for lane in counted], [lane.count() for lane in recounted])
    if found.level is FindingLevel.OK and (wrong := await jobs.snapshot(wrong_flows)):
        named = ", ".join(f"{queue}/{tenant}" for queue, tenant in wrong[:3])
        text = f"{len(wrong):,} flows do not tell whether they have work: {named}"
        return problem("counters", text, "This is a bug in leaseway or a disk error. Report it with this output")
    return found


async def wrong_flows(database: Database, session: Session) -> list[Flow]:
    """Flows that no change names, and that tell something else about their lanes than these do: see `lanes`."""
    truth: dict[Flow, set[str]] = {}
    capped = {doc["_id"] async for doc in database[TENANTS].find(session=session) if parse_tenant(doc).is_capped}
    async for doc in database[LANES].find({"is_open": True}, session=session):
        kind = HAS_GATED if doc["needs"] or doc["tenant"] in capped else HAS_FREE
        truth.setdefault(flow_of(doc), set()).add(kind)
    told = {
        flow_of(doc): {kind for kind in KINDS if doc.get(kind)} async for doc in database[FLOWS].find(session=session)
    }
    named = {flow_of(doc) async for doc in database[LANE_CHANGES].find(session=session)}
    flows = truth.keys() | told.keys()
    return sorted(flow for flow in flows - named if truth.get(flow, set()) != told.get(flow, set()))


async def budgets(jobs: JobDatabase, deep: bool) -> Finding:
    count = await jobs.connections.read(lambda database: database[BUDGET_JOURNAL].estimated_document_count())
    if not deep and count > RECOUNT_MAX:
        text = f"{count:,} journal entries were not added up"
        return ok("budgets", text, "To add everything up: leaseway doctor --deep")
    return judge_ledger(await MongoBudgetReads(jobs.connections).audit())


async def recount(database: Database, session: Session) -> tuple[list[LaneState], list[LaneState]]:
    lanes = await read_lanes(database, session, {})
    truth: dict[LaneKey, LaneState] = {
        lane.key: LaneState(lane.key, closed_until=lane.closed_until, closed_why=lane.closed_why) for lane in lanes
    }
    names = {name: f"${name}" for name in ("queue", "tenant", "needs", "status")}
    pipeline: list[Doc] = [{"$group": {"_id": names, "count": {"$sum": 1}, "bytes": {"$sum": "$bytes"}}}]
    async for doc in await database[JOBS].aggregate(pipeline, session=session):
        key = lane_key(doc["_id"])
        lane = truth.setdefault(key, LaneState(key))
        lane.counts[doc["_id"]["status"]] += doc["count"]
        lane.counts["bytes"] += doc["bytes"]
    return lanes, list(truth.values())


async def newest_time(database: Database) -> Instant | None:
    found = await database[FLOWS].find().sort("served_at", -1).limit(1).to_list()
    return found[0]["served_at"] if found else None


async def leases(database: Database, now: Instant) -> tuple[int, int, Instant | None]:
    stuck = {"status": LEASED, "at": {"$lte": now - STUCK_US_MAX}}
    first = await database[JOBS].find(stuck, {"lease": 1}).sort("at", 1).limit(1).to_list()
    return (
        await database[JOBS].count_documents(ALL_LEASED),
        await database[JOBS].count_documents(stuck),
        first[0]["lease"]["until"] if first else None,
    )


async def oldest(database: Database, now: Instant) -> dict[str, Instant]:
    """A scheduled job whose time has come counts as ready: without a worker, nothing promotes it."""
    group = {"$group": {"_id": "$queue", "at": {"$min": "$run_at"}}}
    found: dict[str, Instant] = {}
    for where in ({"status": READY}, {"status": SCHEDULED, "at": {"$lte": now}}):
        async for doc in await database[JOBS].aggregate([{"$match": where}, group]):
            found[doc["_id"]] = min(found.get(doc["_id"], doc["at"]), doc["at"])
    return dict(sorted(found.items()))


async def served(database: Database) -> dict[str, Instant]:
    group = {"$group": {"_id": "$queue", "at": {"$max": "$served_at"}}}
    return {doc["_id"]: doc["at"] async for doc in await database[FLOWS].aggregate([group])}
