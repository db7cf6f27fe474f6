"""[submit] ─► store ─► exchange ─► run handler ─► settle

A function call becomes a bound job (arguments and options checked), a bound job becomes a new job (it gets its id), and
new jobs go to the store. A submission whose reply was lost is repeated with the same ids.
"""

import asyncio
from collections.abc import Iterable, Sequence

from msgspec import Struct

from leaseway.domain.errors import TransientError, UnknownOutcome
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import NewJob, Submitted
from leaseway.domain.kind import JobOptions, Kind, new_job
from leaseway.ports.clock import Clock, Ids
from leaseway.ports.job_store import JobStore
from leaseway.worker.environment import Environment

KEY_KEEP_US = 7 * 86_400 * SECOND_US
BATCH_MAX = 5_000
"""The most jobs in one transaction. A larger submission becomes several transactions."""
BATCH_BYTES_MAX = 16 * 1024 * 1024
TRIES_MAX = 5
PAUSE_SECONDS = 0.1


class Bound(Struct, frozen=True):
    """A job that is ready to be submitted: a kind, its payload, and its options. Made by `bind`."""

    kind: Kind
    payload: str
    options: JobOptions

    def new(self, ids: Ids, key_keep_us: int = KEY_KEEP_US, tenant: str = "default") -> NewJob:
        kind, options = self.kind, self.options
        fingerprint = "" if options.key is None else kind.fingerprint(self.payload)
        id_, tenant = ids.job(), options.tenant or tenant
        return new_job(id_, kind.name, self.payload, options, kind, tenant, fingerprint, key_keep_us)


async def submit_traced(environment: Environment, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store the jobs inside a span, if tracing is on."""
    if environment.tracing is None:
        return await submit(environment.store.jobs, jobs, environment.clock)
    with environment.tracing.submitting(jobs) as traced:
        return await submit(environment.store.jobs, traced, environment.clock)


async def submit(
    store: JobStore, jobs: Sequence[NewJob], clock: Clock, unknown: UnknownOutcome | None = None
) -> list[Submitted]:
    """Store the jobs. If the outcome of a try is unknown, the submission is repeated; the ids make that safe.

    `unknown`: the error of an earlier try whose outcome is unknown.
    """
    for attempt in range(TRIES_MAX):
        if attempt:
            await clock.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            return await store.submit(jobs)
        except UnknownOutcome as error:
            unknown = error
        except TransientError:
            # The error says that this try wrote nothing. It does not say whether an earlier one did.
            if unknown is None:
                raise
    assert unknown is not None
    raise unknown


async def submit_many(environment: Environment, jobs: Iterable[Bound], key_keep_us: int) -> list[Submitted]:
    """Store any number of jobs in batches. The next batch is prepared while the last one is written."""
    answers: list[Submitted] = []
    made = (job.new(environment.ids, key_keep_us) for job in jobs)
    try:
        async with asyncio.TaskGroup() as group:
            batch = next_batch(made)
            while batch:
                writing = group.create_task(submit_traced(environment, batch))
                await environment.clock.sleep(0)  # let the write start before the next batch is prepared
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
    """The next jobs for one transaction, bounded in number and size."""
    batch: list[NewJob] = []
    room = BATCH_BYTES_MAX
    for job in made:
        batch.append(job)
        room -= len(job.payload)
        if len(batch) == BATCH_MAX or room <= 0:
            break
    return batch
