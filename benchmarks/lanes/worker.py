"""Jobs in many lanes: `python -m benchmarks.lanes.worker close|fill|drain STORE LANES JOBS` prints JSON.

    close    submit one job to each of so many lanes whose limits are used up, and close these lanes. The store opens
             them again after a minute, and a worker closes them again
    fill     submit so many jobs, spread evenly over so many lanes
    drain    run so many of them with one worker of default settings; the others keep waiting. A job makes one call,
             which takes no time

Every account is a lane, because it has a limit of its own that never refuses: `Limit("mail:{account}", …)`. Time and
CPU count from a job after the first ones to the last one. The CPU is that of this process with all its threads.
"""

import asyncio
import json
import sys
import time
from typing import Any

from leaseway import App, Context, Limit
from leaseway.bench.processes import Figures
from leaseway.domain.exchange import CLOSED_US_MAX, GATES_MAX, Closing, Exchange, ExchangeReply, Gate, Wants
from leaseway.domain.ids import WorkerId
from leaseway.domain.job import UNNAMED_TENANT
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import Needs, render_needs
from leaseway.system import SystemIds, garbage_collected_rarely
from leaseway.telemetry.log import NoEvents

FIRST = 500
"""Jobs that are not timed."""
TEXT = "x" * 170
CLOSER = WorkerId("bench:0:close")


async def close(url: str, lanes: int, _: int) -> Figures:
    app, begun = App(url, events=NoEvents()), time.perf_counter()
    wait = used_up(app)
    async with app:
        await wait.submit_many({"account": number, "text": TEXT} for number in range(lanes))
        jobs, reply = (await app.store()).jobs, ExchangeReply()
        for first in range(0, lanes, GATES_MAX):
            gates = [used_up_gate(number) for number in range(first, min(first + GATES_MAX, lanes))]
            closings = tuple(Closing(gate, CLOSED_US_MAX, "used up") for gate in gates)
            wants = Wants(("default",), 1, SystemIds().token(), closed=closings)
            reply = await jobs.exchange(Exchange(CLOSER, wants=wants))
    if reply.gated or reply.leases:
        raise RuntimeError(f"{len(reply.gated):,} of {lanes:,} lanes are open")
    return {"count": lanes, "seconds": time.perf_counter() - begun}


def used_up(app: App) -> Any:
    @app.job(limits=[Limit("full:{account}", "1/week", start="empty")])
    async def wait(ctx: Context, account: int, text: str) -> None: ...

    return wait


def used_up_gate(account: int) -> Gate:
    return Gate(render_needs(Needs((PermitRequest(f"full:{account}", "full:{account}"),))), UNNAMED_TENANT)


async def fill(url: str, lanes: int, jobs: int) -> Figures:
    app = App(url, events=NoEvents())

    @app.job(limits=[account_limit()])
    async def send(ctx: Context, account: int, text: str) -> None: ...

    begun = time.perf_counter()
    async with app:
        await send.submit_many({"account": number % lanes, "text": TEXT} for number in range(jobs))
    return {"count": jobs, "seconds": time.perf_counter() - begun}


async def drain(url: str, lanes: int, jobs: int) -> Figures:
    app, done, marks = App(url, events=NoEvents()), 0, list[tuple[float, float]]()
    used_up(app)

    @app.job(limits=[account_limit()])
    async def send(ctx: Context, account: int, text: str) -> None:
        nonlocal done
        async with ctx.call():  # otherwise the permit would be returned
            done += 1
        if done in (FIRST, jobs):
            marks.append((time.perf_counter(), time.process_time()))
        if done == jobs:
            worker.drain()

    worker = app.worker()
    async with app:
        with garbage_collected_rarely():  # as in every process of `leaseway work`
            await app.run_worker(worker)
    (begun, cpu_begun), (ended, cpu_ended) = marks
    timed = jobs - FIRST
    return {"count": timed, "seconds": ended - begun, "cpu_us": (cpu_ended - cpu_begun) * 1e6 / timed}


def account_limit() -> Limit:
    return Limit("mail:{account}", "60000000/minute", start="full")


if __name__ == "__main__":
    run = {"close": close, "fill": fill, "drain": drain}[sys.argv[1]]
    print(json.dumps(asyncio.run(run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))))
