"""What the jobs of a run know and its sink does not: which are dead letters, and whether anybody is at work."""

import msgspec

from leaseway.cli.verbs.stores import looked_into
from leaseway.domain.errors import LeasewayError
from leaseway.domain.imports.progress import ShardRow, ShardState
from leaseway.domain.job import Job, State
from leaseway.domain.query import PAGE_MAX, JobFilter
from leaseway.imports.run import QUEUE
from leaseway.ports.store import Store

PAGES_MAX = 100
OPEN = (ShardState.WAITING, ShardState.RUNNING)


async def given_up(url: str, source: str, run: str, shards: list[ShardRow]) -> dict[str, str]:
    """Why nobody works on it any more, by shard. Without the store of the jobs nothing can be said."""
    open_ones = {row.shard.key for row in shards if row.state in OPEN}
    if not open_ones:
        return {}
    try:
        async with looked_into(url) as store:
            return {key: await told(store, job) for key, job in (await dead(store, source, run, open_ones)).items()}
    except LeasewayError:
        return {}  # the run may have been made elsewhere; the sink's own answer is worth showing


async def is_at_work(url: str, source: str) -> bool | None:
    """Whether somebody holds a lease on a shard of this source. None: nobody can say."""
    try:
        async with looked_into(url) as store:
            now = await store.now()
            leased = await store.jobs(JobFilter(states=(State.LEASED,), queue=f"{QUEUE}:{source}"), limit=PAGE_MAX)
            return any(job.lease_until is not None and job.lease_until > now for job in leased)
    except LeasewayError:
        return None


async def dead(store: Store, source: str, run: str, keys: set[str]) -> dict[str, Job]:
    which = JobFilter(states=(State.FAILED,), queue=f"{QUEUE}:{source}")
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


async def told(store: Store, job: Job) -> str:
    errors = await store.errors(job.id)
    last = errors[-1].message if errors else job.last_error_code or "unknown"
    if job.attempts >= job.attempts_max:
        return f"given up after {job.attempts:,} of {job.attempts_max:,} attempts: {last}"
    return f"given up: {last}"
