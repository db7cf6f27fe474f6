"""[submit] ─► store ─► exchange ─► run handler ─► settle

A call of a handle's `submit` becomes a bound job, whose arguments and options are checked; a bound job becomes a new
job, which has an id; and new jobs go to the store. A submission whose reply was lost is repeated with the same ids.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from msgspec import Struct

from leaseway.domain.encryption import NO_KEYS, Encryption
from leaseway.domain.errors import BadValue, JobFailed, TransientError, UnknownOutcome, UsageError
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import JobRecord, NewJob, State, Submitted
from leaseway.domain.kind import SUBMIT_OPTIONS, JobOptions, Kind, SubmitOptions, new_job, parse_options
from leaseway.domain.submission import SUBMIT_MAX
from leaseway.domain.validators import Seconds
from leaseway.ports.clock import Clock, Ids
from leaseway.ports.job_store import JobStore
from leaseway.worker.environment import Environment

if TYPE_CHECKING:
    from leaseway.app import App

KEY_KEEP_US = 7 * 86_400 * SECOND_US
BATCH_BYTES_MAX = 16 * 1024 * 1024
TRIES_MAX = 5
PAUSE_SECONDS = 0.1


class Bound(Struct, frozen=True):
    """A job that is ready to be submitted: a kind, its payload, and its options. Made by `bind`."""

    kind: Kind
    payload: str
    options: JobOptions

    def new(
        self,
        ids: Ids,
        key_keep_us: int = KEY_KEEP_US,
        tenant: str = "default",
        encryption: Encryption = NO_KEYS,
    ) -> NewJob:
        kind, options = self.kind, self.options
        fingerprint = "" if options.key is None else kind.fingerprint(self.payload)
        id_, tenant = ids.job(), options.tenant or tenant
        # Limits and budgets are found in the arguments, so encryption comes last.
        new = new_job(id_, kind.name, self.payload, options, kind, tenant, fingerprint, key_keep_us)
        return encryption.seal_job(new) if encryption.is_on else new


def require_bound(job: object) -> Bound:
    """What `app.submit`, `app.submit_in` and `ctx.submit` take. The error says how to make it."""
    if isinstance(job, Bound):
        return job
    if isinstance(job, JobHandle):
        raise UsageError(f"{job.name} is a job without arguments; pass {job.name}.bind(…)")
    if inspect.iscoroutine(job):
        job.close()
        raise UsageError("a call that is not awaited was given instead of a job; pass job.bind(…), not job.submit(…)")
    raise UsageError(f"a bound job is needed, job.bind(…), and not an object of type {type(job).__name__}")


def require_many(jobs: object, what: str) -> Iterable[Any]:
    """`what`: the elements."""
    if isinstance(jobs, Iterable) and not isinstance(jobs, str | Mapping):
        return jobs
    raise UsageError(f"submit_many takes a list of {what}, and not an object of type {type(jobs).__name__}")


async def submit_traced(environment: Environment, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store the jobs, their long texts first, inside a span if tracing is on."""
    if environment.blobs.is_on:
        jobs = await environment.blobs.keep_jobs(jobs)
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
    each = map(require_bound, require_many(jobs, "bound jobs"))
    made = (job.new(environment.ids, key_keep_us, encryption=environment.encryption) for job in each)
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
        if len(batch) == SUBMIT_MAX or room <= 0:
            break
    return batch


# -- handles ----------------------------------------------------------------------------------------------------------

R = TypeVar("R")
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)
JobName = Submitted | JobId | str


class JobHandle(Generic[F_co]):
    """A function that is a job, made by `@app.job`. Calling it runs the function directly, which is useful in tests."""

    def __init__(self, app: "App", kind: Kind, options: SubmitOptions | None = None) -> None:
        self.app = app
        self.kind = kind
        self.name = kind.name
        self._given: SubmitOptions = options or {}
        self._options = parse_options(self._given)
        self.__doc__ = kind.function.__doc__
        self.__wrapped__ = kind.function

    @property
    def __call__(self) -> F_co:
        function: F_co = self.kind.function  # type: ignore[assignment]
        return function

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def options(self, **options: Unpack[SubmitOptions]) -> Self:
        """The same job with options for what it submits: `await ship.options(key="ship:7").submit(order=7)`.

        `key`: an idempotency key; a second submission with the same key returns the first job. `tenant`, `queue`,
        `priority` (higher runs first). `run_at` (a datetime) or `delay`: when to run it. `attempts`, `timeout`: instead
        of those of the kind. `cursor`: the first value of `ctx.cursor`. `shard_key`: a label for filtering.
        """
        return type(self)(self.app, self.kind, {**self._given, **options})

    def bind(self, /, *args: Any, **kwargs: Any) -> Bound:
        """Check the arguments. The result can be passed to `app.submit_many`, `app.submit_in` or `ctx.submit`."""
        if args:
            raise positional_error(self.kind)
        try:
            return Bound(self.kind, self.kind.encode(kwargs), self._options)
        except BadValue as error:
            raise option_error(self.kind, kwargs) or error from None

    async def submit(self, /, *args: Any, **kwargs: Any) -> Submitted:
        """Submit one job. Give the function's arguments by name."""
        return await self.app.submit(self.bind(*args, **kwargs))

    def submit_sync(self, /, *args: Any, **kwargs: Any) -> Submitted:
        """Like `submit`, for code that is not async."""
        return self.app.submit_sync(self.bind(*args, **kwargs))

    async def submit_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[Submitted]:
        """Submit one job for each mapping of arguments, all with the same options. Type checkers do not look into the
        mappings; they check `app.submit_many(handle.bind(…) for …)`."""
        return await self.app.submit_many(self._each(arguments))

    def submit_many_sync(self, arguments: Iterable[Mapping[str, Any]]) -> list[Submitted]:
        """Like `submit_many`, for code that is not async."""
        return self.app.submit_many_sync(self._each(arguments))

    def _each(self, arguments: Iterable[Mapping[str, Any]]) -> Iterator[Bound]:
        if self._options.key is not None:
            raise BadValue("key", "one key cannot identify many jobs; bind each job with its own key")
        for index, each in enumerate(require_many(arguments, "mappings, one with the arguments of each job")):
            try:
                text = self.kind.encode(each)
            except BadValue as error:
                raise BadValue(f"item {index}: {error.field}", error.problem) from error
            yield Bound(self.kind, text, self._options)

    @overload
    async def result(self: "AsyncJob[R]", job: JobName, timeout: Seconds | None = None) -> R: ...  # noqa: ASYNC109
    @overload
    async def result(self: "PlainJob[R]", job: JobName, timeout: Seconds | None = None) -> R: ...  # noqa: ASYNC109
    async def result(self, job: JobName, timeout: Seconds | None = None) -> Any:  # noqa: ASYNC109
        """Wait until a job of this kind is done, and return its result as the type that the function declares.

        Raises JobFailed if the job failed or was cancelled, and TimeoutError after `timeout`.
        """
        return self._read(await self.app.wait(job, timeout))

    @overload
    def result_sync(self: "AsyncJob[R]", job: JobName, timeout: Seconds | None = None) -> R: ...
    @overload
    def result_sync(self: "PlainJob[R]", job: JobName, timeout: Seconds | None = None) -> R: ...
    def result_sync(self, job: JobName, timeout: Seconds | None = None) -> Any:
        """Like `result`, for code that is not async."""
        return self._read(self.app.wait_sync(job, timeout))

    def _read(self, record: JobRecord) -> Any:
        if record.kind != self.name:
            raise UsageError(f"job {record.id} is a {record.kind!r}, not a {self.name!r}; ask the handle of its kind")
        if record.state is not State.DONE:
            code = f" with {record.last_error_code}" if record.last_error_code else ""
            raise JobFailed(f"job {record.id} is {record.state}{code}; see leaseway jobs show {record.id}")
        return self.kind.decode_result(record.result)


AsyncJob = JobHandle[Callable[..., Coroutine[Any, Any, R]]]
PlainJob = JobHandle[Callable[..., R]]


def positional_error(kind: Kind) -> UsageError:
    names = ", ".join(f"{name}=…" for name in kind.Arguments.__struct_fields__)
    return UsageError(f"job {kind.name}: give the arguments by name: submit({names})")


def option_error(kind: Kind, given: Mapping[str, Any]) -> BadValue | None:
    """The error for an option that was given as an argument."""
    for name in given:
        if name in SUBMIT_OPTIONS and name not in kind.Arguments.__struct_fields__:
            problem = f"is an option, not an argument; write {kind.name}.options({name}=…).submit(…)"
            return BadValue(f"{kind.name}: {name}", problem)
    return None
