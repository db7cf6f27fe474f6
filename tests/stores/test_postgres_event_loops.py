"""A store in several event loops, after closing, and after a fork."""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from tests.stores.postgres_support import SOON_SECONDS, address, connected, new_name, opened, until, value

from leaseway import App
from leaseway.domain.errors import LeasewayError, UsageError
from leaseway.stores.postgres.store import PostgresStore
from leaseway.testing.job_store_contract.fixtures import ContractWorker, counts, done, id_of, ids_in, new_job
from leaseway.testing.postgres import PostgresServer

T = TypeVar("T")


def in_a_thread(call: Callable[[], Awaitable[T]]) -> T:
    """Run it in an event loop of its own, like the lease renewal of a worker."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        async def wait() -> T:
            return await call()

        try:
            answers.append(asyncio.run(wait()))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the other thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(SOON_SECONDS)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
    return answers[0]


async def sessions(server: PostgresServer, role: str) -> int:
    return int(await value(server, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", role))


async def no_sessions(server: PostgresServer, role: str) -> None:
    """Wait until the server has ended all sessions of the role."""

    async def are_gone() -> bool:
        return await sessions(server, role) == 0

    await until(are_gone)


@pytest.fixture
async def role(server: PostgresServer) -> str:
    """A superuser of its own, so that its sessions can be counted."""
    name = new_name("role")
    await value(server, f"CREATE ROLE {name} LOGIN SUPERUSER")
    return name


def collected() -> list[str]:
    """Collect the warnings about objects that were not closed."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gc.collect()
    return [str(warning.message) for warning in found]


async def test_a_loop_that_ends_closes_its_connections(server: PostgresServer, role: str) -> None:
    """Blocking programs call `asyncio.run` repeatedly; each call would leave sessions on the server."""
    store = PostgresStore(address(server, new_name(), role))

    async def use() -> None:
        await store.open()
        await asyncio.gather(*(store.jobs.submit([new_job(number)]) for number in range(5)))
        await store.notifications.wait(0.001)

    for _ in range(3):
        await asyncio.to_thread(in_a_thread, use)
    await no_sessions(server, role)
    assert collected() == []


async def test_two_loops_use_one_store_at_the_same_time(server: PostgresServer, role: str) -> None:
    """The loops of the worker and of its lease renewal: a connection must only be used in its own loop."""
    async with opened(server, user=role) as store:
        await store.jobs.submit([new_job(number) for number in range(200)])

        async def work() -> int:
            worker, worked = ContractWorker(store, f"worker-{threading.get_ident()}"), 0
            while leases := await worker.claim(7):
                await worker.settle(*map(done, leases))
                worked += len(leases)
            return worked

        others = [asyncio.to_thread(in_a_thread, work) for _ in range(2)]
        assert sum(await asyncio.gather(work(), *others)) == 200
        assert await counts(store) == {"done": 200}
    await no_sessions(server, role)
    assert collected() == []


@pytest.mark.parametrize("verb", ["submit", "wait"])
async def test_closing_the_store_in_one_loop_ends_the_connections_of_the_others(
    server: PostgresServer, role: str, verb: str
) -> None:
    """The loop of blocking callers lives as long as the process and does not close its own."""
    store = PostgresStore(address(server, new_name(), role))
    await store.open()
    used, closed = threading.Event(), threading.Event()

    async def is_closed() -> bool:
        return closed.is_set()

    async def has_two() -> bool:
        """One connection per loop; the listening connection is opened in the background and may come later."""
        return await sessions(server, role) >= 2

    async def use() -> None:
        if verb == "wait":
            await store.notifications.wait(0.5)
        else:
            await store.jobs.submit([new_job(1)])
        used.set()
        await until(is_closed)

    thread = asyncio.ensure_future(asyncio.to_thread(in_a_thread, use))
    try:
        await asyncio.to_thread(used.wait, SOON_SECONDS)
        await until(has_two)
        await store.close()
        await no_sessions(server, role)
    finally:
        closed.set()
        await thread
    assert collected() == []


async def test_a_store_that_was_not_closed_is_closed_with_its_loop(server: PostgresServer, role: str) -> None:
    """A program that does not call close loses nothing and sees no warning."""

    async def use() -> None:
        store = PostgresStore(address(server, new_name(), role))
        await store.open()
        await store.jobs.submit([new_job(1)])
        await store.notifications.wait(0.001)

    await asyncio.to_thread(in_a_thread, use)
    await no_sessions(server, role)
    assert collected() == []


async def test_a_loop_that_ends_during_a_call_leaves_no_session(server: PostgresServer, role: str) -> None:
    """After Ctrl-C, asyncio cancels the running calls."""
    store = PostgresStore(address(server, new_name(), role))

    async def use() -> None:
        await store.open()
        sleeping = [asyncio.ensure_future(store.connections.call("SELECT pg_sleep(60)")) for _ in range(3)]
        await store.reads.now()
        assert not any(call.done() for call in sleeping)

    await asyncio.to_thread(in_a_thread, use)
    async with connected(server) as connection:
        await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
    await no_sessions(server, role)
    assert collected() == []


async def test_a_call_on_a_closed_store_leaves_no_session(server: PostgresServer, role: str) -> None:
    """A late call gets an answer or an error of leaseway."""
    store = PostgresStore(address(server, new_name(), role))
    await store.open()
    await store.close()
    (answer,) = await asyncio.gather(store.jobs.submit([new_job(1)]), return_exceptions=True)
    if isinstance(answer, BaseException):
        assert isinstance(answer, LeasewayError)
        assert "closed" in str(answer)
    await store.close()
    await no_sessions(server, role)
    assert collected() == []


async def test_closing_twice_or_before_opening_does_nothing(server: PostgresServer) -> None:
    """Cleanup code runs whatever has happened before."""
    store = PostgresStore(address(server, new_name()))
    await store.close()
    await store.open()
    await store.close()
    await store.close()


async def test_a_closed_app_can_be_opened_again(server: PostgresServer) -> None:
    """Test suites of users open and close one app for every test, each in another loop."""
    app = App(address(server, new_name()))

    @app.job
    async def count() -> None: ...

    async def use() -> None:
        async with app:
            await count.submit()

    for _ in range(3):
        await asyncio.to_thread(in_a_thread, use)
    async with app:
        assert (await (await app.store()).reads.lanes())[0].ready == 3


async def test_blocking_calls_of_an_app_share_one_loop(server: PostgresServer, role: str) -> None:
    """submit_sync in many threads of a web server must not open a session per thread."""
    app = App(address(server, new_name(), role))

    @app.job
    async def count(n: int) -> None: ...

    def submit() -> None:
        threads = [threading.Thread(target=lambda n=n: count.submit_sync(n=n)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_SECONDS)
        assert app.sync(app.store()) is not None

    await asyncio.to_thread(submit)
    assert await sessions(server, role) <= 10
    await asyncio.to_thread(app.close_sync)
    await no_sessions(server, role)


def forked(call: Callable[[], Any]) -> str:
    """The name of the error in the child of a fork, or an empty text."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a warning of Python 3.12 about forking with threads
        pid = os.fork()
    if not pid:
        try:
            call()
            os.write(writing, b"fine")
        except BaseException as error:  # noqa: BLE001 - the parent reads it
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_a_forked_app_raises_an_error_and_its_parent_continues(server: PostgresServer) -> None:
    """Two processes that use one connection corrupt it for both."""
    app = App(address(server, new_name()))

    @app.job
    async def count() -> None: ...

    with asyncio.Runner() as runner:
        runner.run(count.submit())
        said = forked(lambda: asyncio.run(count.submit()))
        assert said.startswith(UsageError.__name__)
        assert "fork before you open it" in said
        runner.run(count.submit())

        async def lanes() -> int:
            ready = (await (await app.store()).reads.lanes())[0].ready
            await app.close()
            return ready

        assert runner.run(lanes()) == 2


def test_an_app_that_was_not_used_before_a_fork_works_in_both_processes(server: PostgresServer) -> None:
    """Web servers import the application first and fork then."""
    app = App(address(server, new_name()))

    @app.job
    async def count() -> None: ...

    async def submit_and_close() -> None:
        await count.submit()
        await app.close()

    assert forked(lambda: asyncio.run(submit_and_close())) == "fine"
    asyncio.run(submit_and_close())

    async def lanes() -> int:
        async with app:
            return (await (await app.store()).reads.lanes())[0].ready

    assert asyncio.run(lanes()) == 2


def test_a_forked_store_does_not_use_the_connections_of_its_parent(server: PostgresServer) -> None:
    """Without an app, only the store itself can detect the fork."""
    store = PostgresStore(address(server, new_name()))
    with asyncio.Runner() as runner:
        runner.run(store.open())

        def use() -> None:
            asyncio.set_event_loop(None)
            asyncio.run(store.jobs.submit([new_job(1)]))

        said = forked(use)
        assert said == "fine" or said.split(":")[0].endswith(("Error", "Refused")), said
        runner.run(store.jobs.submit([new_job(2)]))
        expected = {id_of(2), id_of(1)} if said == "fine" else {id_of(2)}
        assert set(runner.run(ids_in(store))) == expected
        runner.run(store.close())
