"""The worker processes: started, killed, drained and restarted."""

from collections.abc import Mapping

from leaseway.domain.kind import Kind
from leaseway.domain.schedule import Schedule
from leaseway.ports.ledger import Ledger
from leaseway.ports.limiter import Limiter
from leaseway.simulation.faulty_limits import FaultyLedger, FaultyLimiter
from leaseway.simulation.faulty_link import FaultyStore
from leaseway.simulation.judge import JUDGE
from leaseway.simulation.limit_oracles import METER, Meter
from leaseway.simulation.process import HERE, Process
from leaseway.simulation.world import SimulatedWorld
from leaseway.worker.environment import Environment, WorkerSettings
from leaseway.worker.lease_renewal import renew_in_loop
from leaseway.worker.loop import Worker

RESTART_SECONDS = (0.2, 1.5)


class Silence:
    """Discards events: the judge checks what workers do, not what they log."""

    def emit(self, name: str, /, **facts: object) -> None: ...


class SimulatedFleet:
    def __init__(
        self,
        universe: SimulatedWorld,
        kinds: Mapping[str, Kind],
        settings: WorkerSettings,
        schedules: tuple[Schedule, ...],
        meter: Meter | None = None,
    ) -> None:
        self._universe = universe
        self._kinds = kinds
        self._settings = settings
        self._schedules = schedules
        self._meter = meter
        self._chance = universe.streams.of("fleet")
        self._started = 0
        self.is_closing = False
        self.crew: list[Process] = []
        """The running processes."""

    def start(self, settings: WorkerSettings | None = None) -> Process | None:
        if self.is_closing:
            return None
        self._started += 1
        process = self._universe.process(f"worker-{self._started}")
        process.grace_seconds = self._settings.grace_seconds
        process.on_end = self._replace
        self.crew.append(process)
        self._universe.note(process.name, "starts")
        process.main = process.loop.start(self._live(process, settings or self._settings))
        return process

    def kill(self, process: Process) -> None:
        """kill -9; the supervisor notices and starts another process."""
        self._universe.books.reach("a worker crashed")
        process.crash()

    def _replace(self, process: Process) -> None:
        """The supervisor notices that a process has ended, for whatever reason."""
        if process in self.crew:
            self.crew.remove(process)
            self._universe.note(process.name, "is dead" if process.is_dead else "has left")
            self._universe.loop.call_later(self._chance.uniform(*RESTART_SECONDS), self.start)

    def drain(self, process: Process) -> None:
        """SIGTERM. A frozen process receives it when it is thawed."""
        self._universe.books.reach("a worker was drained")
        self._universe.note(process.name, "is drained")
        process.loop.call_soon_threadsafe(self._on_sigterm, process)

    def _on_sigterm(self, process: Process) -> None:
        if process.worker is None:
            process.leave()  # it had not started yet: the signal ends it
        elif process.draining_at is None:
            process.draining_at = self._universe.loop.time()
            process.worker.drain()

    def _metering(self, process: Process) -> tuple[Limiter, Ledger]:
        """In scenarios without limits, the limiter and the ledger exist and have no faults."""
        meter = self._meter
        if meter is None:
            return self._universe.limiter, self._universe.ledger
        METER.set(meter)
        return FaultyLimiter(meter, process), FaultyLedger(meter, process)

    async def _live(self, process: Process, settings: WorkerSettings) -> None:
        """The main function of a worker process."""
        HERE.set(process)
        JUDGE.set(self._universe.judge)
        store = FaultyStore(self._universe, process)
        await store.open()
        if process.has_left:
            return
        limiter, ledger = self._metering(process)
        world = Environment(
            store=store,
            limiter=limiter,
            ledger=ledger,
            clock=process.clock,
            chance=process.chance,
            ids=process.ids,
            events=Silence(),
        )
        process.worker = Worker(world, self._kinds, settings, self._schedules, run_renewal=renew_in_loop)
        try:
            worked = await process.worker.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the judge wants to know
            self._universe.judge.died(process, error)
        else:
            if not process.is_dead:
                self._universe.judge.left(process, worked)
        finally:
            process.leave()
