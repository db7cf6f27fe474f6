"""Everything that the processes of one run share: time, randomness, faults, the database and the observers."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

from leaseway.domain.ids import SECOND_US, Instant
from leaseway.simulation.judge import Judge
from leaseway.simulation.process import Process
from leaseway.simulation.promises import Promises, SharedDatabase, StoredRows
from leaseway.simulation.swarm import CALM, FaultRates, Streams, Swarm
from leaseway.simulation.trace import Trace
from leaseway.stores.memory.budgets import MemoryLedger
from leaseway.stores.memory.limits import MemoryLimiter
from leaseway.stores.sqlite.store import SqliteStore
from leaseway.virtual_time.loop import SimLoop

START_US = 1_750_000_000 * SECOND_US
"""15 June 2025, 15:06:40 UTC."""


class SimulatedWorld:
    def __init__(
        self,
        seed: int,
        swarm: Swarm,
        database: SharedDatabase,
        sql: Mapping[str, str],
        trace: Trace,
        is_faulty: bool = True,
        later_us: int = 0,
    ) -> None:
        self.loop = SimLoop()
        self.loop.set_exception_handler(self._on_error)
        self.error: BaseException | None = None
        self.is_faulty = is_faulty
        self.streams = Streams(seed)
        self.swarm = swarm
        self.faults: FaultRates = swarm.faults if is_faulty else CALM
        self.database = database
        self.sql = sql
        self.trace = trace
        self.chance: Random = self.streams.of("store")
        self.books = Promises()
        self.table = StoredRows(database)
        self.judge = Judge(self.books, self.table, self.loop.stop)
        self.notifier = SimulatedNotifier(self)
        self.processes: list[Process] = []
        self.at_the_end: list[Callable[[], object]] = []
        self.is_calm = False
        self._outage_until = 0.0
        self._step_us = later_us
        self.limiter = MemoryLimiter(self.now_us)
        self.ledger = MemoryLedger(self.now_us)

    def now_us(self) -> Instant:
        """The wall clock of the machine, which SQLite uses as the store's clock."""
        return START_US + int(self.loop.time() * SECOND_US) + self._step_us

    def store(self, sql: Mapping[str, str]) -> SqliteStore:
        """One process's own view of the database."""
        return SqliteStore(self.database.path, self.now_us, inline=True, sql=sql, connection=self.database)

    def process(self, name: str) -> Process:
        """Create a process; names are never reused."""
        process = Process(name, self.loop, self.streams.of(name))
        process.loop.set_exception_handler(self._on_error)
        self.processes.append(process)
        return process

    def start(self, process: Process, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a process; it must not fail."""
        task = process.loop.start(main)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._on_error(self.loop, {"exception": task.exception()})

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error of the simulation itself, or one that the worker did not catch: the run is void."""
        self.error = self.error or context.get("exception") or RuntimeError(str(context.get("message")))
        self.loop.stop()

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        for close in self.at_the_end:
            close()
        self.loop.close()

    def note(self, who: str, what: str) -> None:
        self.trace.add(self.loop.time(), who, what)

    # -- faults of the machine -------------------------------------------------------------------------------------

    def step_clock(self, seconds: float) -> None:
        self._step_us += int(seconds * SECOND_US)
        self._all_suffer(abs(seconds) + 2.0)
        self.books.reach("the clock was set forward" if seconds > 0 else "the clock was set back")
        self.note("clock", f"steps by {seconds:.3f} s")

    def fail_for(self, seconds: float) -> None:
        self._outage_until = self.loop.time() + seconds
        self._all_suffer(seconds)
        self.books.reach("every call failed for a while")
        self.note("store", f"is out for {seconds:.3f} s")

    @property
    def is_out(self) -> bool:
        return self.loop.time() < self._outage_until

    def calm(self) -> None:
        """Switch all faults off: from now on every job must end."""
        self.faults = FaultRates(latency_seconds=self.faults.latency_seconds)
        self._outage_until = 0.0
        self.is_calm = True
        self.note("world", "calm")

    def _all_suffer(self, seconds: float) -> None:
        for process in self.processes:
            process.suffer(seconds)


class SimulatedNotifier:
    """Notifications that a process wrote. They may be late, lost or wrong, as the port allows."""

    def __init__(self, universe: SimulatedWorld) -> None:
        self._universe = universe
        self._waiting: dict[Callable[[], None], Process] = {}

    def notify(self) -> None:
        universe = self._universe
        for wake, process in list(self._waiting.items()):
            if universe.chance.random() < universe.faults.hint_lost:
                universe.books.reach("a hint was lost")
            else:
                seconds = universe.chance.uniform(0, 0.01)
                universe.loop.call_later(seconds, process.loop.call_soon_threadsafe, wake)

    async def wait(self, process: Process, seconds: float) -> bool:
        """True when this process is notified, False after this time."""
        notified = process.loop.create_future()

        def wake(was_notified: bool = True) -> None:
            if not notified.done():
                notified.set_result(was_notified)

        timers = [process.loop.call_later(seconds, wake, False)]
        if process.chance.random() < self._universe.faults.hint_wrong:
            self._universe.books.reach("a hint was wrong")
            timers.append(process.loop.call_later(process.chance.uniform(0, seconds), wake))
        self._waiting[wake] = process
        try:
            answer: bool = await notified
            return answer
        finally:
            del self._waiting[wake]
            for timer in timers:
                timer.cancel()
