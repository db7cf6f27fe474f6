"""What the jobs of a run know and its sink does not: shards that nobody works on any more.

A job that failed for good leaves its shard as it was: the sink hears nothing of it.
"""

from collections.abc import Collection

import msgspec

from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import Job, State
from leaseway.imports.run.start import QUEUE
from leaseway.ports.store import Store

PAGES_MAX = 100


async def dead(
    store: Store, source: str, run: str, keys: Collection[str], states: tuple[State, ...] = (State.FAILED,)
) -> dict[str, Job]:
    """The last job of each of these shards, where it is a dead letter."""
    which = JobFilter(states=states, queue=f"{QUEUE}:{source}")
    found: dict[str, Job] = {}
    before = None
    for _ in range(PAGES_MAX):
        jobs = await store.jobs(which, before=before, limit=PAGE_MAX)
        for job in jobs:
            key = shard_in(job, run)
            if key in keys:
                found.setdefault(str(key), job)
        if len(jobs) < PAGE_MAX:
            break
        before = jobs[-1].id
    return found


def shard_in(job: Job, run: str) -> str | None:
    try:
        payload = msgspec.json.decode(job.payload)
    except msgspec.DecodeError:
        return None
    return payload.get("key_of_shard") if isinstance(payload, dict) and payload.get("run") == run else None


async def is_idle(store: Store, source: str) -> bool:
    """Whether no job of the source waits or runs, and some have failed or were cancelled. Cheap: lanes are counted."""
    lanes = [lane for lane in await store.lanes() if lane.queue == f"{QUEUE}:{source}"]
    is_over = not any(lane.ready or lane.scheduled or lane.leased for lane in lanes)
    return is_over and any(lane.failed or lane.cancelled for lane in lanes)


async def are_given_up(store: Store, source: str, run: str, keys: Collection[str]) -> bool:
    """Every one of them: whose job is not there was started elsewhere, or is about to be."""
    return len(await dead(store, source, run, keys, (State.FAILED, State.CANCELLED))) == len(keys)
