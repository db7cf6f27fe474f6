"""Submit and exchange jobs, renew leases and store checkpoints. Each method is one transaction.

    submit ─► jobs ─► exchange: settle ─► take back expired leases, promote scheduled jobs ─► claim

An exchange settles and claims in one transaction. What is due by time (expired leases, scheduled jobs, closed lanes)
belongs to no worker: it is handled in a transaction of its own before, and left to the other worker if two try at once.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from copy import copy

from pymongo import UpdateOne

from leaseway.domain.exchange import Exchange, ExchangeReply, Gate, Gated, HeldLease, ProgressReport, Renewed
from leaseway.domain.ids import Instant, JobId, Token
from leaseway.domain.job import NewJob, State, Submitted
from leaseway.domain.lane import admits_by_gate
from leaseway.stores.event_loops import IdleForecast
from leaseway.stores.mongodb.claim import (
    Contention,
    TooManyChanges,
    claim,
    close_lanes,
    list_gates,
    read_gated,
    survey,
    survey_stages,
)
from leaseway.stores.mongodb.connection import Database, Document, Session
from leaseway.stores.mongodb.database import JobDatabase, JobTransaction
from leaseway.stores.mongodb.documents import LEASED, SCHEDULED, TIMED, Doc, renewal
from leaseway.stores.mongodb.errors import WriteConflict
from leaseway.stores.mongodb.lanes import KINDS, Walk, read_together, stage, walk_stages, without_walks
from leaseway.stores.mongodb.notify import FORECAST_SECONDS
from leaseway.stores.mongodb.schema import CANCEL_REQUESTS, JOBS, LANES
from leaseway.stores.mongodb.settle import adopt, promote, read_jobs, reclaim, reopen, settle, settled_stage, write_jobs
from leaseway.stores.mongodb.submit import KnownId, submit

CLAIM_TRIES_MAX = 6
"""After so many conflicts an exchange settles without claiming: the jobs that it wants may be locked by a transaction
whose worker was killed, until the server ends it."""

Question = tuple[tuple[str, ...], tuple[Gate, ...]]
"""Queues, and the gates that are closed."""
FORECASTS_MAX = 100

DUE_STAGES = (
    stage("first_job", JOBS, {"status": {"$in": [LEASED, SCHEDULED]}, **TIMED}, {"$sort": {"at": 1}}, {"$limit": 1},
          {"$project": {"at": 1}}),
    stage("first_closed", LANES, {"closed_until": {"$exists": True}}, {"$sort": {"closed_until": 1}}, {"$limit": 1},
          {"$project": {"at": "$closed_until"}}),
)  # fmt: skip
"""When the first lease expires, the first scheduled job is due, and the first closed lane opens."""


class SomethingDue(Exception):
    """Leases, scheduled jobs or closed lanes must be handled first."""


class MongoJobs:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database
        self._contention = Contention()
        self._forecasts: dict[Question, IdleForecast] = {}

    async def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Ids are rarely known, so they are looked up only after the server has found a duplicate. The time decides
        nothing for jobs that are due at once and have no key, so an estimate is good enough for them."""
        may_estimate = all(job.key is None and job.run_at is None and not job.delay_us for job in jobs)
        may_be_known = any(job.key is not None for job in jobs) or len({job.id for job in jobs}) < len(jobs)
        try:
            answers = await self._database.write(
                lambda transaction: submit(transaction, jobs, may_be_known=may_be_known), may_estimate=may_estimate
            )
        except KnownId:
            answers = await self._database.write(lambda transaction: submit(transaction, jobs))
        self._database.local.notify()
        return answers

    # -- exchange -----------------------------------------------------------------------------------------------------

    async def exchange(self, call: Exchange) -> ExchangeReply:
        handles_due, answer = True, None
        while answer is None:
            try:
                answer = await self._exchange(call, handles_due)
            except SomethingDue:
                handles_due = False
                await self._handle_due(call)
            except TooManyChanges:
                await self._database.fold()
        self._contention.succeeded()
        if any(settlement.state is State.PENDING or settlement.children for settlement in call.settlements):
            self._database.local.notify()
        return answer

    async def _handle_due(self, call: Exchange) -> None:
        """Take back expired leases, promote scheduled jobs and open closed lanes whose time has come."""
        settled = frozenset((settlement.id, settlement.token) for settlement in call.settlements)

        async def work(transaction: JobTransaction) -> None:
            await reclaim(transaction, settled)
            await promote(transaction)
            await reopen(transaction)

        with contextlib.suppress(WriteConflict):  # another worker handles it
            await self._database.write(work, tries_max=1)

    async def _exchange(self, call: Exchange, handles_due: bool) -> ExchangeReply:
        conflicts = 0

        def conflicted() -> None:
            nonlocal conflicts
            conflicts += 1
            self._contention.conflicted()

        async def work(transaction: JobTransaction) -> ExchangeReply:
            if handles_due and is_due(transaction.found, transaction.now):
                raise SomethingDue
            return await self._settle_and_claim(transaction, call, may_claim=conflicts < CLAIM_TRIES_MAX)

        return await self._database.write(work, exchange_stages(call), on_conflict=conflicted)

    async def _settle_and_claim(self, transaction: JobTransaction, call: Exchange, *, may_claim: bool) -> ExchangeReply:
        wants, may_wait = call.wants, not call.repeat
        lost = await settle(transaction, call.settlements, may_wait=may_wait) if call.settlements else []
        gated: tuple[Gated, ...] = ()
        leases = await adopt(transaction, call) if wants and call.repeat else []
        if wants:
            pending = transaction.changes.render(transaction.now)
            walk = Walk(wants.queues, wants.tenant)
            known = await survey(transaction.database, transaction.session, transaction.found, walk, pending)
            await close_lanes(transaction, wants, known)
            if not leases and wants.count > 0 and may_claim:
                leases = await claim(transaction, call.worker, wants, known, self._contention)
            gated = await list_gates(transaction, wants, known) if wants.count > 0 else ()
        ended = {settlement.id for settlement in call.settlements} - set(lost)
        cancelled = tuple(doc["_id"] for doc in transaction.found["to_cancel"] if doc["_id"] not in ended)
        return ExchangeReply(tuple(leases), tuple(lost), cancelled, gated)

    # -- while a lease is held ----------------------------------------------------------------------------------------

    async def renew(self, leases: Sequence[HeldLease]) -> Renewed:
        async def work(transaction: JobTransaction) -> Renewed:
            where = {"_id": {"$in": [held.id for held in leases]}, "status": LEASED, **transaction.readable}
            docs = {doc["_id"]: doc for doc in await transaction.find(JOBS, where, "lease", "cancel_requested")}
            kept = [held for held in leases if is_held(docs.get(held.id), held.token, transaction.now)]
            updates = [UpdateOne({"_id": held.id}, renewal(transaction.now + held.lease_us)) for held in kept]
            if updates:
                await transaction.jobs.bulk_write(updates, session=transaction.session)
            lost = tuple(held.id for held in leases if held not in kept)
            return Renewed(lost, tuple(held.id for held in kept if docs[held.id]["cancel_requested"]))

        return await self._database.write(work)

    async def checkpoint(self, job: JobId, token: Token, cursor: str) -> bool:
        async def work(transaction: JobTransaction) -> bool:
            docs = await read_jobs(transaction, {"_id": job, "status": LEASED})
            doc = docs.get(job)
            if doc is None or not is_held(doc, token, transaction.now):
                return False
            before = {job: copy(doc)}
            doc["cursor"] = cursor
            transaction.count_bytes(doc)
            await write_jobs(transaction, before, docs)
            return True

        return await self._database.write(work)

    async def report(self, reports: Sequence[ProgressReport]) -> None:
        async def work(transaction: JobTransaction) -> None:
            docs = await read_jobs(transaction, {"_id": {"$in": [each.id for each in reports]}, "status": LEASED})
            before = {id_: copy(doc) for id_, doc in docs.items()}
            for report in reports:
                doc = docs.get(report.id)
                if doc is not None and doc["lease"]["token"] == report.token:
                    doc["progress"] = report.progress
                    transaction.count_bytes(doc)
            await write_jobs(transaction, before, docs)

        if reports:
            await self._database.write(work)

    async def wait_us(self, queues: Sequence[str], closed: Sequence[Gate] = ()) -> int | None:
        question = (tuple(queues), tuple(closed))
        forecast = self._forecasts.pop(question, None)
        if forecast is None or not self._may_trust(forecast):
            forecast = IdleForecast(self._database.local.count)
            answer = forecast.answer_us = await self._wait_us(queues, closed)
        else:
            answer = forecast.wait_us()
        self._forecasts[question] = forecast
        if len(self._forecasts) > FORECASTS_MAX:
            del self._forecasts[next(iter(self._forecasts))]
        return answer

    def _may_trust(self, forecast: IdleForecast) -> bool:
        is_announced = self._database.is_followed and not self._database.has_own_clock
        return is_announced and forecast.is_valid(self._database.local.count, FORECAST_SECONDS)

    async def _wait_us(self, queues: Sequence[str], closed: Sequence[Gate]) -> int | None:
        stages = [*DUE_STAGES, *survey_stages(queues)]

        async def query(database: Database, session: Session) -> int | None:
            now, found = await self._database.connections.look(database, stages, session)
            if await has_work(database, session, found, queues, closed):
                return 0
            first = first_due(found)
            return None if first is None else max(first - now, 0)

        while True:
            try:
                return await self._database.snapshot(query)
            except TooManyChanges:
                await self._database.fold()

    async def traces(self, leases: Sequence[HeldLease]) -> Mapping[JobId, str]:
        tokens = {held.id: held.token for held in leases}

        async def query(database: Database) -> Mapping[JobId, str]:
            where = {"_id": {"$in": list(tokens)}, "status": LEASED}
            found = database[JOBS].find(where, {"lease": 1, "trace": 1})
            return {
                doc["_id"]: doc["trace"]
                async for doc in found
                if doc.get("trace") is not None and doc["lease"]["token"] == tokens[doc["_id"]]
            }

        return await self._database.connections.read(query)


async def has_work(
    database: Database, session: Session, found: Document, queues: Sequence[str], closed: Collection[Gate]
) -> bool:
    """Whether a lane is open and has ready jobs, except behind these gates. The walk ends soon, because it passes only
    flows with these gates, and flows that changes name."""
    walk = Walk(queues)
    while True:  # ends, because each page begins behind the one before
        known = await survey(database, session, found, walk)
        await read_gated(database, session, known, 1, closed)
        lanes = [lane for lane in known.with_work(queues) if lane.closed_until is None]
        if any((gate := known.gate(lane)) is None or gate not in closed for lane in lanes):
            return True
        if not any(len(found[name]) >= walk.limit for name in found if name.startswith(KINDS)):
            return False
        walk = walk._replace(skip=walk.skip + walk.limit)
        found = without_walks(found) | await read_together(database, session, *walk_stages(walk))


def exchange_stages(call: Exchange) -> list[Doc]:
    stages = [*DUE_STAGES, stage("to_cancel", CANCEL_REQUESTS, {"owner": call.worker}, {"$sort": {"seq": 1}})]
    if call.settlements:
        stages.append(settled_stage(call.settlements))
    if call.wants is not None:
        gates = {closing.gate for closing in call.wants.closed} | admits_by_gate(call.wants.admits).keys()
        stages += survey_stages(call.wants.queues, gates, call.wants.tenant)
    return stages


def first_due(found: Document) -> Instant | None:
    return min((doc["at"] for doc in [*found["first_job"], *found["first_closed"]]), default=None)


def is_due(found: Document, now: Instant) -> bool:
    first = first_due(found)
    return first is not None and first <= now


def is_held(doc: Doc | None, token: Token, now: Instant) -> bool:
    """An expired lease does not count: the next exchange takes it back."""
    return doc is not None and doc["lease"]["token"] == token and doc["lease"]["until"] > now
