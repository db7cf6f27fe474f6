"""One worker that sends as soon as it may, and records when.

    python -m benchmarks.limits.hammer WHO ADDRESS SECONDS SKEW_SECONDS

It makes one call, waits until just before the first window ends, and then asks without a pause: fixed windows and
buckets that start full let too much through at that moment. Its clock is wrong by SKEW_SECONDS; a worker with a wrong
clock starts a second later, when the others have used the limit.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable

from benchmarks.limits.peers import IN_PROCESS, PEERS, Try
from benchmarks.processes import ready

OURS = "leaseway"
COUNT, WINDOW_SECONDS = 20, 2
LEAD_SECONDS = 0.15
LATER_SECONDS = 1.0
TASKS = 4
POLL_SECONDS = 0.002

Times = list[int]


def set_clock(skew_seconds: float) -> None:
    """Like a wrong date: the monotonic clock, which cannot be set, stays as it is."""
    time_ns, skew_ns = time.time_ns, int(skew_seconds * 1e9)
    time.time_ns = lambda: time_ns() + skew_ns
    time.time = lambda: (time_ns() + skew_ns) / 1e9


class Course:
    """When each phase begins, on the clock that all processes share."""

    def __init__(self, seconds: float, is_later: bool) -> None:
        begun = time.monotonic()
        self.busy_from = begun + WINDOW_SECONDS - LEAD_SECONDS + (LATER_SECONDS if is_later else 0.0)
        self.end = begun + seconds

    @property
    def quiet_seconds(self) -> float:
        return max(self.busy_from - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end


Begin = Callable[[], Course]
"""Waits for the start signal; phases are relative to it."""


async def by_leaseway(address: str, begin: Begin) -> tuple[Times, int]:
    """As a worker with several handlers."""
    from benchmarks.limits.fleet import maps, worker_of
    from leaseway.telemetry.log import NoEvents
    from leaseway.wiring import build_environment

    world, sent = build_environment("memory://", address, NoEvents()), Times()
    worker = worker_of(world, [maps(f"{COUNT} per {WINDOW_SECONDS} s")])
    await worker.tokens.opened()
    course = await asyncio.to_thread(begin)

    async def send() -> None:
        while not course.is_over:
            await worker.call_may_leave()
            sent.append(time.monotonic_ns())

    await worker.call_may_leave()
    sent.append(time.monotonic_ns())
    await asyncio.sleep(course.quiet_seconds)
    try:
        async with asyncio.timeout(course.end - time.monotonic()), asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(send())
    except TimeoutError:
        pass
    await world.limiter.close()
    return sent, 0


async def by_aiolimiter(begin: Begin) -> tuple[Times, int]:
    from aiolimiter import AsyncLimiter

    limiter, sent = AsyncLimiter(COUNT, WINDOW_SECONDS), Times()
    course = await asyncio.to_thread(begin)
    await asyncio.sleep(course.quiet_seconds)
    while not course.is_over:
        async with limiter:
            sent.append(time.monotonic_ns())
    return sent, 0


def by_peer(may_send: Try, begin: Begin) -> tuple[Times, int]:
    """Polled, as in its documentation's `while not hit(): sleep`; an error counts as a refusal."""
    sent, errors = Times(), 0
    course = begin()
    if may_send():
        sent.append(time.monotonic_ns())
    time.sleep(course.quiet_seconds)
    while not course.is_over:
        try:
            if may_send():
                sent.append(time.monotonic_ns())
                continue
        except Exception:  # noqa: BLE001 - every library has errors of its own
            errors += 1
        time.sleep(POLL_SECONDS)
    return sent, errors


def hammer(who: str, address: str, begin: Begin) -> tuple[Times, int]:
    if who == OURS:
        return asyncio.run(by_leaseway(address, begin))
    if who == IN_PROCESS:
        return asyncio.run(by_aiolimiter(begin))
    return by_peer(PEERS[who].opened(address, COUNT, WINDOW_SECONDS), begin)


def main(who: str, address: str, seconds: float, skew_seconds: float) -> None:
    def begin() -> Course:
        ready()
        return Course(seconds, is_later=skew_seconds != 0)

    set_clock(skew_seconds)
    sent, errors = hammer(who, address, begin)
    print(json.dumps({"sent_ns": sent, "errors": errors}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
