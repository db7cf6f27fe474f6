"""Deletes the blobs that no job refers to. A blob is written before its job, so a young one may belong to a job that is
not stored yet.
"""

from collections.abc import Sequence

from leaseway.domain.blob import StoredBlob, parse_path, referenced_names
from leaseway.domain.ids import SECOND_US, Instant, JobId
from leaseway.domain.inspection import JobFilter
from leaseway.ports.store import Store
from leaseway.worker.blobs import JobBlobs

LIST_MAX = 500
PAGES_MAX = 10_000
JOBS_MAX = 50
ORPHAN_US = 6 * 3_600 * SECOND_US
"""Younger blobs are never deleted: their jobs may be in a transaction that is still open."""


async def sweep(blobs: JobBlobs, store: Store, now: Instant) -> int:
    """Delete the blobs that no job refers to, and return how many. Runs in every worker with direct access to the
    store; a repetition, and one by several workers at once, changes nothing."""
    deleted, after = 0, ""
    if not blobs.is_on or store.inspection is None:
        return deleted
    for _ in range(PAGES_MAX):
        page = await blobs.store.page(after, LIST_MAX)
        old = [blob for blob in page if blob.modified_at < now - ORPHAN_US]
        # Two looks: a job may move from one table to another during the first one.
        unused = await find_unused(store, await find_unused(store, old))
        await blobs.store.delete([blob.path for blob in unused])
        deleted += len(unused)
        if len(page) < LIST_MAX:
            break
        after = page[-1].path
    return deleted


async def find_unused(store: Store, blobs: Sequence[StoredBlob]) -> list[StoredBlob]:
    parsed = [(blob, place) for blob in blobs if (place := parse_path(blob.path)) is not None]
    ids = sorted({job for _, (job, _) in parsed})
    used: set[tuple[JobId, str]] = set()
    for start in range(0, len(ids), JOBS_MAX):
        jobs = await store.reads.jobs(JobFilter(ids=tuple(ids[start : start + JOBS_MAX])), limit=JOBS_MAX)
        used |= {(job.id, name) for job in jobs for name in referenced_names(job.payload, job.cursor, job.result)}
    return [blob for blob, place in parsed if place not in used]
