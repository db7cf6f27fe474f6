"""The public entry point: an app with its jobs, and methods to submit jobs and to run workers."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from leaseway.domain.budgets.balances import Evidence
from leaseway.domain.budgets.budget import parse_amount_micros
from leaseway.domain.budgets.holds import Correction
from leaseway.domain.encryption import Codec
from leaseway.domain.errors import NoSuchJob, TransientError, UnknownKind, UnknownOutcome, UsageError
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.job import Job, JobRecord, NewJob, Submitted, job_record
from leaseway.domain.kind import Kind, SubmitOptions, parse_options
from leaseway.domain.limits.limit import parse_rate
from leaseway.domain.schedule import Schedule
from leaseway.domain.schedule import check_schedule as check_schedule
from leaseway.domain.tenant import Tenant
from leaseway.domain.tenant import check_tenant as check_tenant
from leaseway.domain.validators import Seconds, parse_duration_us, parse_names
from leaseway.job_registry import JobRegistry
from leaseway.ports.store import Store
from leaseway.ports.telemetry import Events
from leaseway.signals import drained_by_signals, run_to_the_end
from leaseway.store_session import IN_THREAD, refuse_running_loop
from leaseway.telemetry.log import LogEvents
from leaseway.worker.blobs import is_kept
from leaseway.worker.definitions import correct_hold, store_tenant, with_stored_quotas
from leaseway.worker.environment import WorkerSettings, WorkerSummary
from leaseway.worker.loop import Worker
from leaseway.worker.submit import Bound, require_bound, submit, submit_many, submit_traced

if TYPE_CHECKING:
    from typing import Unpack

    from leaseway.capacity.job_mix import JobLoad
    from leaseway.capacity.provider_model import ProviderModel
    from leaseway.capacity.report import CapacityReport
    from leaseway.imports.run.importer import Importer
    from leaseway.imports.spec.importer_options import ImporterOptions

RETENTION = timedelta(days=7)


class App(JobRegistry):
    """Jobs and the store that keeps them. The store is opened by the first submission or worker.

        app = App("sqlite:///work.db")   # postgresql://…  mongodb://…  https://…  memory://

    `url`: the store; default: LEASEWAY_STORE, or leaseway.db in the current directory. `key`: the API key, if the
    store is a service (https://…); default: LEASEWAY_KEY. `limits`: where limits are kept, if not in the store (redis://…);
    default: LEASEWAY_LIMITS. `schema`: of a store in PostgreSQL, if its URL names none; default: LEASEWAY_SCHEMA, or
    leaseway; other stores ignore it. `retention`: how long finished jobs are kept. `key_retention`: how long
    idempotency keys are kept. `events`: receives log events; default: the logger `leaseway`. `secrets`: values that a
    worker removes from errors before it stores them, in addition to those of environment variables such as
    MAPS_API_KEY. `codec`: encrypts arguments, results, cursors and errors, for example `AesGcm`; default: the keys in
    LEASEWAY_ENCRYPTION_KEYS. `blobs`: a blob store for arguments, results and cursors of more than 256 KiB,
    file:///folder or s3://bucket/prefix; default: LEASEWAY_BLOBS, or none.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        limits: str | None = None,
        schema: str | None = None,
        retention: timedelta = RETENTION,
        key_retention: timedelta = RETENTION,
        events: Events | None = None,
        secrets: Iterable[str] = (),
        codec: Codec | None = None,
        blobs: str | None = None,
    ) -> None:
        url = url or os.environ.get("LEASEWAY_STORE") or "sqlite:///leaseway.db"
        limits = limits or os.environ.get("LEASEWAY_LIMITS")
        blobs = blobs or os.environ.get("LEASEWAY_BLOBS")
        super().__init__(url, key, limits, LogEvents() if events is None else events, secrets, codec, schema, blobs)
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

    def bind(self, name: str, arguments: Mapping[str, Any], **options: "Unpack[SubmitOptions]") -> Bound:
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
        new = require_bound(job).new(self._world.ids, self._key_keep_us, encryption=self._world.encryption)
        if self._world.tracing is None:
            jobs = await self._world.blobs.keep_jobs([new]) if self._world.blobs.is_on else [new]
            return (await submit(store.jobs, jobs, self._world.clock))[0]
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
        require_bound(job)
        store = self.sync(self.store()) if not self._is_open or self._pid != os.getpid() else self._world.store
        new = job.new(self._world.ids, self._key_keep_us, encryption=self._world.encryption)
        if self._world.blobs.is_on and (is_kept(new.payload) or is_kept(new.cursor)):
            (new,) = self.sync(self._world.blobs.keep_jobs([new]))
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

    async def submit_in(self, connection: object, *jobs: Bound, notify: bool = True) -> list[Submitted]:
        """Submit bound jobs as a part of your own transaction: they exist only if you commit it.

        Requires PostgreSQL or MongoDB. `connection`: a connection of asyncpg or an async one of psycopg, or an async
        session or connection of SQLAlchemy, with a transaction in the store's database; on MongoDB, a session of an
        AsyncMongoClient. `notify`: your commit notifies idle workers; on PostgreSQL False if you commit so often that
        commits must not wait for each other, or in two phases: workers then find the jobs when they poll, after one to
        ten seconds.
        """
        store = await self._transactional()
        with self._new(jobs) as new:
            return await store.submit(connection, await self._world.blobs.keep_jobs(new), notify=notify)

    def submit_in_sync(self, connection: object, *jobs: Bound, notify: bool = True) -> list[Submitted]:
        """Like `submit_in`, for code that is not async: a connection of psycopg, psycopg2 or Django, or a session or
        connection of SQLAlchemy."""
        refuse_running_loop(IN_THREAD)
        store = self.sync(self._transactional())
        with self._new(jobs) as new:
            return store.submit_blocking(connection, self.sync(self._world.blobs.keep_jobs(new)), notify=notify)

    def _new(self, jobs: Iterable[Bound]) -> AbstractContextManager[Sequence[NewJob]]:
        world = self._world
        each = map(require_bound, jobs)
        new = [job.new(world.ids, self._key_keep_us, encryption=world.encryption) for job in each]
        return nullcontext(new) if self._world.tracing is None else self._world.tracing.submitting(new)

    # -- asking -----------------------------------------------------------------------------------------------------

    async def find(self, job: Submitted | JobId | str) -> JobRecord | None:
        """The record of a job, or None if there is no such job. Values that cannot be decrypted stay encrypted."""
        record = await (await self.store()).reads.job(job_id(job))
        return None if record is None else await self._opened(record)

    async def wait(self, job: Submitted | JobId | str, timeout: Seconds | None = None) -> JobRecord:  # noqa: ASYNC109
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
        return await self._opened(record)

    async def _opened(self, job: Job) -> JobRecord:
        return job_record(self._world.encryption.open_job(await self._world.blobs.open_job(job)))

    def wait_sync(self, job: Submitted | JobId | str, timeout: Seconds | None = None) -> JobRecord:
        """Like `wait`, for code that is not async."""
        return self.sync(self.wait(job, timeout))

    # -- working ----------------------------------------------------------------------------------------------------

    async def run_worker(self, worker: Worker | None = None, **settings: Any) -> WorkerSummary:
        """Run a worker in the current event loop until it is drained. For programs that handle signals themselves."""
        if worker is not None and (settings or not isinstance(worker, Worker)):
            raise UsageError("run_worker takes a worker of app.worker(…), or its settings: run_worker(concurrency=5)")
        await self.store()
        return await (worker or self.worker(**settings)).run()

    def worker(
        self,
        *,
        concurrency: int = 20,
        queues: str | Iterable[str] | None = None,
        grace: Seconds = 30,
        until_empty: bool = False,
    ) -> Worker:
        """A worker for the jobs of this app. `run_worker` starts it; its method `drain` ends it.

        `concurrency`: how many jobs run at once. `queues`: a name or several; default: those of the app's jobs.
        `grace`: how long running jobs may continue after a signal to stop. `until_empty`: stop when no unfinished job
        is left.
        """
        from leaseway import __version__

        named = (queues,) if isinstance(queues, str) else queues
        served = self.queues() if named is None else parse_names("queues", named)
        settings = WorkerSettings(
            queues=served,
            concurrency=concurrency,
            grace_seconds=parse_duration_us("grace", grace) / SECOND_US,
            until_empty=until_empty,
            keep_us=self._keep_us,
            key_keep_us=self._key_keep_us,
            version=__version__,
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

    # -- planning ---------------------------------------------------------------------------------------------------

    def simulate(
        self,
        jobs: "Mapping[str, int | JobLoad]",
        *,
        workers: Iterable[int] = (),
        concurrency: int = 20,
        provider: "ProviderModel | None" = None,
        limits: "Mapping[str, str | list[str]] | None" = None,
        budgets: "Mapping[str, float | str] | None" = None,
        over: Seconds = 0,
        seed: int = 0,
    ) -> "CapacityReport":
        """How long jobs take with how many workers, how many requests they send and what they cost, before they run:

            report = app.simulate({"geocode": 10_000}, workers=[1, 2, 4], limits={"maps": "2x"})
            print(report)                        # report.knee.workers, report.runs[0].seconds, …

        Real workers run modelled jobs in virtual time: a job sends its requests to `provider`, a `ProviderModel`, and
        no function of yours is called. `jobs`: by kind, their number or a `JobLoad`. `workers`: the numbers to try;
        without them 1, 2, 4 … until more do not help. `limits`, `budgets`: other rates and amounts, or a factor such as
        "2x". `over`: jobs arrive over this time; 0: all at once.
        """
        from leaseway.capacity.simulate import make_settings, simulate_jobs  # late: workers do not need it

        over_seconds = parse_duration_us("over", over) / SECOND_US
        settings = make_settings(workers, concurrency, provider, limits, budgets, over_seconds, seed)
        return simulate_jobs(self.kinds, jobs, settings)

    async def recorded_load(self, history: str) -> "dict[str, JobLoad]":
        """What this app ran in the last 15m to 30d, for `simulate`: "what if the limit doubled?"

            load = await app.recorded_load("6h")
            report = app.simulate(load, provider=ProviderModel(seconds=0), limits={"maps": "2x"})

        Recorded run times contain the requests, so the provider takes no time.
        """
        from leaseway.capacity.recorded_load import read_recorded

        return await read_recorded(await self.store(), history, self.kinds)

    # -- limits, budgets, tenants -----------------------------------------------------------------------------------

    async def set_tenant(
        self, name: str, *, weight: int = 1, starts: str | Sequence[str] = (), concurrency: int | None = None
    ) -> None:
        """Set a tenant's weight against other tenants, how many of its jobs may start per window ("100/minute"), and
        how many may run at once. It applies to all workers from their next claim on. Quotas stay as they are."""
        texts = [starts] if isinstance(starts, str) else starts
        rates = tuple(sorted(parse_rate(f"tenant {name}: starts", text) for text in texts))
        tenant = check_tenant(Tenant(name=name, weight=weight, starts=rates, concurrency=concurrency))
        store = await self.store()
        await store_tenant(store.tenants, self._world.limiter, await with_stored_quotas(store.tenants, tenant))

    def set_tenant_sync(self, name: str, **settings: Any) -> None:
        """Like `set_tenant`, for code that is not async."""
        self.sync(self.set_tenant(name, **settings))

    async def settle_hold(self, hold: str, *, by: str, reason: str = "", **amounts: object) -> tuple[Correction, ...]:
        """Correct a captured hold by the provider's evidence: `await app.settle_hold(hold, usd=0.004, by="alice")`. The
        journal of the budget records who did it and why. Each hold is corrected once."""
        store = await self.store()
        actuals = {unit: parse_amount_micros(unit, amount, zero=True) for unit, amount in amounts.items()}
        return await correct_hold(store, self._world.ledger, hold, actuals, Evidence(by, reason))

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


def job_id(job: "Submitted | JobId | str") -> JobId:
    if isinstance(job, Submitted):
        return job.id
    if isinstance(job, str):
        return JobId(job)
    raise UsageError(f"an id is needed, or what submit has returned, and not an object of type {type(job).__name__}")
