"""How often a provider answers 429 to a whole fleet: jobs in real workers, each with one request through `ctx.http`.

    python -m benchmarks.limits.refusals STORE LIMITS PROVIDER     one worker; LIMITS may be empty: the jobs' store

The provider counts with a log of arrivals, and refuses every request over its limit in any window.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from leaseway import App, Context, JobHandle, Limit
from leaseway.telemetry.log import NoEvents
from leaseway.testing.provider import Provider, provider
from leaseway.testing.valkey import valkey_server

RATE = "1000 per 4 s"
PROCESSES, HANDLERS = 4, 16
SECONDS_MAX = 150.0


class Refused(NamedTuple):
    arrived: int
    refused: int
    seconds: float

    @property
    def per_10_000(self) -> float:
        return 10_000 * self.refused / max(self.arrived, 1)


def app_at(store: str, limits: str) -> tuple[App, JobHandle[Any]]:
    app = App(store, limits=limits or None, events=NoEvents())

    @app.job(limits=[Limit("maps", RATE)])
    async def fetch(ctx: Context, url: str) -> None:
        await ctx.http.get(url)

    return app, fetch


def refused_with(limits_store: str, count: int) -> Refused:
    """Jobs in SQLite, limits in SQLite or in Valkey."""
    with places(limits_store) as (store, limits):
        return asyncio.run(refused(store, limits, count))


@contextmanager
def places(limits_store: str) -> Iterator[tuple[str, str]]:
    in_valkey = limits_store == "Valkey"
    with (
        TemporaryDirectory(prefix="leaseway-benchmarks-") as folder,
        valkey_server() if in_valkey else nullcontext() as it,
    ):
        yield f"sqlite:///{Path(folder) / 'work.db'}", it.url if it else ""


async def refused(store: str, limits: str, count: int) -> Refused:
    async with provider([RATE]) as it:
        app, fetch = app_at(store, limits)
        await fetch.submit_many([{"url": it.url}] * count)
        await app.close()
        command = [sys.executable, "-m", "benchmarks.limits.refusals", store, limits, it.url]
        workers = [await asyncio.create_subprocess_exec(*command) for _ in range(PROCESSES)]
        try:
            async with asyncio.timeout(SECONDS_MAX):
                codes = [await worker.wait() for worker in workers]
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                    await worker.wait()
        if any(codes):
            raise RuntimeError(f"a worker ended with {max(codes)}")
        return seen_by(it)


def seen_by(it: Provider) -> Refused:
    times_ns = [arrival.at_ns for arrival in it.arrivals]
    return Refused(len(times_ns), it.refused, (max(times_ns) - min(times_ns)) / 1e9)


if __name__ == "__main__":
    app_at(sys.argv[1], sys.argv[2])[0].work(concurrency=HANDLERS, until_empty=True)
