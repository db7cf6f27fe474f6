"""[submit] ─► store ─► exchange ─► run handler ─► settle

A function call becomes a bound job (arguments and options checked), a bound job becomes a new job (it gets its id),
new jobs go to the store. A submission whose reply was lost is repeated with the same ids.
"""

import asyncio
from collections.abc import Iterable, Sequence

from msgspec import Struct

from leaseway.domain.errors import TransientError, UnknownOutcome
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import NewJob, Submitted
from leaseway.domain.kind import Kind
from leaseway.domain.submission import JobOptions
from leaseway.ports.clock import Clock, Ids
from leaseway.ports.job_store import JobStore
from leaseway.worker.environment import Environment

KEY_KEEP_US = 7 * 86_400 * SECOND_US
BATCH_MAX = 5_000
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Jobs in one transaction. A larger submission becomes several of them."""
TRIES_MAX = 5
PAUSE_SECONDS = 0.1


class Bound(Struct, frozen=True):
    """A call that is ready to be submitted: a kind, its payload, and the options."""

    kind: Kind
    payload: str
    options: JobOptions

    def new(self, ids: Ids, key_keep_us: int = KEY_KEEP_US, tenant: str = "default") -> NewJob:
        kind, options = self.kind, self.options
        defaults = kind.defaults
        tenant = options.tenant or tenant
        return NewJob(
            id=ids.job(),
            kind=kind.name,
            payload=self.payload,
            queue=options.queue or defaults.queue,
            tenant=tenant,
            priority=defaults.priority if options.priority is None else options.priority,
            attempts_max=options.attempts or defaults.attempts,
            lease_us=defaults.lease_us,
            timeout_us=options.timeout_us or defaults.timeout_us,
            delay_us=options.delay_us,
            run_at=options.run_at,
            key=options.key,
            fingerprint="" if options.key is None else kind.fingerprint(self.payload),
            key_keep_us=key_keep_us,
            shard_key=options.shard_key,
            cursor=options.cursor,
            needs=kind.requirements.text(lambda: kind.decode(self.payload), tenant) if kind.requirements else "",
        )


async def submit_traced(world: Environment, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store the jobs, and let those who trace know of it."""
    if world.tracing is None:
        return await submit(world.store.jobs, jobs, world.clock)
    with world.tracing.submitting(jobs) as traced:
        return await submit(world.store.jobs, traced, world.clock)


async def submit(
    store: JobStore, jobs: Sequence[NewJob], clock: Clock, unknown: UnknownOutcome | None = None
) -> list[Submitted]:
    """Store the jobs. An unknown outcome, perhaps of an earlier try, is resolved by repetition: the ids allow it."""
    for attempt in range(TRIES_MAX):
        if attempt:
            await clock.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            return await store.submit(jobs)
        except UnknownOutcome as error:
            unknown = error
        except TransientError:
            # A refusal says that this try wrote nothing. What became of an earlier one, it does not say.
            if unknown is None:
                raise
    assert unknown is not None
    raise unknown


async def submit_many(world: Environment, jobs: Iterable[Bound], key_keep_us: int) -> list[Submitted]:
    """Store any number of jobs, batch by batch; the next batch is checked while the last one is written."""
    answers: list[Submitted] = []
    made = (job.new(world.ids, key_keep_us) for job in jobs)
    try:
        async with asyncio.TaskGroup() as group:
            batch = next_batch(made)
            while batch:
                writing = group.create_task(submit_traced(world, batch))
                await world.clock.sleep(0)  # let the write start before the next batch is made
                try:
                    batch = next_batch(made)
                finally:
                    answers += await writing
    except ExceptionGroup as errors:
        error = errors.exceptions[0]
        if answers:
            error.add_note(f"{len(answers):,} jobs before it were submitted")
        raise error from None
    return answers


def next_batch(made: Iterable[NewJob]) -> list[NewJob]:
    """The next jobs for one transaction: bounded in number and in size."""
    batch: list[NewJob] = []
    room = BATCH_BYTES_MAX
    for job in made:
        batch.append(job)
        room -= len(job.payload)
        if len(batch) == BATCH_MAX or room <= 0:
            break
    return batch
