"""Virtual time: the loops that every other promise of the simulation depends on."""

import asyncio

import pytest

from leaseway.simulation.loop import HostLoop
from leaseway.virtual_time.loop import Deadlock, SimLoop, run_now


@pytest.fixture
def world() -> SimLoop:
    return SimLoop()


def run_until(world: SimLoop, seconds: float) -> None:
    world.call_at(seconds, world.stop)
    world.run_forever()


def test_sleeping_costs_no_time(world: SimLoop) -> None:
    """A campaign of thousands of seeds covers days of virtual time."""
    world.run_until_complete(asyncio.sleep(86_400))
    assert world.time() == pytest.approx(86_400)
    world.close()


def test_waiting_for_nothing_is_an_error(world: SimLoop) -> None:
    """A lost notification must fail the run, not hang it."""
    with pytest.raises(Deadlock):
        world.run_until_complete(world.create_future())
    world.close()


def test_timers_fire_in_their_order_and_at_their_time(world: SimLoop) -> None:
    """Every result of the simulation depends on this order."""
    seen: list[tuple[str, float]] = []

    def speak(name: str) -> None:
        seen.append((name, world.time()))

    for name, seconds in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
        world.call_later(seconds, speak, name)
    run_until(world, 5)
    assert seen == [("early", 1.0), ("middle", 2.0), ("late", 3.0)]
    world.close()


def test_an_executor_runs_inline(world: SimLoop) -> None:
    """A thread would bring back real time and a random order."""

    async def main() -> str:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: "here")

    assert run_now_in(world, main) == "here"
    with pytest.raises(ZeroDivisionError):
        world.run_until_complete(asyncio.to_thread(lambda: 1 / 0))
    world.close()


def run_now_in(world: SimLoop, main: object) -> object:
    async def outer() -> object:
        return run_now(main())  # type: ignore[operator]

    return world.run_until_complete(outer())


def test_a_coroutine_that_waits_cannot_be_run_at_once(world: SimLoop) -> None:
    """Time must not advance in the middle of the store's transaction."""
    with pytest.raises(RuntimeError, match="waits for something"):
        run_now_in(world, lambda: asyncio.sleep(1))
    world.close()


# -- processes ------------------------------------------------------------------------------------------------------


async def tick(seen: list[float], every: float = 1.0) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(every)
        seen.append(loop.time())


def test_two_processes_share_one_time(world: SimLoop) -> None:
    """Leases are compared between processes, so their clocks must advance together."""
    first, second = HostLoop(world), HostLoop(world)
    seen: list[tuple[str, float]] = []

    async def speak(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    first.start(speak("first", 2.0))
    second.start(speak("second", 1.0))
    run_until(world, 3)
    assert seen == [("second", 1.0), ("first", 2.0)]
    bury(world, first, second)


def test_a_frozen_process_does_nothing_and_then_everything_at_once(world: SimLoop) -> None:
    """SIGSTOP: its timers become overdue, its messages queue up, and all of them run at SIGCONT."""
    host = HostLoop(world)
    seen: list[float] = []
    host.start(tick(seen))
    world.call_at(1.5, host.freeze)
    world.call_at(3.0, host.call_soon_threadsafe, seen.append, -1.0)
    world.call_at(5.25, host.thaw)
    run_until(world, 7)
    assert seen == [1.0, -1.0, 5.25, 6.25]
    bury(world, host)


def test_a_killed_process_never_cleans_up(world: SimLoop) -> None:
    """kill -9 runs no finally block; one that wrote to the store would hide what the store must survive."""
    host = HostLoop(world)
    seen: list[str] = []

    async def careful() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            seen.append("cleaned up")

    host.start(careful())
    world.call_at(1.0, host.freeze)
    run_until(world, 60)
    assert seen == []
    bury(world, host)


def test_timeouts_of_a_process_are_virtual_too(world: SimLoop) -> None:
    """A timeout in real time would make runs slow and their results random."""
    host = HostLoop(world)
    seen: list[float] = []

    async def impatient() -> None:
        try:
            async with asyncio.timeout(2.5):
                await asyncio.sleep(100)
        except TimeoutError:
            seen.append(asyncio.get_running_loop().time())

    host.start(impatient())
    run_until(world, 4)
    assert seen == [2.5]
    bury(world, host)


def test_a_message_wakes_a_process_that_waits_for_nothing_else(world: SimLoop) -> None:
    """A process that sleeps through its reply would look like a deadlock."""
    host = HostLoop(world)
    seen: list[float] = []

    async def wait(event: asyncio.Event) -> None:
        await event.wait()
        seen.append(asyncio.get_running_loop().time())

    event = asyncio.Event()
    host.start(wait(event))
    world.call_at(2.0, host.call_soon_threadsafe, event.set)
    run_until(world, 3)
    assert seen == [2.0]
    bury(world, host)


def bury(world: SimLoop, *hosts: HostLoop) -> None:
    for host in hosts:
        host.bury()
    world.close()
