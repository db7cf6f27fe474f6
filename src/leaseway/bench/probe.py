"""One measurement in a process of its own: `python -m leaseway.bench.probe NAME FILE COUNT` prints JSON.

The process does nothing but what it measures, so that its memory is a worker's memory, and nothing is warm that would
be cold in real life. The store is the real one, with full durability; jobs do nothing and carry 200 bytes.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from leaseway.app import App, JobHandle
from leaseway.telemetry.log import NoEvents

PAYLOAD_BYTES = 200
TEXT = "x" * (PAYLOAD_BYTES - len('{"text":""}'))
SINGLE_SECONDS_MAX = 5.0
"""Submitting one by one ends here on a slow disk."""
IDLE_SECONDS = (0.030, 0.090)
"""Between two submissions the system comes to rest, for a while that follows no rhythm."""

Figures = dict[str, Any]


def app_at(file: Path) -> tuple[App, JobHandle[..., Any]]:
    app = App(f"sqlite:///{file}", events=NoEvents())

    @app.job
    async def noop(text: str) -> None:
        pass

    return app, noop


# -- submitting -----------------------------------------------------------------------------------------------------


TASKS = 16


async def submit_single(file: Path, count: int) -> Figures:
    app, noop = app_at(file)
    async with app:
        await noop.submit(text=TEXT)
        started_at = time.perf_counter()
        done, seconds = 0, 0.0
        while done < count and seconds < SINGLE_SECONDS_MAX:
            await noop.submit(text=TEXT)
            done += 1
            seconds = time.perf_counter() - started_at
        return {"count": done, "seconds": seconds}


async def submit_plain(file: Path, count: int) -> Figures:
    """The same from code that has no event loop."""
    app, noop = app_at(file)

    def submit_all() -> float:
        noop.submit_sync(text=TEXT)
        started_at = time.perf_counter()
        for _ in range(count):
            noop.submit_sync(text=TEXT)
        return time.perf_counter() - started_at

    seconds = await asyncio.to_thread(submit_all)
    await app.close()
    return {"count": count, "seconds": seconds}


async def submit_at_once(file: Path, count: int) -> Figures:
    """Sixteen tasks, each of which submits one by one, as a web server's requests do."""
    app, noop = app_at(file)

    async def submit_some() -> None:
        for _ in range(count // TASKS):
            await noop.submit(text=TEXT)

    async with app:
        await noop.submit(text=TEXT)
        started_at = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(submit_some())
        return {"count": count // TASKS * TASKS, "seconds": time.perf_counter() - started_at}


async def submit_bulk(file: Path, count: int) -> Figures:
    app, noop = app_at(file)
    async with app:
        await noop.submit_many([{"text": TEXT}])
        started_at = time.perf_counter()
        await noop.submit_many({"text": TEXT} for _ in range(count))
        return {"count": count, "seconds": time.perf_counter() - started_at}


# -- draining -------------------------------------------------------------------------------------------------------


async def drain(file: Path, count: int) -> Figures:
    """Run this many of the waiting jobs, and settle them all. More may wait; they stay."""
    app = App(f"sqlite:///{file}", events=NoEvents())
    left = count

    @app.job
    async def noop(text: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.drain()

    worker = app.worker()
    async with app:
        started_at = time.perf_counter()
        worked = await app.run_worker(worker)
        return {"count": worked.settled, "seconds": time.perf_counter() - started_at, "rss_mb": rss_mb()}


async def drain_until_empty(file: Path, count: int) -> Figures:
    """As one of several processes: start on a word from stdin, and take what one can get."""
    app, _ = app_at(file)
    async with app:
        print("ready", flush=True)
        sys.stdin.readline()
        worked = await app.run_worker(until_empty=True)
        return {"count": worked.settled, "given_back": worked.given_back}


def rss_mb() -> float:
    """The most memory that this process ever had."""
    # Not ru_maxrss on Linux: a child inherits its parent's there.
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


# -- picking up -----------------------------------------------------------------------------------------------------


class Pickup:
    """Jobs that know when their submission was called for, and a worker that ends after so many of them."""

    def __init__(self, file: Path, count: int) -> None:
        self._count = count
        self._waits_ms: list[float] = []
        self.app = App(f"sqlite:///{file}", events=NoEvents())
        self._job = self.app.job(self.note)
        self._worker = self.app.worker()

    async def note(self, sent_ns: int, text: str) -> None:
        # One clock for all processes of a machine.
        self._waits_ms.append((time.monotonic_ns() - sent_ns) / 1e6)
        if len(self._waits_ms) == self._count:
            self._worker.drain()

    async def submit(self) -> None:
        """Each from rest: what a submission costs is part of the time."""
        chance = random.Random(self._count)
        for _ in range(self._count):
            await asyncio.sleep(chance.uniform(*IDLE_SECONDS))
            await self._job.submit(sent_ns=time.monotonic_ns(), text=TEXT)

    async def work(self) -> Figures:
        await self.app.run_worker(self._worker)
        return {"waits_ms": self._waits_ms}


async def pickup_same_process(file: Path, count: int) -> Figures:
    pickup = Pickup(file, count)
    async with pickup.app, asyncio.TaskGroup() as group:
        worked = group.create_task(pickup.work())
        group.create_task(pickup.submit())
    return worked.result()


async def pickup_other_process(file: Path, count: int) -> Figures:
    pickup = Pickup(file, count)
    async with pickup.app:
        worker = await started("pickup_worker", file, count)
        await pickup.submit()
        text, _ = await worker.communicate()
    return decoded(text)


async def pickup_worker(file: Path, count: int) -> Figures:
    pickup = Pickup(file, count)
    async with pickup.app:
        print("ready", flush=True)
        return await pickup.work()


# -- processes ------------------------------------------------------------------------------------------------------


async def started(name: str, file: Path, count: int) -> asyncio.subprocess.Process:
    """Another probe, as soon as it is ready."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command(name, file, count), stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    await process.stdout.readline()
    return process


def command(name: str, file: Path, count: int) -> list[str]:
    return [sys.executable, "-m", "leaseway.bench.probe", name, str(file), str(count)]


def probed(name: str, file: Path, count: int) -> Figures:
    """The figures of a probe, measured in a new process."""
    ran = subprocess.run(command(name, file, count), stdout=subprocess.PIPE, check=True)
    return decoded(ran.stdout)


def decoded(text: bytes) -> Figures:
    figures: Figures = json.loads(text)
    return figures


PROBES: dict[str, Callable[[Path, int], Awaitable[Figures]]] = {
    probe.__name__: probe
    for probe in (
        *(submit_single, submit_plain, submit_at_once, submit_bulk, drain, drain_until_empty),
        *(pickup_same_process, pickup_other_process, pickup_worker),
    )
}


async def main(name: str, file: str, count: str) -> None:
    print(json.dumps(await PROBES[name](Path(file), int(count))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
