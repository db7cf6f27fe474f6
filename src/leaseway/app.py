"""What users write against: an app, its jobs, and the two ways in, submitting and working."""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from leaseway.domain.budgets.budget import Budget
from leaseway.domain.errors import (
    BadValue,
    NoSuchJob,
    TransientError,
    UnknownKind,
    UnknownOutcome,
    UsageError,
    redact_url,
)
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Job, NewJob, Submitted
from leaseway.domain.kind import (
    NO_OPTIONS,
    SUBMIT_OPTIONS,
    Kind,
    KindDefaults,
    check_attempts,
    check_priority,
    parse_lease_us,
    parse_options,
    parse_timeout_us,
)
from leaseway.domain.limits.limit import parse_rate
from leaseway.domain.outcome import Backoff
from leaseway.domain.requirements import LimitsOption, Requirements, parse_limit_uses
from leaseway.domain.schedule import Missed, Schedule
from leaseway.domain.schedule import check_schedule as check_schedule
from leaseway.domain.tenant import Tenant
from leaseway.domain.tenant import check_tenant as check_tenant
from leaseway.domain.validators import Seconds, check_name, parse_duration_us
from leaseway.ports.events import Events
from leaseway.ports.job_store import TransactionalSubmission
from leaseway.ports.store import Store
from leaseway.signals import drained_by_signals, run_to_the_end
from leaseway.telemetry.log_events import LogEvents
from leaseway.wiring import build_environment
from leaseway.worker.environment import Environment, WorkerSettings
from leaseway.worker.loop import Worker, WorkerSummary
from leaseway.worker.maintenance import scheduled_job
from leaseway.worker.set_tenant import store_tenant
from leaseway.worker.submit import Bound, submit, submit_many, submit_traced

if TYPE_CHECKING:
    from typing import Unpack

    from leaseway.imports.run.importer import Importer
    from leaseway.imports.spec.importer_options import ImporterOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

RETENTION = timedelta(days=7)
DEFAULT_BACKOFF = Backoff()


class App:
    """Jobs and the store they live in. Opening the store waits until the first submission or worker."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        limits: str | None = None,
        retention: timedelta = RETENTION,
        key_retention: timedelta = RETENTION,
        events: Events | None = None,
    ) -> None:
        url = url or os.environ.get("LEASEWAY_STORE") or "sqlite:///leaseway.db"
        self.url = url
        self._key = key
        """Of a service, if the store is one: https://… None: the one in LEASEWAY_KEY."""
        self.limits_url = limits or os.environ.get("LEASEWAY_LIMITS")
        """Where limits are kept, if not beside the jobs: redis://…"""
        self.kinds: dict[str, Kind] = {}
        self.schedules: dict[str, Schedule] = {}
        self.importers: dict[str, Importer] = {}
        self._keep_us = parse_duration_us("retention", retention)
        self._key_keep_us = parse_duration_us("key_retention", key_retention)
        self.events = LogEvents() if events is None else events
        self._world = build_environment(url, self.limits_url, self.events, self._key)
        self._is_open = False
        self._opening = 0
        """Those who are at it now."""
        self._pid = os.getpid()
        self._portal: SyncPortal | None = None
        self._portal_lock = threading.Lock()

    def move(self, url: str, events: Events | None = None, limits: str | None = None) -> None:
        """Use another store than the one named first, or other limits, before it is opened; tell somebody else what
        happens."""
        if self._is_open:
            raise UsageError(
                f"the app is at work with {redact_url(self.url)}; close it before moving to {redact_url(url)}"
            )
        # A key is for the service that it was made by, and for nobody else to see.
        self._key = self._key if url == self.url else None
        self.url = url
        self.limits_url = limits or self.limits_url
        self.events = events or self.events
        self._world = build_environment(url, self.limits_url, self.events, self._key)

    # -- declaring --------------------------------------------------------------------------------------------------

    @overload
    def job(self, function: Callable[P, R], /) -> "JobHandle[P, R]": ...

    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        attempts: int = 5,
        timeout: Seconds | None = None,
        lease: Seconds = 15,
        backoff: Backoff | float = DEFAULT_BACKOFF,
        priority: int = 0,
        limits: LimitsOption = (),
        budget: Budget | None = None,
        budgets: Sequence[Budget] = (),
        cost: object = None,
        cost_usd: object = None,
    ) -> "Callable[[Callable[P, R]], JobHandle[P, R]]": ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        attempts: int = 5,
        timeout: Seconds | None = None,
        lease: Seconds = 15,
        backoff: Backoff | float = DEFAULT_BACKOFF,
        priority: int = 0,
        limits: LimitsOption = (),
        budget: Budget | None = None,
        budgets: Sequence[Budget] = (),
        cost: object = None,
        cost_usd: object = None,
    ) -> Any:
        """Make a function a job: `@app.job` or `@app.job(queue="mail", attempts=3)`.

        Durations are seconds or timedeltas. `timeout` ends an attempt, `lease` is how long a worker that died keeps
        the job from others, `backoff` is the first pause after a failure or a whole `Backoff`.

        `limits` are taken by each call to the provider (`ctx.http`, `ctx.call()`), and a job starts only when they
        allow it. `cost` is what one call may cost at most, in the unit of the budget: a number, a mapping from units
        to numbers, or a function of the job's arguments that answers one of these.
        """
        defaults = KindDefaults(
            queue=check_name("queue", queue),
            attempts=check_attempts("attempts", attempts),
            timeout_us=None if timeout is None else parse_timeout_us("timeout", timeout),
            lease_us=parse_lease_us("lease", lease),
            backoff=backoff if isinstance(backoff, Backoff) else Backoff(first_seconds=backoff),
            priority=check_priority("priority", priority),
        )

        charged = (*((budget,) if budget is not None else ()), *budgets)
        most = {"usd": cost_usd} if cost_usd is not None else cost

        def register(function: Callable[..., Any]) -> JobHandle[..., Any]:
            named = name or str(getattr(function, "__name__", ""))
            requirements = Requirements(named, parse_limit_uses(f"job {named}: limits", limits), charged, most)
            return self._register(function, named, defaults, requirements)

        return register if function is None else register(function)

    def cron(
        self, expression: str, *, tz: str = "UTC", missed: str = "latest", name: str | None = None
    ) -> "Callable[[JobHandle[P, R]], JobHandle[P, R]]":
        """Submit a job at the times of a cron expression. Stands above `@app.job`; stands alone as well."""

        def register(target: Any) -> Any:
            handle = target if isinstance(target, JobHandle) else self.job(target)
            self._schedule(handle.kind, expression, tz, missed, name or handle.kind.name)
            return handle

        return register

    def importer(
        self, name: str, /, **options: "Unpack[ImporterOptions]"
    ) -> "Callable[[Callable[..., Any]], Importer]":
        """Make a function that fetches one page an import: `@app.importer("shop.things", key="id", sink="sqlite:///x.db",
        table="things")`. It is called with those of shard, cursor, limit and http that it takes, async or plain, and
        answers a `Page`, a list of records, or (records, next_cursor). The options are those of a spec."""
        from leaseway.imports.run.importer import Importer
        from leaseway.imports.spec.importer_options import declare_importer  # late: most apps import nothing

        def register(function: Callable[..., Any]) -> Importer:
            made = Importer(self, declare_importer(name, function, options))
            if name in self.importers:
                raise UsageError(f"there are two importers named {name!r}; give one of them another name")
            self.importers[name] = made
            return made

        return register

    def bind(self, name: str, arguments: Mapping[str, Any], **options: Any) -> Bound:
        """A job by its name, for callers that have no function at hand."""
        kind = self.kinds.get(name)
        if kind is None:
            known = ", ".join(sorted(self.kinds)) or "none yet"
            raise UnknownKind(f"there is no job named {name!r}; this app has: {known}")
        return Bound(kind, kind.encode(arguments), parse_options(options))

    # -- submitting -------------------------------------------------------------------------------------------------

    async def submit(self, job: Bound) -> Submitted:
        """Submit one bound job."""
        store = await self.store()
        new = job.new(self._world.ids, self._key_keep_us)
        if self._world.tracing is None:
            return (await submit(store.jobs, [new], self._world.clock))[0]
        return (await submit_traced(self._world._replace(store=store), [new]))[0]

    async def submit_many(self, jobs: Iterable[Bound]) -> list[Submitted]:
        """Submit bound jobs of any kinds, in transactions of up to 5,000; the answers come in their order.

        An error names its item. Transactions before it stand, and a note on the error says how many jobs they stored.
        """
        return await submit_many(self._world._replace(store=await self.store()), jobs, self._key_keep_us)

    def submit_sync(self, job: Bound) -> Submitted:
        """Submit one bound job from code that is not async; written in the caller's own thread."""
        refuse_running_loop()
        store = self.sync(self.store()) if not self._is_open or self._pid != os.getpid() else self._world.store
        new = job.new(self._world.ids, self._key_keep_us)
        if self._world.tracing is None:
            return self._submit_now(store, [new])
        with self._world.tracing.submitting([new]) as traced:
            return self._submit_now(store, traced)

    def _submit_now(self, store: Store, new: Sequence[NewJob]) -> Submitted:
        doubt = None
        if store.blocking is not None:
            try:
                return store.blocking.submit(new)[0]
            except UnknownOutcome as unknown:
                doubt = unknown
        return self.sync(submit(store.jobs, new, self._world.clock, doubt))[0]

    def submit_many_sync(self, jobs: Iterable[Bound]) -> list[Submitted]:
        return self.sync(self.submit_many(jobs))

    async def submit_in(self, connection: object, *jobs: Bound) -> list[Submitted]:
        """Submit bound jobs as a part of your own transaction: they exist if and only if you commit.

        For PostgreSQL; `connection` is one of asyncpg or an async one of psycopg, in the database of the store.
        Nobody announces them: idle workers find them within a second after the commit, at most ten.
        """
        store = submits_within(await self.store())
        with self._new(jobs) as new:
            return await store.submit(connection, new)

    def submit_in_sync(self, connection: object, *jobs: Bound) -> list[Submitted]:
        """The same from code that is not async, with a connection of psycopg."""
        refuse_running_loop()
        store = submits_within(self.sync(self.store()))
        with self._new(jobs) as new:
            return store.submit_blocking(connection, new)

    def _new(self, jobs: Iterable[Bound]) -> AbstractContextManager[Sequence[NewJob]]:
        new = [job.new(self._world.ids, self._key_keep_us) for job in jobs]
        return nullcontext(new) if self._world.tracing is None else self._world.tracing.submitting(new)

    # -- asking -----------------------------------------------------------------------------------------------------

    async def find(self, job: Submitted | JobId | str) -> Job | None:
        """The record of a job, or None."""
        return await (await self.store()).reads.job(job_id(job))

    async def wait(self, job: Submitted | JobId | str, timeout: Seconds | None = None) -> Job:  # noqa: ASYNC109
        """The record of a job, as soon as it is done, failed or cancelled. TimeoutError: it was not in time."""
        seconds = None if timeout is None else parse_duration_us("timeout", timeout) / SECOND_US
        store, id_ = await self.store(), job_id(job)
        record = None
        try:
            async with asyncio.timeout(seconds):
                while (record := await store.reads.job(id_)) is not None and not record.state.is_final:
                    await store.notifications.wait(0.25)
        except TimeoutError as error:
            state = "unknown" if record is None else record.state
            raise TimeoutError(f"job {id_} is still {state} after {seconds:g} s") from error
        if record is None:
            raise NoSuchJob(f"there is no job {id_}; it may have been pruned")
        return record

    def wait_sync(self, job: Submitted | JobId | str, timeout: Seconds | None = None) -> Job:
        return self.sync(self.wait(job, timeout))

    # -- working ----------------------------------------------------------------------------------------------------

    async def run_worker(self, worker: Worker | None = None, **settings: Any) -> WorkerSummary:
        """Work in the running event loop until drained. For programs that own their loop and their signals."""
        await self.store()
        return await (worker or self.worker(**settings)).run()

    def worker(
        self,
        *,
        concurrency: int = 20,
        queues: Iterable[str] | None = None,
        grace: Seconds = 30,
        until_empty: bool = False,
    ) -> Worker:
        """A worker for the jobs of this app; `run_worker` starts it, its `drain` ends it."""
        served = self.queues() if queues is None else tuple(check_name("queue", queue) for queue in queues)
        settings = WorkerSettings(
            queues=served,
            concurrency=concurrency,
            grace_seconds=parse_duration_us("grace", grace) / SECOND_US,
            until_empty=until_empty,
            keep_us=self._keep_us,
            key_keep_us=self._key_keep_us,
        )
        return Worker(self._world, self.kinds, settings, tuple(self.schedules.values()))

    def work(self, **settings: Any) -> WorkerSummary:
        """Work until SIGTERM or SIGINT, then drain; a second signal hurries, a third leaves at once with code 4.

        Blocks; call it from the main thread.
        """
        refuse_running_loop("app.work() needs a thread of its own; use `await app.run_worker()` in async code")
        return run_to_the_end(self._work(settings))

    def queues(self) -> tuple[str, ...]:
        """The queues that a worker of this app serves by default."""
        return tuple(sorted({"default", *(kind.defaults.queue for kind in self.kinds.values())}))

    # -- limits, budgets, tenants -----------------------------------------------------------------------------------

    async def set_tenant(
        self, name: str, *, weight: int = 1, starts: str | Sequence[str] = (), concurrency: int | None = None
    ) -> None:
        """What is agreed with a tenant: its weight against others, how many of its jobs may start in a window
        ("100/minute") and run at once. In force with the next claim, for all workers."""
        texts = [starts] if isinstance(starts, str) else starts
        rates = tuple(sorted(parse_rate(f"tenant {name}: starts", text) for text in texts))
        tenant = check_tenant(Tenant(name=name, weight=weight, starts=rates, concurrency=concurrency))
        store = await self.store()
        await store_tenant(store.tenants, self._world.limiter, tenant)

    def set_tenant_sync(self, name: str, **agreed: Any) -> None:
        self.sync(self.set_tenant(name, **agreed))

    # -- the store --------------------------------------------------------------------------------------------------

    @property
    def world(self) -> Environment:
        """The parts that the app works with now: store, limits, ledger, clock. Closing or moving it makes others."""
        return self._world

    @property
    def key_keep_us(self) -> int:
        """How long idempotency keys are remembered."""
        return self._key_keep_us

    async def store(self) -> Store:
        """The app's store, opened."""
        if self._pid != os.getpid():
            self._start_anew_after_fork()
        world = self._world
        if not self._is_open:
            self._opening += 1
            try:
                await world.store.open()
                self._is_open = world is self._world
            except BaseException:
                # The last who fails closes it, since nobody else would: an app that is not open has nothing to close.
                if self._opening == 1 and not self._is_open:
                    await world.store.close()
                raise
            finally:
                self._opening -= 1
        return world.store

    def _start_anew_after_fork(self) -> None:
        if self._is_open:
            # SQLite remembers its locks in memory, which a fork copies; the kernel's locks it does not.
            raise UsageError(
                "the store was opened before this process was forked from another, and cannot be used in both; "
                "fork first, or start processes by spawning them"
            )
        self._world = build_environment(self.url, self.limits_url, self.events, self._key)
        self._pid, self._portal, self._portal_lock = os.getpid(), None, threading.Lock()

    async def close(self) -> None:
        if self._is_open:
            left = self._world
            # Before the first await: who submits meanwhile opens the next store, and not the one that is leaving.
            self._is_open = False
            if not self.url.startswith("memory:"):  # which lives as long as the process
                self._world = build_environment(self.url, self.limits_url, self.events, self._key)
            await left.limiter.close()
            await left.store.close()

    async def __aenter__(self) -> "App":
        await self.store()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def sync(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for one of the async calls above, from code that is not async."""
        try:
            refuse_running_loop()
        except UsageError:
            call.close()
            raise
        with self._portal_lock:  # threads that come first at the same moment share one, and none comes after its end
            if self._portal is None or self._pid != os.getpid():
                self._portal = SyncPortal()
            answer = self._portal.begin(call)
        return answer.result()

    def close_sync(self) -> None:
        refuse_running_loop()
        try:
            self.sync(self.close())
        finally:
            with self._portal_lock:
                portal, self._portal = self._portal, None
            if portal is not None:
                portal.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _register(
        self, function: Callable[P, R], name: str, defaults: KindDefaults, requirements: Requirements
    ) -> "JobHandle[P, R]":
        if isinstance(function, JobHandle):
            raise UsageError(f"{function.name} is a job already; if it has a schedule, write @app.cron above @app.job")
        if name in self.kinds:
            raise UsageError(f"there are two jobs named {name!r}; give one of them another name=")
        kind = self.kinds[name] = Kind(name, function, defaults, requirements)
        return JobHandle(self, kind)

    def _schedule(self, kind: Kind, expression: str, tz: str, missed: str, name: str) -> None:
        if name in self.schedules:
            raise UsageError(f"there are two schedules named {name!r}; give one of them another name=")
        if missed not in [policy.value for policy in Missed]:
            raise BadValue(f"cron {name}: missed", f"must be latest, all or skip (is {missed!r})")
        schedule = Schedule(
            name=check_name("name", name), kind=kind.name, cron=expression, tz=tz, missed=Missed(missed)
        )
        check_schedule(schedule)
        needed = [field for field in kind.Arguments.__struct_fields__ if field != "fire_time"]
        required = [field for field in needed if field in required_parameters(kind)]
        if required:
            raise UsageError(f"cron {name}: nobody gives the job its argument {required[0]!r}; give it a default")
        scheduled_job(schedule, kind, 0, self._world.ids)  # what cannot be made now could not be made at any fire
        self.schedules[name] = schedule

    async def _work(self, settings: dict[str, Any]) -> WorkerSummary:
        try:
            await self.store()  # first: after a fork this makes a new one
            worker = self.worker(**settings)
            async with asyncio.timeout(None) as scope:
                with drained_by_signals(worker, scope):
                    return await worker.run()
        except TimeoutError as error:
            raise TransientError("the store did not take the leases back in time; they expire by themselves") from error
        finally:
            await self.close()


def submits_within(store: Store) -> TransactionalSubmission:
    if store.transactional is None:
        raise UsageError("this store cannot take part in a transaction of yours; PostgreSQL can")
    return store.transactional


def required_parameters(kind: Kind) -> list[str]:
    parameters = inspect.signature(kind.function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]


class JobHandle(Generic[P, R]):
    """A function that is a job. Calling it runs it here and now, as if it were not one: good for tests."""

    def __init__(self, app: App, kind: Kind) -> None:
        self.app = app
        self.kind = kind
        self.name = kind.name
        self.__doc__ = kind.function.__doc__
        self.__wrapped__ = kind.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.kind.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def bind(self, **given: Any) -> Bound:
        """Arguments and options, checked, ready for `app.submit_many` or `ctx.submit`."""
        if SUBMIT_OPTIONS.isdisjoint(given):
            return Bound(self.kind, self.kind.encode(given), NO_OPTIONS)
        options = {name: given.pop(name) for name in SUBMIT_OPTIONS & given.keys()}
        return Bound(self.kind, self.kind.encode(given), parse_options(options))

    async def submit(self, **given: Any) -> Submitted:
        """Submit one job: the function's arguments, and the options key, tenant, queue, priority, run_at or delay,
        attempts, timeout, cursor, shard_key."""
        return await self.app.submit(self.bind(**given))

    async def submit_many(self, arguments: Iterable[Mapping[str, Any]], **options: Any) -> list[Submitted]:
        """Submit one job for each of the given arguments, all with the same options."""
        return await self.app.submit_many(self._each(arguments, options))

    def submit_sync(self, **given: Any) -> Submitted:
        return self.app.submit_sync(self.bind(**given))

    def submit_many_sync(self, arguments: Iterable[Mapping[str, Any]], **options: Any) -> list[Submitted]:
        return self.app.submit_many_sync(self._each(arguments, options))

    def _each(self, arguments: Iterable[Mapping[str, Any]], options: dict[str, Any]) -> Iterator[Bound]:
        if "key" in options:
            raise BadValue("key", "one key cannot stand for many jobs; bind each one with its own key")
        checked = parse_options(options)
        for index, each in enumerate(arguments):
            try:
                text = self.kind.encode(each)
            except BadValue as error:
                raise BadValue(f"item {index}: {error.field}", error.problem) from error
            yield Bound(self.kind, text, checked)


class SyncPortal:
    """An event loop in a thread, for callers that have none."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # which leaves this thread's loop alone
        self._loop = self._runner.get_loop()
        self._is_left = asyncio.Event()
        self._calls: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="leaseway-sync", daemon=True)
        self._thread.start()

    def begin(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        answer = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._calls.add(answer)
        answer.add_done_callback(self._calls.discard)
        return answer

    def close(self) -> None:
        """After the last `begin`. Whoever waits for an answer in another thread gets it, and is not waited for."""
        self._loop.call_soon_threadsafe(self._is_left.set)
        if all(call.done() for call in self._calls.copy()):
            self._thread.join()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._until_left())

    async def _until_left(self) -> None:
        await self._is_left.wait()
        for call in self._calls.copy():
            await asyncio.wait([asyncio.wrap_future(call)])


WOULD_BLOCK = "this would block the event loop that is running here; await the call without _sync instead"


def refuse_running_loop(message: str = WOULD_BLOCK) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(message)


def job_id(job: "Submitted | JobId | str") -> JobId:
    return job.id if isinstance(job, Submitted) else JobId(job)
