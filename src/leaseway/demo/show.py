"""The demo from start to verdict: provider ─► submit ─► fleet ─► kill one ─► wait for the rest ─► judge."""

import asyncio
import random
import time
from pathlib import Path
from typing import NamedTuple

from leaseway.demo.fleet import Fleet, Member
from leaseway.demo.jobs import app_at
from leaseway.demo.judge import Verdict, judge_files
from leaseway.demo.screen import Screen
from leaseway.demo.watch import Sight, Watch

CONCURRENCY = 20
WAIT_SECONDS = 0.010
"""How long the provider thinks about a charge."""
RUN_SECONDS_MIN = 3.0
"""With few jobs the provider thinks longer, so that there is time to kill somebody."""
STUCK_SECONDS = 30.0
"""Without a finished job for this long, the demo gives up and lets the judge speak."""
LOOK_SECONDS = 0.05
CALM_SECONDS = 0.5


class Settings(NamedTuple):
    jobs: int
    workers: int
    seed: int


class Kill(NamedTuple):
    worker: int
    pid: int
    in_hands: int


class Shown(NamedTuple):
    verdict: Verdict
    kill: Kill | None
    seconds: float
    """From the first worker's start to the last job's end."""

    @property
    def jobs_per_second(self) -> float:
        return self.verdict.done / max(self.seconds, 1e-9)


def show(settings: Settings, folder: Path, screen: Screen) -> Shown:
    store, journal = folder / "demo.db", folder / "journal.txt"
    with Fleet(folder, store, CONCURRENCY) as fleet:
        fleet.start_provider(journal, wait_seconds(settings), settings.seed)
        screen.say(f"a provider listens on 127.0.0.1:{fleet.port}")
        asyncio.run(submit(store, settings.jobs))
        screen.say(f"submitted {settings.jobs:,} jobs to {store.name}")
        with screen, Watch(store, fleet.port) as watch:
            kill, seconds = Run(settings, fleet, watch, screen).run()
    # The children are gone: journal and store are complete.
    return Shown(judge_files(settings.jobs, store, journal), kill, seconds)


def wait_seconds(settings: Settings) -> float:
    return max(WAIT_SECONDS, RUN_SECONDS_MIN * CONCURRENCY * settings.workers / settings.jobs)


async def submit(store: Path, count: int) -> None:
    app, charge = app_at(store)
    async with app:
        await charge.submit_many({"order": order} for order in range(count))


class Run:
    """The time in which workers work."""

    def __init__(self, settings: Settings, fleet: Fleet, watch: Watch, screen: Screen) -> None:
        self._jobs = settings.jobs
        self._fleet = fleet
        self._watch = watch
        self._screen = screen
        chance = random.Random(settings.seed)
        self._kill_at = int(settings.jobs * chance.uniform(0.35, 0.5))
        self._victim = chance.randrange(settings.workers)
        self._kill: Kill | None = None
        self._told = 0
        self._calm_at = 0.0
        for _ in range(settings.workers):
            fleet.add()
        pids = ", ".join(str(member.pid) for member in fleet.members)
        screen.say(f"started {settings.workers} workers (pid {pids})")

    def run(self) -> tuple[Kill | None, float]:
        started_at = moved_at = time.monotonic()
        before = Sight()
        while before.done < self._jobs:  # ends when all are done, or when none was for too long
            time.sleep(LOOK_SECONDS)
            sight = self._watch.look()
            self._step(before, sight)
            if sight.done > before.done:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > STUCK_SECONDS:
                self._screen.say(f"nothing moved for {STUCK_SECONDS:.0f} s; giving up")
                break
            before = sight
        return self._kill, moved_at - started_at

    def _step(self, before: Sight, sight: Sight) -> None:
        if self._kill is None and self._kill_at <= sight.done < self._jobs:
            # On a busy machine some may not have begun: whose hands are empty is no victim.
            busy = [member for member in self._fleet.members if sight.held.get(member.pid)]
            self._kill = self._kill_one(busy[self._victim % len(busy)]) if busy else None
        self._tell_what_came_back(before, sight)
        self._screen.update(sight, self._fleet.members)

    def _tell_what_came_back(self, before: Sight, sight: Sight) -> None:
        """Leases expire one after the other: told when no more follow, not one by one."""
        if (sight.taken_back, sight.repeated) != (before.taken_back, before.repeated):
            self._calm_at = time.monotonic() + CALM_SECONDS
        is_calm = time.monotonic() >= self._calm_at or sight.done == self._jobs
        if is_calm and sight.taken_back > self._told:
            self._told = sight.taken_back
            calls = f"calls recognised by their key: {sight.repeated:,}"
            self._screen.say(f"leases taken back: {sight.taken_back:,}; {calls}")

    def _kill_one(self, victim: Member) -> Kill:
        self._fleet.kill(victim)
        kill = Kill(victim.number, victim.pid, self._watch.held().get(victim.pid, 0))
        self._screen.say(f"killed {victim.name} (pid {kill.pid}) with {kill.in_hands} jobs in its hands")
        heir = self._fleet.add()
        self._screen.say(f"{heir.name} (pid {heir.pid}) takes its place")
        return kill
