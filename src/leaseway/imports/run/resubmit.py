"""A shard that is open has a job that will be done, whatever became of the one before it.

A job store remembers keys for a week and not for ever, jobs may be discarded, and a store may be emptied or another one
named. What is open is known by the sink alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from leaseway.domain.errors import UsageError
from leaseway.domain.ids import JobId
from leaseway.domain.inspection import PAGE_MAX, JobFilter
from leaseway.domain.job import State, Submitted
from leaseway.ports.store import Store
from leaseway.system import ALPHABET
from leaseway.worker.submit import Bound

LIVES_MAX = 50
TIME_LETTERS = 10
"""Of a job's id: the millisecond of its submission."""
CLAIM_BITS = 20


class Submits(Protocol):
    async def submit_many(self, jobs: Iterable[Bound]) -> list[Submitted]: ...
    async def store(self) -> Store: ...


async def bring_to_life(app: Submits, run: str, calls: Mapping[str, Callable[..., Bound]]) -> None:
    """A job for each key, which waits or is being worked on. One that was given up is tried again. One that is done, or
    was discarded, cannot be: another one follows it, whose key says whom, so that there is one however often we ask."""
    for _ in range(LIVES_MAX):
        answers = await app.submit_many([call(key=key) for key, call in calls.items()])
        known = [answer.id for answer in answers if answer.replayed]
        if not known:
            return
        dead = set(known) - await revived(await app.store(), known)
        pairs = zip(answers, calls.values(), strict=True)
        calls = {f"{run}:after:{answer.id}": call for answer, call in pairs if answer.id in dead}
    raise UsageError(f"run {run}: {LIVES_MAX} times its jobs have ended before it; begin a run with another name")


async def revived(store: Store, jobs: Sequence[JobId]) -> set[JobId]:
    """Those that wait, or are being worked on, after those that were given up are tried again."""
    living: set[JobId] = set()
    for start in range(0, len(jobs), PAGE_MAX):
        some = tuple(jobs[start : start + PAGE_MAX])
        await store.replay(JobFilter(ids=some), len(some))
        open_ones = JobFilter(ids=some, states=(State.PENDING, State.LEASED))
        living |= {job.id for job in await store.jobs(open_ones, limit=PAGE_MAX)}
    return living


def fence_of(job: JobId, fence: int) -> int:
    """A job's own fence begins at 1. Among several jobs of one shard, perhaps of several stores, the one that was
    submitted last comes after all the others: ids are sorted by time."""
    millisecond = 0
    for letter in job[:TIME_LETTERS]:
        millisecond = millisecond * len(ALPHABET) + max(ALPHABET.find(letter), 0)
    return (millisecond << CLAIM_BITS) + min(fence, (1 << CLAIM_BITS) - 1)
