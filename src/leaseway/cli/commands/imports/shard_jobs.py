"""What the jobs of a run know and its sink does not: which are dead letters, and whether a worker holds a lease."""

from leaseway.cli.open_store import looked_into
from leaseway.domain.errors import LeasewayError
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import Job, State
from leaseway.imports.assembly import queue_name
from leaseway.imports.domain.run_state import ShardRow, ShardState
from leaseway.imports.run.shard_jobs import failed_shard_jobs
from leaseway.ports.store import Store

OPEN = (ShardState.WAITING, ShardState.RUNNING)


async def given_up(url: str, source: str, run: str, shards: list[ShardRow]) -> dict[str, str]:
    """Why a shard has no job left to run, by shard. Empty if the store of the jobs cannot be read."""
    open_ones = {row.shard.key for row in shards if row.state in OPEN}
    if not open_ones:
        return {}
    try:
        async with looked_into(url) as store:
            return {
                key: await told(store, job)
                for key, job in (await failed_shard_jobs(store, source, run, open_ones)).items()
            }
    except LeasewayError:
        return {}  # the run may have been made elsewhere; what the sink knows is worth showing


async def is_at_work(url: str, source: str) -> bool | None:
    """Whether a worker holds a lease on a shard of this source; None if that is not known."""
    try:
        async with looked_into(url) as store:
            now = await store.reads.now()
            leased = await store.reads.jobs(JobFilter(states=(State.LEASED,), queue=queue_name(source)), limit=PAGE_MAX)
            return any(job.lease_until is not None and job.lease_until > now for job in leased)
    except LeasewayError:
        return None


async def told(store: Store, job: Job) -> str:
    errors = await store.reads.errors(job.id)
    last = errors[-1].message if errors else job.last_error_code or "unknown"
    if job.attempts >= job.attempts_max:
        return f"failed after {job.attempts:,} of {job.attempts_max:,} attempts: {last}"
    return f"failed: {last}"
