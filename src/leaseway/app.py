"""The public entry point: an app with its jobs, and methods to submit jobs and to run workers."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from leaseway.domain.budgets.budget import Budget
from leaseway.domain.errors import (
    NoSuchJob,
    TransientError,
    UnknownKind,
    UnknownOutcome,
    UsageError,
)
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Job, NewJob, Submitted
from leaseway.domain.kind import (
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
from leaseway.domain.schedule import Schedule
from leaseway.domain.schedule import check_schedule as check_schedule
from leaseway.domain.tenant import Tenant
from leaseway.domain.tenant import check_tenant as check_tenant
from leaseway.domain.validators import Seconds, check_name, parse_duration_us
from leaseway.job_handle import JobHandle, make_schedule, register_job
from leaseway.ports.job_store import TransactionalSubmission
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Events
from leaseway.signals import drained_by_signals, run_to_the_end
from leaseway.store_session import StoreSession
from leaseway.sync_portal import refuse_running_loop
from leaseway.telemetry.log import LogEvents
from leaseway.worker.definitions import store_tenant
from leaseway.worker.environment import WorkerSettings
from leaseway.worker.loop import Worker, WorkerSummary
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


class App(StoreSession):
    """Jobs and the store that keeps them. The store is opened by the first submission or worker.

        app = App("sqlite:///work.db")   # postgresql://…  https://…  memory://

    `url`: the store; default: LEASEWAY_STORE, or leaseway.db in the current directory. `key`: the API key, if the
    store is a service (https://…); default: LEASEWAY_KEY. `limits`: where limits are kept, if not in the store (redis://…);
    default: LEASEWAY_LIMITS. `retention`: how long finished jobs are kept. `key_retention`: how long idempotency keys
    are kept. `events`: receives log events; default: the logger `leaseway`.
    """

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
        limits = limits or os.environ.get("LEASEWAY_LIMITS")
        super().__init__(url, key, limits, LogEvents() if events is None else events)
        self.kinds: dict[str, Kind] = {}
        self.schedules: dict[str, Schedule] = {}
        self.importers: dict[str, Importer] = {}
        self._keep_us = parse_duration_us("retention", retention)
        self._key_keep_us = parse_duration_us("key_retention", key_retention)

    @property
    def key_keep_us(self) -> int:
        """How long idempotency keys are kept, in microseconds."""
        return self._key_keep_us

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

        `name`: default: the function's name. `queue`, `priority` (-1,000 to 1,000, higher runs first). `attempts`: how
        often the job is tried before it fails. `timeout`: ends an attempt that takes longer. `lease`: after how long
        another worker may take over the job of a worker that died. `backoff`: the delay after the first failure, or a
        `Backoff`. Durations are seconds or timedeltas.

        `limits`: each call to the provider (`ctx.http`, `ctx.call()`) takes a permit of them, and a job starts only
        when they allow it. `budget`, `budgets`: each call is charged to them. `cost`: the highest cost of one call,
        in the unit of the budget: a number, a mapping from units to numbers, or a function of the job's arguments
        that returns one of these. `cost_usd`: the same in US dollars.
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
            return register_job(self, function, named, defaults, requirements)

        return register if function is None else register(function)

    def cron(
        self, expression: str, *, tz: str = "UTC", missed: str = "latest", name: str | None = None
    ) -> "Callable[[JobHandle[P, R]], JobHandle[P, R]]":
        """Submit a job at the times of a cron expression: `@app.cron("0 3 * * *", tz="Europe/Berlin")`.

        Write it above `@app.job`, or alone. `missed`: what happens to fire times that passed while no worker ran:
        "latest" submits one job, "all" one for each, "skip" none. A parameter named `fire_time` receives the time
        that was due.
        """

        def register(target: Any) -> Any:
            handle = target if isinstance(target, JobHandle) else self.job(target)
            named = name or handle.kind.name
            if named in self.schedules:
                raise UsageError(f"there are two schedules named {named!r}; give one of them another name=")
            self.schedules[named] = make_schedule(handle.kind, named, expression, tz, missed, self._world.ids)
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
        """Bind a job by its name, for callers that do not have the function."""
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
        """Submit bound jobs of any kinds, in transactions of up to 5,000 jobs. The results are in the order of the
        jobs.

        An error names its item. Earlier transactions are not rolled back; a note on the error says how many jobs they
        stored.
        """
        return await submit_many(self._world._replace(store=await self.store()), jobs, self._key_keep_us)

    def submit_sync(self, job: Bound) -> Submitted:
        """Submit one bound job from code that is not async."""
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
        """Like `submit_many`, for code that is not async."""
        return self.sync(self.submit_many(jobs))

    async def submit_in(self, connection: object, *jobs: Bound) -> list[Submitted]:
        """Submit bound jobs as a part of your own transaction: they exist only if you commit it.

        Requires PostgreSQL. `connection`: an asyncpg connection, or an async psycopg connection, to the store's
        database. Workers are not notified: idle workers find the jobs at their next poll, after one to ten seconds.
        """
        store = submits_within(await self.store())
        with self._new(jobs) as new:
            return await store.submit(connection, new)

    def submit_in_sync(self, connection: object, *jobs: Bound) -> list[Submitted]:
        """Like `submit_in`, for code that is not async, with a psycopg connection."""
        refuse_running_loop()
        store = submits_within(self.sync(self.store()))
        with self._new(jobs) as new:
            return store.submit_blocking(connection, new)

    def _new(self, jobs: Iterable[Bound]) -> AbstractContextManager[Sequence[NewJob]]:
        new = [job.new(self._world.ids, self._key_keep_us) for job in jobs]
        return nullcontext(new) if self._world.tracing is None else self._world.tracing.submitting(new)

    # -- asking -----------------------------------------------------------------------------------------------------

    async def find(self, job: Submitted | JobId | str) -> Job | None:
        """The record of a job, or None if there is no such job."""
        return await (await self.store()).reads.job(job_id(job))

    async def wait(self, job: Submitted | JobId | str, timeout: Seconds | None = None) -> Job:  # noqa: ASYNC109
        """Wait until a job is done, failed or cancelled, and return its record. Raises TimeoutError after `timeout`."""
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
        """Like `wait`, for code that is not async."""
        return self.sync(self.wait(job, timeout))

    # -- working ----------------------------------------------------------------------------------------------------

    async def run_worker(self, worker: Worker | None = None, **settings: Any) -> WorkerSummary:
        """Run a worker in the current event loop until it is drained. For programs that handle signals themselves."""
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
        """A worker for the jobs of this app. `run_worker` starts it; its method `drain` ends it.

        `concurrency`: how many jobs run at once. `queues`: default: the queues of the app's jobs. `grace`: how long
        running jobs may continue after a signal to stop. `until_empty`: stop when no unfinished job is left.
        """
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
        """Run a worker until SIGTERM or SIGINT, then drain it. A second signal ends the grace period, a third one
        exits at once with code 4. Blocks; call it from the main thread. For the settings see `worker`.
        """
        refuse_running_loop("app.work() blocks; use `await app.run_worker()` in async code")
        return run_to_the_end(self._work(settings))

    def queues(self) -> tuple[str, ...]:
        """The queues that a worker of this app serves by default."""
        return tuple(sorted({"default", *(kind.defaults.queue for kind in self.kinds.values())}))

    # -- limits, budgets, tenants -----------------------------------------------------------------------------------

    async def set_tenant(
        self, name: str, *, weight: int = 1, starts: str | Sequence[str] = (), concurrency: int | None = None
    ) -> None:
        """Set a tenant's weight against other tenants, how many of its jobs may start per window ("100/minute"), and
        how many may run at once. It applies to all workers from their next claim on."""
        texts = [starts] if isinstance(starts, str) else starts
        rates = tuple(sorted(parse_rate(f"tenant {name}: starts", text) for text in texts))
        tenant = check_tenant(Tenant(name=name, weight=weight, starts=rates, concurrency=concurrency))
        store = await self.store()
        await store_tenant(store.tenants, self._world.limiter, tenant)

    def set_tenant_sync(self, name: str, **settings: Any) -> None:
        """Like `set_tenant`, for code that is not async."""
        self.sync(self.set_tenant(name, **settings))

    # -- the store --------------------------------------------------------------------------------------------------

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _work(self, settings: dict[str, Any]) -> WorkerSummary:
        try:
            await self.store()  # first, because after a fork this replaces the store
            worker = self.worker(**settings)
            async with asyncio.timeout(None) as scope:
                with drained_by_signals(worker, scope):
                    return await worker.run()
        except TimeoutError as error:
            raise TransientError("the store did not accept the released leases in time; they will expire") from error
        finally:
            await self.close()


def submits_within(store: Store) -> TransactionalSubmission:
    if store.transactional is None:
        raise UsageError("this store cannot take part in your transaction; use PostgreSQL")
    return store.transactional


def job_id(job: "Submitted | JobId | str") -> JobId:
    return job.id if isinstance(job, Submitted) else JobId(job)
