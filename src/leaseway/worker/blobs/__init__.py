"""plain text ─► encryption ─► [blobs] ─► store, and back

Texts that are too large for a row go to the blob store before the job is stored, so that a stored job never refers to a
blob that does not exist. Blobs that no job refers to are left behind when jobs are pruned or discarded, when a
submitter dies between blob and job, and when a cursor is replaced. [`sweep`](sweep.py) deletes them.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from leaseway.domain.blob import (
    BLOB_BYTES_MAX,
    BLOB_FIELDS,
    blob_path,
    check_content,
    is_reference,
    read_reference,
    write_reference,
)
from leaseway.domain.errors import BadValue, BlobDamaged, BlobMissing, LeasewayError, TransientError, UnknownBlobStore
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Failure, Job, Lease, NewJob
from leaseway.domain.outcome import Done, Failed, Outcome, Snoozed
from leaseway.domain.validators import PAYLOAD_BYTES_MAX
from leaseway.ports.blob_store import BlobStore
from leaseway.ports.clock import Ids

if TYPE_CHECKING:
    from leaseway.worker.environment import Environment

PUTS_MAX = 8
"""Blobs of one submission that are written at once."""
WAIT_US = 30 * SECOND_US
"""How long a job waits whose blobs this worker cannot read now."""


class JobBlobs:
    """The texts of jobs in a blob store. Without one, long texts are refused where they are encoded."""

    def __init__(self, store: BlobStore | None = None, ids: Ids | None = None) -> None:
        self._store = store
        self._ids = ids
        self.is_on = store is not None
        self.bytes_max = PAYLOAD_BYTES_MAX if store is None else BLOB_BYTES_MAX
        """The most bytes of a text, before and after encryption."""

    @property
    def store(self) -> BlobStore:
        if self._store is None:
            raise UnknownBlobStore(
                "the text is in a blob store, and this process has none; give it to the app (blobs=…) or in "
                "LEASEWAY_BLOBS"
            )
        return self._store

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

    # -- what goes to the store -------------------------------------------------------------------------------------

    async def keep_jobs(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The jobs as they are stored. Their long texts are in the blob store when this returns."""
        if not any(is_kept(job.payload) or is_kept(job.cursor) for job in jobs):
            return jobs
        slots = asyncio.Semaphore(PUTS_MAX)

        async def keep(job: NewJob) -> NewJob:
            async with slots:
                payload = await self.keep(job.id, "payload", job.payload)
                cursor = None if job.cursor is None else await self.keep(job.id, "cursor", job.cursor)
            return replace(job, payload=payload, cursor=cursor)

        return await asyncio.gather(*map(keep, jobs))

    async def keep(self, job: JobId, field: str, text: str) -> str:
        """The text, or a reference to it if it is too large for a row."""
        if not is_kept(text):
            return text
        if self._ids is None:
            raise BadValue(field, f"is {len(text):,} bytes, and this process has no blob store")
        data, name = text.encode(), f"{field}-{self._ids.token()}"
        await self.store.put(blob_path(job, name), data)
        return write_reference(name, data)

    async def keep_outcome(self, lease: Lease, outcome: Outcome) -> Outcome:
        """The outcome as it is stored: a long result and the children's long texts are in the blob store."""
        if type(outcome) is not Done:
            return outcome
        try:
            children = tuple(await self.keep_jobs(outcome.children))
            return Done(await self.keep(lease.id, "result", outcome.result), children)
        except BadValue as error:
            return Failed(Failure("bad_result", str(error)), may_retry=False)
        except LeasewayError as error:
            return Failed(Failure("blob_unavailable", str(error)))

    # -- what comes from the store ----------------------------------------------------------------------------------

    async def open_lease(self, lease: Lease) -> Lease | Outcome:
        """The lease with its texts, or the outcome of a job whose texts cannot be read here.

        Without a blob store, and if it does not answer, no attempt is used. A blob that is missing or damaged fails the
        job for good: it becomes a dead letter.
        """
        if not is_reference(lease.payload) and not is_reference(lease.cursor):
            return lease
        try:
            payload = await self.load(lease.id, "payload", lease.payload)
            return replace(lease, payload=payload, cursor=await self.load(lease.id, "cursor", lease.cursor))
        except (BlobMissing, BlobDamaged) as error:
            return Failed(Failure("blob_missing", str(error)), may_retry=False)
        except (UnknownBlobStore, TransientError) as error:
            return Snoozed(None, WAIT_US, Failure("blob_unavailable", str(error)))

    async def open_job(self, job: Job) -> Job:
        """The record with its texts. A reference stays where this process has no blob store."""
        if self._store is None or not any(is_reference(getattr(job, field)) for field in BLOB_FIELDS):
            return job
        texts: Mapping[str, Any] = {field: await self.load(job.id, field, getattr(job, field)) for field in BLOB_FIELDS}
        return replace(job, **texts)

    async def load(self, job: JobId, field: str, text: str | None) -> str | None:
        """The text that is meant: the given one, or the one that it refers to."""
        if text is None or not is_reference(text):
            return text
        reference, data = read_reference(text, field), bytearray()
        async for part in self.store.read(blob_path(job, reference.name)):
            data += part
            if len(data) > reference.bytes:
                break
        return check_content(reference, bytes(data))

    async def parts(self, job: JobId, field: str, text: str) -> tuple[int, AsyncIterator[bytes]]:
        """The size of a blob and its content, for passing it on. The first part is read at once, so that a blob that is
        missing is an error of this call."""
        reference = read_reference(text, field)
        rest = self.store.read(blob_path(job, reference.name))
        first = await anext(rest, b"")

        async def chain() -> AsyncIterator[bytes]:
            yield first
            async for part in rest:
                yield part

        return reference.bytes, chain()


NO_BLOBS = JobBlobs()


def is_kept(text: str | None) -> bool:
    """Whether a text goes to the blob store, because it is too large for a row."""
    return text is not None and len(text) > PAYLOAD_BYTES_MAX // 4 and len(text.encode()) > PAYLOAD_BYTES_MAX


# -- an attempt -----------------------------------------------------------------------------------------------------


async def open_texts(environment: "Environment", lease: Lease) -> Lease | Outcome:
    """The lease with its texts in plain text, or the outcome of a job that cannot be read here."""
    found = await environment.blobs.open_lease(lease)
    if not isinstance(found, Lease):
        return found
    opened = environment.encryption.open_lease(found)
    if not isinstance(opened, Lease):
        environment.events.emit("undecryptable", job=lease.id, kind=lease.kind, tenant=lease.tenant)
    return opened


async def keep_texts(environment: "Environment", lease: Lease, outcome: Outcome) -> Outcome:
    """The outcome as it is stored."""
    return await environment.blobs.keep_outcome(lease, environment.encryption.seal_outcome(lease, outcome))
