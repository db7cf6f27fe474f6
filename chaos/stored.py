"""The contents of the store after the round."""

from typing import Any

import msgspec
from msgspec import Struct

from leaseway import App
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import Job
from leaseway.domain.lane import LaneCount


class StoredJob(Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    state: str
    fence: int
    label: str = ""
    """The label that its submitter gave it; a child has none."""
    parent: str = ""
    index: int = 0
    parent_fence: int = 0
    """For a child: its parent, its number among the children, and the attempt that submitted it."""
    children: int = 0
    """For a parent: how many children it submits."""
    result_fence: int = 0
    """The attempt that the stored result names."""
    cursor: int = 0
    lane: tuple[str, str] = ("default", "default")


class Stored(Struct, frozen=True):
    jobs: dict[str, StoredJob]
    lanes: list[LaneCount]


async def read_all(app: App) -> Stored:
    store = await app.store()
    jobs: dict[str, StoredJob] = {}
    page = await store.reads.jobs(JobFilter(), limit=PAGE_MAX)
    while page:
        jobs.update((job.id, stored(job)) for job in page)
        page = await store.reads.jobs(JobFilter(), before=page[-1].id, limit=PAGE_MAX)
    return Stored(jobs, list(await store.reads.lanes()))


def stored(job: Job) -> StoredJob:
    payload: dict[str, Any] = msgspec.json.decode(job.payload)
    result: Any = msgspec.json.decode(job.result) if job.result else None
    return StoredJob(
        id=job.id,
        kind=job.kind,
        state=job.state.value,
        fence=job.fence,
        label=payload.get("label", ""),
        parent=payload.get("parent", ""),
        index=payload.get("index", 0),
        parent_fence=payload.get("fence", 0),
        children=payload.get("children", 0),
        result_fence=result["fence"] if isinstance(result, dict) else 0,
        cursor=msgspec.json.decode(job.cursor, type=int) if job.cursor else 0,
        lane=(job.queue, job.tenant),
    )
