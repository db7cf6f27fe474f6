"""Runs the schedule: pause, inject, heal, one fault after the other; records when each began and ended."""

import asyncio
from collections.abc import Callable, Iterable

from chaos.history import FaultBegan, FaultEnded, Journal, now
from chaos.plan import Planned
from chaos.stage import Stage

Say = Callable[[str], None]


async def play(plan: Iterable[Planned], stage: Stage, journal: Journal, say: Say, seconds_max: float) -> int:
    """Until the plan or the time is over; returns the number of faults."""
    until, number = now() + seconds_max, 0
    for number, (pause_seconds, fault) in enumerate(plan, start=1):
        await asyncio.sleep(pause_seconds)
        if now() >= until:
            return number - 1
        journal.write(FaultBegan(number=number, fault=fault.name, hits=fault.hits(stage), what=fault.what()))
        say(f"{fault.name:14} {fault.what()}")
        came_of_it = await fault.strike(stage)
        journal.write(FaultEnded(number=number))
        if came_of_it:
            say(f"{'':14} {came_of_it}")
    return number
