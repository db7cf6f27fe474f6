"""The backend for Django's tasks framework keeps what the framework promises, and what leaseway promises."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.frameworks.callers import django_database
from tests.stores.postgres_support import new_name, until

from leaseway.testing.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(server: PostgresServer) -> Iterator[Any]:
    """The module with the tasks, in a project whose database is this server, with a schema of its own."""
    with django_database(server.url), django_tasks({"schema": new_name()}):
        from tests.frameworks import django_project

        django_project.ran.clear()
        django_project.tries.clear()
        yield django_project
        backend().app.close_sync()


def django_tasks(options: dict[str, Any], **params: Any) -> Any:
    from django.test import override_settings

    made = {"BACKEND": "leaseway.django.LeasewayBackend", "QUEUES": ["default", "mail"], "OPTIONS": options} | params
    return override_settings(TASKS={"default": made})


def backend() -> Any:
    from leaseway.django import framework

    return framework.task_backends["default"]


def work() -> None:
    app = backend().app
    app.sync(app.run_worker(until_empty=True))


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_task_runs_and_returns(project: Any) -> None:
    """The states and times that code written for any backend reads."""
    result = project.add.enqueue(1, b=2)
    assert (result.status, result.is_finished, result.attempts) == ("READY", False, 0)
    assert (result.args, result.kwargs, result.backend) == ([1], {"b": 2}, "default")
    with pytest.raises(ValueError, match="not finished"):
        _ = refreshed(result).return_value
    assert result.started_at is result.finished_at is None
    work()
    found = project.add.get_result(result.id)
    assert (found.status, found.return_value, found.attempts, found.errors) == ("SUCCESSFUL", 3, 1, [])
    assert found.enqueued_at <= found.started_at <= found.last_attempted_at <= found.finished_at
    assert found.started_at.tzinfo is not None
    assert found.task == project.add
    assert refreshed(result).return_value == 3


async def test_async_code_enqueues_and_reads(project: Any) -> None:
    """Async views use the methods that begin with a."""
    result = await project.greet.aenqueue("ada")
    await asyncio.to_thread(work)
    assert (await project.greet.aget_result(result.id)).return_value == {"hello": ["ada"]}
    await result.arefresh()
    assert result.status == "SUCCESSFUL"


def test_queue_priority_and_time_reach_the_job(project: Any) -> None:
    """They are the options of the framework that a backend may support."""
    from django.utils import timezone

    app = backend().app
    later = timezone.now() + timedelta(hours=1)
    result = project.greet.using(run_after=later, priority=-3).enqueue("ada")
    job = app.sync(app.find(result.id))
    assert (job.queue, job.priority, job.run_at) == ("mail", -3, int(later.timestamp() * 1_000_000))
    assert project.greet.get_result(result.id).task == project.greet.using(run_after=later, priority=-3)
    assert app.queues() == ("default", "mail")


@pytest.mark.parametrize(
    ("kind", "path"),
    [("own", "tests.frameworks.django_project.Broken"), ("builtin", "builtins.ValueError")],
)
def test_a_task_that_raises_fails_at_once(project: Any, kind: str, path: str) -> None:
    """As in other backends: a task that is not idempotent must not run twice unless the settings say so."""
    result = project.fail.enqueue(kind)
    work()
    (error,) = refreshed(result).errors
    assert (result.status, result.attempts, error.exception_class_path) == ("FAILED", 1, path)
    assert issubclass(error.exception_class, Exception)
    assert "in fail" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_attempts_of_the_settings_repeat_a_task(project: Any, server: PostgresServer) -> None:
    """The context counts attempts, and the result keeps the errors of the earlier ones."""
    project.tries.append(1)
    with django_tasks({"schema": new_name(), "attempts": 2}):
        result = project.look.enqueue()
        work()
        found = refreshed(result)
        value = found.return_value
        backend().app.close_sync()
    assert (value["id"], value["attempt"], value["status"]) == (result.id, 2, "RUNNING")
    assert (found.attempts, [error.exception_class for error in found.errors]) == (2, [ConnectionError])
    assert len(found.worker_ids) == 2


def test_a_cancelled_job_is_a_failed_task(project: Any) -> None:
    """The framework knows four states."""
    result = project.add.enqueue(1)
    app = backend().app
    app.sync(app.world.store.operations.cancel(result.id))
    assert refreshed(result).status == "FAILED"
    assert result.errors[0].exception_class.__name__ == "CancelledError"


def test_an_unknown_result_has_the_error_of_the_framework(project: Any) -> None:
    """Also the id of a job that is not a task."""
    from leaseway.django import Missing

    with pytest.raises(Missing):
        project.add.get_result("nothing")
    app = backend().app

    other = app.job(name="other")(lambda: None)
    id_ = other.submit_sync().id
    with pytest.raises(Missing):
        project.add.get_result(id_)


def test_values_that_are_not_json_are_refused(project: Any) -> None:
    """The framework promises it: arguments when they are enqueued, return values when the task ends."""
    with pytest.raises(TypeError, match="Unsupported type"):
        project.add.enqueue(object())
    results = {kind: project.answer.enqueue(kind) for kind in ("set", "bytes", "tuple")}
    work()
    assert refreshed(results["set"]).errors[0].exception_class is TypeError
    assert refreshed(results["bytes"]).return_value == "x"
    assert refreshed(results["tuple"]).return_value == [1, 2]


def test_a_queue_that_the_settings_do_not_name_is_refused(project: Any) -> None:
    """No worker would serve it."""
    with pytest.raises(Exception, match="Queue 'other' is not valid"):
        project.add.using(queue_name="other").enqueue(1)


# -- transactions -----------------------------------------------------------------------------------------------------


def test_a_task_exists_only_if_the_transaction_commits(project: Any) -> None:
    """There must be no order without its task, and no task without its order."""
    from django.db import transaction

    from leaseway.django import Missing

    with transaction.atomic():
        kept = project.add.enqueue(1)
        with pytest.raises(Missing):
            project.add.get_result(kept.id)
    with transaction.atomic():
        lost = project.add.enqueue(2)
        transaction.set_rollback(True)
    assert refreshed(kept).status == "READY"
    with pytest.raises(Missing):
        project.add.get_result(lost.id)
    work()
    assert project.ran == [(1, 0)]


def test_a_transaction_without_atomic_decides_as_well(project: Any) -> None:
    """Programs may switch autocommit off and commit by themselves."""
    from django.db import transaction

    transaction.set_autocommit(False)
    project.add.enqueue(1)
    transaction.rollback()
    project.add.enqueue(2)
    transaction.commit()
    transaction.set_autocommit(True)
    work()
    assert project.ran == [(2, 0)]


def test_a_store_elsewhere_gets_the_task_after_the_commit(project: Any, tmp_path: Any) -> None:
    """A worker must not start before the rows that the task reads are committed."""
    from django.db import transaction

    from leaseway.django import Missing

    with django_tasks({"url": f"sqlite:///{tmp_path}/tasks.db"}):
        with transaction.atomic():
            kept = project.add.enqueue(1)
            with pytest.raises(Missing):
                project.add.get_result(kept.id)
        with transaction.atomic():
            lost = project.add.enqueue(2)
            transaction.set_rollback(True)
        assert refreshed(kept).status == "READY"
        with pytest.raises(Missing):
            project.add.get_result(lost.id)
        work()
        assert refreshed(kept).return_value == 1
        backend().app.close_sync()


# -- workers ----------------------------------------------------------------------------------------------------------


def submitted(**arguments: Any) -> Any:
    """The job of a payload that somebody wrote into the store."""
    app = backend().app
    given = {"task": "", "args": [], "kwargs": {}, "backend": "default", **arguments}
    return app.sync(app.submit(app.bind("django.task", given, attempts=1)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests.frameworks.django_project.plain", "is not a task"),
        ("os.system", "is not a task"),
        ("antigravity.fly", "is in no installed app"),
        ("nothing", "is in no installed app"),
    ],
)
def test_a_stored_name_cannot_run_anything_but_a_task(project: Any, path: str, text: str) -> None:
    """Everyone who may submit jobs can write a name. Importing a module already executes it."""
    id_ = submitted(task=path).id
    work()
    app = backend().app
    (error,) = app.sync(app.world.store.reads.errors(id_))
    assert (error.code, text in error.message) == ("unknown_task", True)
    assert project.ran == []
    assert "antigravity" not in sys.modules


def test_a_task_of_a_newer_version_waits_for_its_worker(project: Any) -> None:
    """During a rolling deploy, an old worker must not use up the attempt of a task that it does not have yet."""
    from leaseway.worker.loop import Worker

    id_ = submitted(task="tests.frameworks.django_project.of_tomorrow").id
    app = backend().app

    async def is_delayed() -> bool:
        job = await app.find(id_)
        return bool(job.run_at > job.created_at)

    async def one_turn() -> None:
        worker: Worker = app.worker()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(app.run_worker(worker))
            await until(is_delayed)
            worker.drain()
            await running

    app.sync(one_turn())
    job = app.sync(app.find(id_))
    assert (job.state, job.attempts) == ("pending", 0)


def test_signals_are_sent(project: Any) -> None:
    """Monitoring packages listen to them."""
    from leaseway.django import signals

    seen: list[tuple[str, str]] = []

    def receivers(name: str) -> Any:
        def receive(task_result: Any, **_: Any) -> None:
            seen.append((name, task_result.status))

        return receive

    kept = {name: receivers(name) for name in ("task_enqueued", "task_started", "task_finished")}
    for name, receive in kept.items():
        getattr(signals, name).connect(receive)
    project.add.enqueue(1)
    project.fail.enqueue("own")
    work()
    for name, receive in kept.items():
        getattr(signals, name).disconnect(receive)
    enqueued = [("task_enqueued", "READY")] * 2
    assert seen[:2] == enqueued
    assert sorted(seen[2:]) == [
        ("task_finished", "FAILED"), ("task_finished", "SUCCESSFUL"), ("task_started", "RUNNING"),
        ("task_started", "RUNNING"),
    ]  # fmt: skip


def test_all_threads_share_one_app(project: Any) -> None:
    """Django makes a backend for each thread; each app has a thread and connections of its own."""
    import threading

    apps: list[Any] = [backend().app]
    thread = threading.Thread(target=lambda: apps.append(backend().app))
    thread.start()
    thread.join()
    assert apps[0] is apps[1]


# -- settings ---------------------------------------------------------------------------------------------------------


def test_wrong_settings_are_named(project: Any) -> None:
    """At the earliest place that can know."""
    from django.core.exceptions import ImproperlyConfigured

    with django_tasks({"urll": "x"}), pytest.raises(ImproperlyConfigured, match="no 'urll'; it has attempts"):
        backend()
    with django_tasks({"attempts": 0}), pytest.raises(ImproperlyConfigured, match="attempts: must be between"):
        backend()


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "Django is not configured"),
        ({"DJANGO_SETTINGS_MODULE": "tests.frameworks.settings_without_tasks"}, "no backend in settings.TASKS"),
    ],
)
def test_a_worker_without_the_settings_says_so(variables: dict[str, str], text: str) -> None:
    """It is the first mistake of everybody who starts a worker outside of manage.py."""
    kept = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-m", "leaseway.cli", "work", "leaseway.django:app"]
    answer = subprocess.run(command, env=kept | variables, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (answer.returncode, text in answer.stderr) == (2, True), answer.stderr


def test_the_url_of_a_django_database() -> None:
    """Names and passwords may contain any character."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.frameworks.django_settings"
    from django.core.exceptions import ImproperlyConfigured

    from leaseway.django import database_url

    full = {
        "ENGINE": "django.db.backends.postgresql", "NAME": "my shop", "USER": "a@b", "PASSWORD": "p/:?", "HOST": "db",
        "PORT": "5433", "OPTIONS": {"sslmode": "verify-full", "pool": True},
    }  # fmt: skip
    assert database_url(full, "default") == "postgresql://a%40b:p%2F%3A%3F@db:5433/my%20shop?sslmode=verify-full"
    bare = full | {"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "/run/postgresql", "PORT": "", "OPTIONS": {}}
    assert database_url(bare, "default") == "postgresql:///shop?host=%2Frun%2Fpostgresql"
    with pytest.raises(ImproperlyConfigured, match=r"sqlite:///tasks\.db"):
        database_url(full | {"ENGINE": "django.db.backends.sqlite3"}, "default")
