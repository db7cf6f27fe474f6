"""Submit and run jobs, and say which step used the CPU: `python -m benchmarks.profile.worker STORE COUNT PROVIDER`.

`PROVIDER`: each job makes one call with `ctx.http`; an empty text: jobs do nothing. Waits for a line of its input
before each phase. Prints JSON: microseconds per job, by phase and step. The CPU of each thread is exact, from /proc.
Within the main thread it is divided by samples of its stack, taken by a timer of CPU time.
"""

import asyncio
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from leaseway import App, Context
from leaseway.bench.processes import ready
from leaseway.system import garbage_collected_rarely
from leaseway.telemetry.log import NoEvents

SAMPLE_SECONDS = 0.001
TASKS = Path("/proc/self/task")
MAIN, OTHERS = "event loop and the rest", "threads of the store"
STEPS = {
    "/aiohttp/": "HTTP library",
    "aiohttp_transport.py": "ctx.http",
    "worker/provider_http.py": "ctx.http",
    "worker/provider_calls.py": "ctx.http",
    "worker/calls/": "ctx.http",
    "domain/http.py": "ctx.http",
    "domain/kind.py": "decode arguments",
    "worker/submit.py": "submit",
    "worker/slots.py": "start and end an attempt",
    "worker/run_handler.py": "start and end an attempt",
    "worker/context.py": "start and end an attempt",
    "worker/settle.py": "settle",
    "domain/outcome.py": "settle",
    "leaseway/stores/": "exchange",
    "worker/loop.py": "exchange",
}
"""Part of the path of a file, and the step that its functions belong to. The innermost function decides."""

HANDLERS = ("noop", "call")


class Samples:
    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()

    def take(self, number: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code.co_filename.endswith("selectors.py"):
            return  # another thread used the CPU
        self.steps[step_of(frame)] += 1

    @contextmanager
    def taken(self) -> Iterator[None]:
        before = signal.signal(signal.SIGPROF, self.take)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


def step_of(frame: FrameType | None) -> str:
    while frame is not None:
        if frame.f_code.co_name in HANDLERS and frame.f_code.co_filename == __file__:
            return "handler"
        for part, step in STEPS.items():
            if part in frame.f_code.co_filename:
                return step
        frame = frame.f_back
    return MAIN


def cpu_ns() -> tuple[int, int]:
    """Of the main thread, and of all others."""
    own, main = 0, threading.main_thread().native_id
    others = 0
    for task in TASKS.iterdir():
        used = int((task / "schedstat").read_text().split()[0])
        own, others = (used, others) if int(task.name) == main else (own, others + used)
    return own, others


class Phase:
    """Divides what a phase used by the number of its jobs."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.us: dict[str, float] = {}

    @contextmanager
    def measured(self) -> Iterator[None]:
        samples, (own, others) = Samples(), cpu_ns()
        with samples.taken():
            yield
        own_after, others_after = cpu_ns()
        own_us, total = (own_after - own) / 1_000 / self._count, max(samples.steps.total(), 1)
        self.us = {step: own_us * taken / total for step, taken in samples.steps.most_common()}
        self.us[OTHERS] = (others_after - others) / 1_000 / self._count


async def profile(url: str, count: int, provider: str) -> dict[str, dict[str, float]]:
    app = App(url, events=NoEvents())

    @app.job
    async def noop(ctx: Context, q: str) -> None: ...

    @app.job
    async def call(ctx: Context, q: str) -> object:
        reply = await ctx.http.get(provider, params={"q": q})
        return reply.raise_for_status().json()

    job, submitted, ran = (call if provider else noop), Phase(count), Phase(count)
    async with app:
        await job.submit(q="Bern")  # creates the tables
        await ready()
        with submitted.measured():
            await job.submit_many([{"q": "Bern"}] * count)
        await ready()
        with garbage_collected_rarely(), ran.measured():
            await app.run_worker(app.worker(concurrency=64, until_empty=True))
    return {"submit": submitted.us, "run": ran.us}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(profile(sys.argv[1], int(sys.argv[2]), sys.argv[3]))))
