"""A backend for Django's tasks framework: `django.tasks` in Django 6, the package `django-tasks` before.

    TASKS = {"default": {"BACKEND": "leaseway.django.LeasewayBackend"}}

    enqueue ─► a job of the kind `django.task`, in the transaction of the request ─► leaseway work leaseway.django:app

A task runs in a thread of the worker, on database connections of that thread. The times and the worker of each attempt
are stored as the job's cursor, because a job has no other place for them.
"""

import builtins
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, urlencode

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from leaseway.app import App
from leaseway.domain.errors import BadValue, TerminalError, UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.job import ErrorRecord, JobRecord, NewJob, State
from leaseway.domain.kind import check_attempts
from leaseway.domain.outcome import Fail, Snooze
from leaseway.worker.context import SyncContext
from leaseway.worker.submit import Bound, submit

FRAMEWORK = "django.tasks" if find_spec("django.tasks") else "django_tasks"
if find_spec(FRAMEWORK) is None:
    raise ImportError("Django before version 6 needs another package for tasks: pip install django-tasks")
framework: Any = import_module(FRAMEWORK)
base: Any = import_module(f"{FRAMEWORK}.base")
backends: Any = import_module(f"{FRAMEWORK}.backends.base")
signals: Any = import_module(f"{FRAMEWORK}.signals")
Missing: Any = import_module(f"{FRAMEWORK}.exceptions").TaskResultDoesNotExist
normalize_json: Any = base.normalize_json
Status = base.TaskResultStatus
logger = logging.getLogger("leaseway")

KIND = "django.task"
UNKNOWN_SECONDS = 30
"""How long a task that this worker does not know waits for another worker."""
OTHER_ERROR = f"{TerminalError.__module__}.{TerminalError.__qualname__}"
"""The class of errors that no exception of the task caused, such as an expired lease."""
LIBPQ = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "target_session_attrs", "passfile"})
"""Options of Django's databases that the URL of a store has, too."""
APP_OPTIONS = frozenset({"schema", "retention", "timeout", "lease"})
OPTIONS = APP_OPTIONS | {"database", "url", "attempts"}
making_app = threading.Lock()
STATUS = {
    State.PENDING: Status.READY,
    State.LEASED: Status.RUNNING,
    State.DONE: Status.SUCCESSFUL,
    State.FAILED: Status.FAILED,
    State.CANCELLED: Status.FAILED,
}


class TaskApp(App):
    """The app of the tasks. Its worker serves the queues that the settings name."""

    def queues(self) -> tuple[str, ...]:
        return tuple(sorted({"default"}.union(*(backend.queues for backend in leaseway_backends()))))


@cache
def task_app(url: str, options: frozenset[tuple[str, Any]]) -> TaskApp:
    """One app for all threads: Django makes a backend for each of them, and an app has connections."""
    given = dict(options)
    of_kind = {name: given.pop(name) for name in ("timeout", "lease") if name in given}
    app = TaskApp(url, **given)
    app.job(name=KIND, **of_kind)(run_task)
    return app


class LeasewayBackend(backends.BaseTaskBackend):
    """The backend, as the settings name it: `"BACKEND": "leaseway.django.LeasewayBackend"`. Django makes it."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := sorted(self.options.keys() - OPTIONS):
            known = ", ".join(sorted(OPTIONS))
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: OPTIONS has no {unknown[0]!r}; it has {known}")
        try:
            self.attempts = check_attempts("attempts", self.options.get("attempts", 1))
        except BadValue as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: OPTIONS: {error}") from error
        self.database = self.options.get("database", "default")
        self._app_options = frozenset((name, self.options[name]) for name in APP_OPTIONS & self.options.keys())

    @property
    def app(self) -> TaskApp:
        """The app with the store. The URL is looked up each time, because Django's tests change the database."""
        url = self.options.get("url") or database_url(connections[self.database].settings_dict, self.alias)
        with making_app:
            return task_app(url, self._app_options)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Outside of a transaction, the task is stored at once. Inside, it is stored by the commit if the store is in
        Django's database, and after the commit if not."""
        self.validate_task(task)
        result = new_result(task, self.alias, args, kwargs)
        object.__setattr__(result, "enqueued_at", timezone.now())
        object.__setattr__(result, "id", self._submit(self._bind(result)))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _bind(self, result: Any) -> Bound:
        task, run_at = result.task, result.task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        arguments = {
            "task": task.module_path,
            "args": result.args,
            "kwargs": result.kwargs,
            "backend": self.alias,
            "run_after": task.run_after and task.run_after.isoformat(),
        }
        return self.app.bind(
            KIND, arguments, queue=task.queue_name, priority=task.priority, run_at=run_at, attempts=self.attempts
        )

    def _submit(self, bound: Bound) -> str:
        connection = connections[self.database]
        is_manual = connection.connection is not None and not connection.autocommit
        if not connection.in_atomic_block and not is_manual:
            return self.app.submit_sync(bound).id
        if "url" not in self.options:
            return self.app.submit_in_sync(connection, bound)[0].id
        app = self.app
        new = bound.new(app.world.ids, app.key_keep_us, encryption=app.world.encryption)
        transaction.on_commit(lambda: app.sync(submit_after_commit(app, new)), using=self.database)
        return new.id

    def get_result(self, result_id: str) -> Any:
        job, errors = self.app.sync(self._read(result_id))
        if job is None or job.kind != KIND:
            raise Missing(result_id)
        return result_from_job(job, errors)

    async def _read(self, result_id: str) -> tuple[JobRecord | None, list[ErrorRecord]]:
        store = await self.app.store()
        job = await self.app.find(result_id)
        if job is None:
            return None, []
        return job, self.app.world.encryption.open_errors(job, await store.reads.errors(job.id))


async def submit_after_commit(app: App, new: NewJob) -> None:
    await submit((await app.store()).jobs, await app.world.blobs.keep_jobs([new]), app.world.clock)


# -- run --------------------------------------------------------------------------------------------------------------


def run_task(
    ctx: SyncContext, task: str, args: list[Any], kwargs: dict[str, Any], backend: str, run_after: str | None = None
) -> Any:
    """The handler of all tasks."""
    found = find_task(task).using(backend=backend, run_after=run_after and datetime.fromisoformat(run_after))
    result = new_result(found, backend, args, kwargs)
    record_attempt(ctx, result)
    sender = type(found.get_backend())
    close_old_connections()
    signals.task_started.send(sender, task_result=result)
    try:
        given = (base.TaskContext(task_result=result), *args) if found.takes_context else args
        value = normalize_json(found.call(*given, **kwargs))
    except BaseException:
        object.__setattr__(result, "status", Status.FAILED if ctx.attempt >= ctx.attempts_max else Status.READY)
        raise
    else:
        object.__setattr__(result, "_return_value", value)
        object.__setattr__(result, "status", Status.SUCCESSFUL)
        return value
    finally:
        if result.is_finished:
            object.__setattr__(result, "finished_at", timezone.now())
            signals.task_finished.send(sender, task_result=result)
        close_old_connections()


def record_attempt(ctx: SyncContext, result: Any) -> None:
    """Store when the task was first and last attempted, and by which workers."""
    now = timezone.now()
    before = ctx.cursor or {"started_at": now.isoformat(), "workers": []}
    workers = [*before["workers"], f"{socket.gethostname()}:{os.getpid()}"]
    ctx.checkpoint({**before, "last_attempted_at": now.isoformat(), "workers": workers})
    object.__setattr__(result, "id", ctx.id)
    object.__setattr__(result, "status", Status.RUNNING)
    set_attempts(result, ctx.cursor)


def find_task(path: str) -> Any:
    """The task with this path. A module is imported only if it belongs to the project: a stored text must not be able
    to execute any other module."""
    module = path.rpartition(".")[0]
    if module not in sys.modules and not any(f"{module}.".startswith(f"{root}.") for root in project_packages()):
        text = f"{path}: is in no installed app; import its module in the `ready` method of one"
        raise Fail(text, code="unknown_task")
    try:
        found = import_string(path)
    except ImportError as error:
        # A worker with a newer version of the code may know it. Waiting uses no attempt.
        logger.warning("the task %s is unknown here (%s); it waits for another worker", path, error)
        raise Snooze(UNKNOWN_SECONDS) from error
    if not isinstance(found, base.Task):
        raise Fail(f"{path}: is not a task; decorate it with @task", code="unknown_task")
    return found


def project_packages() -> set[str]:
    """The installed apps, and the packages of the settings and of the URLs."""
    modules = (str(settings.SETTINGS_MODULE), getattr(settings, "ROOT_URLCONF", ""))
    return {config.name for config in apps.get_app_configs()} | {name.partition(".")[0] for name in modules if name}


# -- results ----------------------------------------------------------------------------------------------------------


def new_result(task: Any, backend: str, args: Any, kwargs: Any) -> Any:
    return base.TaskResult(
        task=task, id="", status=Status.READY, enqueued_at=None, started_at=None, finished_at=None,
        last_attempted_at=None, args=args, kwargs=kwargs, backend=backend, errors=[], worker_ids=[],
    )  # fmt: skip


def result_from_job(job: JobRecord, errors: list[ErrorRecord]) -> Any:
    given = job.payload
    run_after = given.get("run_after") and datetime.fromisoformat(given["run_after"])
    task = import_string(given["task"]).using(
        backend=given["backend"], queue_name=job.queue, priority=job.priority, run_after=run_after
    )
    result = new_result(task, given["backend"], given["args"], given["kwargs"])
    values = {
        "id": job.id,
        "status": STATUS[job.state],
        "enqueued_at": local(job.created_at),
        "finished_at": None if job.finished_at is None else local(job.finished_at),
        "errors": [task_error(error) for error in errors],
        "_return_value": job.result,
    }
    for name, value in values.items():
        object.__setattr__(result, name, value)
    if job.state is State.CANCELLED:
        path = "concurrent.futures._base.CancelledError"
        result.errors.append(base.TaskError(exception_class_path=path, traceback="the job was cancelled"))
    if job.cursor is not None:
        set_attempts(result, job.cursor)
    return result


def set_attempts(result: Any, cursor: Mapping[str, Any]) -> None:
    """From the cursor that `record_attempt` has stored."""
    for name in ("started_at", "last_attempted_at"):
        object.__setattr__(result, name, datetime.fromisoformat(cursor[name]))
    object.__setattr__(result, "worker_ids", cursor["workers"])


def task_error(error: ErrorRecord) -> Any:
    """The class's module is in the traceback, whose last such line names the error."""
    lines = re.findall(rf"^((?:\w+\.)+){re.escape(error.code)}(?::|$)", error.traceback, re.MULTILINE)
    if lines:
        path = f"{lines[-1]}{error.code}"
    else:
        path = f"builtins.{error.code}" if hasattr(builtins, error.code) else OTHER_ERROR
    return base.TaskError(exception_class_path=path, traceback=error.traceback or f"{error.code}: {error.message}")


def local(instant: int) -> datetime:
    """A time as Django's settings want it."""
    at = datetime.fromtimestamp(instant / SECOND_US, UTC)
    return at if settings.USE_TZ else timezone.make_naive(at)


# -- settings ---------------------------------------------------------------------------------------------------------


def database_url(database: Mapping[str, Any], alias: str) -> str:
    """The URL of a database of Django."""
    if not database["ENGINE"].endswith(("postgresql", "postgis")):
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]: the database is not PostgreSQL ({database['ENGINE']}); name a store, for example "
            '"OPTIONS": {"url": "sqlite:///tasks.db"}'
        )
    options = {name: value for name, value in database["OPTIONS"].items() if name in LIBPQ}
    host = str(database["HOST"])
    if host.startswith("/"):  # the folder of a socket
        options["host"], host = host, ""
    login = quote(database["USER"], safe="") + (
        f":{quote(database['PASSWORD'], safe='')}" if database["PASSWORD"] else ""
    )
    port = f":{database['PORT']}" if database["PORT"] else ""
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql://{login}{'@' if login else ''}{host}{port}/{quote(str(database['NAME']), safe='')}{query}"


def leaseway_backends() -> list[LeasewayBackend]:
    return [backend for backend in framework.task_backends.all() if isinstance(backend, LeasewayBackend)]


def __getattr__(name: str) -> Any:
    """`leaseway work leaseway.django:app` works for the tasks of the project that DJANGO_SETTINGS_MODULE names."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import django

        django.setup()
    except ImproperlyConfigured as error:
        raise UsageError(f"Django is not configured: {error}") from error
    found = sorted(leaseway_backends(), key=lambda backend: backend.alias != "default")
    if not found:
        raise UsageError(f"no backend in settings.TASKS is {__name__}.{LeasewayBackend.__name__}")
    return found[0].app
