"""Submit jobs within an open transaction: ids and idempotency keys are looked up, new jobs are inserted.

The transaction is the store's, or that of a session of the caller's own client. A caller's transaction keeps its read
and write concern, and errors of the driver are passed on unchanged, because `with_transaction` repeats the caller's
work after some of them.
"""

from collections.abc import Iterable, Sequence

from pymongo import ReplaceOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError
from pymongo.read_preferences import ReadPreference

from leaseway.domain.errors import IdConflict, KeyConflict, UsageError, foreign_id_text
from leaseway.domain.ids import JobId
from leaseway.domain.job import NewJob, Submitted
from leaseway.stores.mongodb.connection import Database, Session, Transaction
from leaseway.stores.mongodb.database import JobDatabase, JobTransaction
from leaseway.stores.mongodb.documents import CODEC, Doc, lane_key, render_job
from leaseway.stores.mongodb.errors import DUPLICATE_KEY, error_code
from leaseway.stores.mongodb.lanes import BYTES
from leaseway.stores.mongodb.schema import IDEMPOTENCY_KEYS, JOBS

Keys = dict[tuple[str, str], Doc]
"""By tenant and key."""


class KnownId(Exception):
    """A job was inserted whose id is stored already. The transaction is aborted."""


async def submit(
    transaction: JobTransaction, jobs: Sequence[NewJob], *, ignore_conflicts: bool = False, may_be_known: bool = True
) -> list[Submitted]:
    """Store the jobs that are new.

    With `ignore_conflicts`, a key that was used with other arguments is not an error: the caller is a worker or a
    schedule, which cannot choose another key. Without `may_be_known`, ids are not looked up: an id that is known
    fails the transaction.
    """
    tenants = await known_tenants(transaction, jobs) if may_be_known else {}
    refuse_foreign_ids(jobs, tenants)
    keys = await known_keys(transaction, jobs)
    answers: list[Submitted] = []
    new: dict[JobId, NewJob] = {}
    for job in jobs:
        first = None if job.id in tenants or job.id in new else find_key(transaction, keys, job, ignore_conflicts)
        if first is not None:
            answers.append(Submitted(first, replayed=first != job.id))
            continue
        if job.id not in tenants and job.id not in new:
            new[job.id] = job
            use_key(transaction, keys, job)
        answers.append(Submitted(job.id))
    await insert(transaction, new.values(), keys)
    return answers


async def known_tenants(transaction: JobTransaction, jobs: Sequence[NewJob]) -> dict[JobId, str]:
    """Which of these ids are stored, and for which tenant."""
    if not jobs:
        return {}
    found = await transaction.find(JOBS, {"_id": {"$in": [job.id for job in jobs]}}, "tenant")
    return {doc["_id"]: doc["tenant"] for doc in found}


def refuse_foreign_ids(jobs: Iterable[NewJob], tenants: dict[JobId, str]) -> None:
    """A known id of the same tenant is a repeated submission."""
    seen = dict(tenants)
    for job in jobs:
        if seen.setdefault(job.id, job.tenant) != job.tenant:
            raise IdConflict(foreign_id_text(job.id))


async def known_keys(transaction: JobTransaction, jobs: Sequence[NewJob]) -> Keys:
    """The stored keys of these jobs, expired ones included."""
    ids = [{"tenant": job.tenant, "key": job.key} for job in jobs if job.key is not None]
    if not ids:
        return {}
    found = await transaction.find(IDEMPOTENCY_KEYS, {"_id": {"$in": ids}})
    return {(doc["_id"]["tenant"], doc["_id"]["key"]): doc for doc in found}


def find_key(transaction: JobTransaction, keys: Keys, job: NewJob, ignore_conflicts: bool) -> JobId | None:
    """The first job with this key. None: the job has no key, or the key is unused or expired."""
    known = None if job.key is None else keys.get((job.tenant, job.key))
    if known is None or known["expires_at"] <= transaction.now:
        return None
    if known["fingerprint"] != job.fingerprint and not ignore_conflicts:
        raise KeyConflict(
            f"key {job.key!r} of tenant {job.tenant!r} names job {known['job']}, which was submitted with another kind "
            "or other arguments; use a new key for a new job"
        )
    return JobId(known["job"])


def use_key(transaction: JobTransaction, keys: Keys, job: NewJob) -> None:
    expires_at = transaction.now + job.key_keep_us
    if job.key is None:
        return
    keys[job.tenant, job.key] = {
        "_id": {"tenant": job.tenant, "key": job.key},
        "job": job.id,
        "fingerprint": job.fingerprint,
        "expires_at": expires_at,
    }


async def insert(transaction: JobTransaction, jobs: Iterable[NewJob], keys: Keys) -> None:
    docs = [render_job(job, transaction.now) for job in jobs]
    ids = {doc["_id"] for doc in docs}
    own = [ReplaceOne({"_id": key["_id"]}, key, upsert=True) for key in keys.values() if key["job"] in ids]
    if own:
        await transaction[IDEMPOTENCY_KEYS].bulk_write(own, session=transaction.session)
    try:
        await transaction.insert(JOBS, docs)
    except BulkWriteError as error:
        if error_code(error) == DUPLICATE_KEY:
            raise KnownId from error
        raise
    for doc in docs:
        lane = lane_key(doc)
        transaction.changes.add(lane, doc["status"], 1)
        transaction.changes.add(lane, BYTES, doc["bytes"])


# -- in the caller's transaction --------------------------------------------------------------------------------------

CALLER = "a caller's transaction"
"""No store takes these changes for its own, so the commit also wakes the workers of this process."""


class MongoTransactionalSubmission:
    def __init__(self, database: JobDatabase) -> None:
        self._database = database

    async def submit(self, connection: object, jobs: Sequence[NewJob], *, notify: bool = True) -> list[Submitted]:
        """`notify` makes no difference: the change stream contains every commit."""
        session = require_transaction(connection)
        own = await self._database.connections.database()
        # Otherwise a session of another cluster would store the jobs where no worker looks for them.
        if own.client.nodes and session.client.nodes and not own.client.nodes & session.client.nodes:
            raise UsageError(
                f"the session belongs to a client of another cluster than the store, {self._database.address.shown}; "
                "connect the client to the same servers"
            )
        database = session.client.get_database(own.name, CODEC, read_preference=ReadPreference.PRIMARY)
        return await self._submit(database, session, jobs)

    async def _submit(self, database: Database, session: Session, jobs: Sequence[NewJob]) -> list[Submitted]:
        now, found = await self._database.connections.look(database, (), session)
        transaction = JobTransaction(Transaction(database, session, now, found))
        answers = await submit(transaction, jobs)
        await transaction.flush(CALLER)
        return answers

    def submit_blocking(self, connection: object, jobs: Sequence[NewJob], *, notify: bool = True) -> list[Submitted]:
        raise UsageError(
            "on MongoDB, jobs can be submitted in a transaction of an AsyncMongoClient only, with `await "
            "app.submit_in(session, …)`; with another client, submit after your commit, with a key"
        )


def require_transaction(connection: object) -> Session:
    if isinstance(connection, ClientSession):
        raise UsageError(
            "this session belongs to a MongoClient; start one with an AsyncMongoClient, or submit after your commit, "
            "with a key"
        )
    if not isinstance(connection, AsyncClientSession):
        given = type(connection)
        raise UsageError(
            f"{given.__module__}.{given.__qualname__} is not a session of PyMongo's AsyncMongoClient; write "
            "`async with client.start_session() as session:`"
        )
    if connection.has_ended or not connection.in_transaction:
        raise UsageError(
            "no transaction is open in this session, so the jobs would be stored also if your own change fails; write "
            "`async with await session.start_transaction():`. Without a transaction of your own, use submit()"
        )
    return connection
