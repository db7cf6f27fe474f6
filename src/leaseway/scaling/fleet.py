"""observe ─► agree ─► [start and drain worker processes], on one machine

Every worker is a process of its own, started as `leaseway work`. A socket connects it with the fleet: the worker sends
a byte when it is ready, and drains when the fleet's end is closed, so that a fleet that is killed leaves no workers
behind. A worker that drains gives its jobs back without using an attempt. Scaling therefore loses nothing and runs
nothing twice.
"""

import asyncio
import contextlib
import math
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from leaseway.domain.errors import LeasewayError, TerminalError, UsageError
from leaseway.domain.scaling.agreement import FleetShare, PastDecision
from leaseway.domain.scaling.decision import ScalingState, hold_stale
from leaseway.domain.scaling.demand import PoolObservation, ScalingSettings
from leaseway.ports.clock import Clock
from leaseway.ports.telemetry import Events
from leaseway.scaling.agree import PoolSeat, fleet_pool
from leaseway.scaling.observe import PoolObserver
from leaseway.signals import FLEET_SOCKET, LEASES_LEFT, PATIENCE_SECONDS, SIGNALS
from leaseway.worker.environment import Environment

PERIOD_SECONDS_MAX, PERIOD_SECONDS_MIN = 5.0, 0.2
OBSERVE_SECONDS_MAX, LEAVE_SECONDS_MAX = 20.0, 5.0
HEALTHY_SECONDS = 10.0
"""A worker that ends by itself within this time of being ready counts as one that failed to start."""
FAILURES_MAX = 5
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 0.25, 30.0
STORE_UNAVAILABLE = 3
"""The exit code of a worker that cannot reach its store: waiting helps, so it is no crash loop."""


class FleetSpec(NamedTuple):
    command: Sequence[str]
    environ: Mapping[str, str]
    queues: Sequence[str]
    slots: int
    grace_seconds: float
    settings: ScalingSettings
    name: str = ""
    """In the list of the fleets of a pool. Empty: the names of host and process."""
    reloads: bool = True
    """SIGHUP restarts the workers on new code. False: it ends the fleet, unless the process ignores it (`nohup`)."""

    @property
    def period_seconds(self) -> float:
        return min(max(self.settings.step_seconds / 3, PERIOD_SECONDS_MIN), PERIOD_SECONDS_MAX)


class FleetSummary(NamedTuple):
    started: int
    crashed: int
    is_clean: bool
    """Every worker ended as asked and released its leases."""


class FleetMember:
    """One worker process."""

    def __init__(self, number: int, generation: int, at: float) -> None:
        self.number, self.generation = number, generation
        self.ready_at: float | None = None
        self.started_at = at
        self.process: asyncio.subprocess.Process | None = None
        self.is_draining = False

    @property
    def pid(self) -> int:
        return 0 if self.process is None else self.process.pid

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


def choose_drained(
    members: Sequence[FleetMember], count: int, leased: Mapping[int, int], generation: int
) -> list[FleetMember]:
    """Old code first, then workers that are not ready, then the idlest, then the youngest."""

    def order(member: FleetMember) -> tuple[bool, bool, int, float]:
        return (
            member.generation == generation,
            member.ready_at is not None,
            leased.get(member.pid, 0),
            -member.started_at,
        )

    return sorted(members, key=order)[:count]


def backoff_seconds(failures: int) -> float:
    return float(min(BACKOFF_SECONDS * 2 ** min(failures, 10), BACKOFF_SECONDS_MAX)) if failures else 0.0


class Fleet:
    """Runs until a signal ends it. `open_world` opens the store and the limiter; it is called until it succeeds."""

    def __init__(
        self, spec: FleetSpec, open_world: Callable[[], Awaitable[Environment]], clock: Clock, events: Events
    ) -> None:
        self._spec, self._open_world, self._clock, self._events = spec, open_world, clock, events
        self._world: Environment | None = None
        self._observer: PoolObserver | None = None
        self._seen: tuple[PoolObservation, float] | None = None
        """The last observation, and when it was made."""
        self._name = spec.name or f"{socket.gethostname()}:{os.getpid()}"
        # Half a period: a fleet that is alone decides in each turn, and of several one decides for all.
        self._seat = PoolSeat(fleet_pool(spec.queues), spec.queues, spec.slots, spec.settings, spec.period_seconds / 2)
        self._said: tuple[int, str, int] | None = None
        self._members: list[FleetMember] = []
        self._generation = self._signals = 0
        self._started = self._crashed = self._failures = 0
        self._retry_at = -math.inf
        self._why_failed = ""
        self._is_clean = True
        self._wake = asyncio.Event()
        self.desired = 0

    @property
    def active(self) -> list[FleetMember]:
        return [member for member in self._members if not member.is_draining]

    async def run(self) -> FleetSummary:
        failure: LeasewayError | None = None
        async with asyncio.TaskGroup() as group:
            with self._handling_signals():
                try:
                    while not self._signals:
                        await self._turn(group)
                        await self._pause()
                except LeasewayError as error:  # the group would wrap it
                    failure = error
                finally:
                    await self._end()
        if failure is not None:
            raise failure
        return FleetSummary(self._started, self._crashed, self._is_clean)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._spec.period_seconds):
                await self._wake.wait()
        self._wake.clear()

    async def _turn(self, group: asyncio.TaskGroup) -> None:
        await self.decide()
        self._judge_failures()
        surplus = self._roll()
        missing = self.desired + surplus - len(self.active)
        if missing > 0 and self._clock.monotonic() >= self._retry_at:
            # After a failure one worker is tried at a time.
            for _ in range(1 if self._failures else missing):
                self._start(group)
        elif missing < 0:
            await self._drain(-missing)

    # -- decisions --

    async def decide(self) -> None:
        """Observe the pool, agree with its other fleets, and set `desired`. Without the store, nothing changes.

        What is wrong before the first observation is raised."""
        try:
            async with asyncio.timeout(OBSERVE_SECONDS_MAX):
                await self._agree()
        except (LeasewayError, TimeoutError, OSError) as error:
            if isinstance(error, UsageError) and self._seen is None:
                raise
            self._events.emit("store_unavailable", doing="observing the pool", error=error)
            self._hold()

    async def _agree(self) -> None:
        if self._world is None or self._observer is None:
            self._world = await self._open_world()
            self._observer = PoolObserver(self._world, self._spec.queues, self._spec.settings.down_window_seconds)
        seen = await self._observer.observe(self._spec.slots, self.desired)
        agreed = await self._seat.decide(self._world, self._share(seen.at), seen)
        self._seen = seen, self._clock.monotonic()
        self.desired = agreed.share(self._name)
        if agreed.last is not None:
            self._report(agreed.last, len(agreed.fleets), agreed.workers)

    def _share(self, at: float) -> FleetShare:
        live, settings = len(self.active), self._spec.settings
        return FleetShare(
            name=self._name, workers=live, live=live, workers_min=settings.workers_min,
            workers_max=settings.workers_max, seen_at=at,
        )  # fmt: skip

    def _hold(self) -> None:
        """Nothing is known: a worker could not reach the store either."""
        if self._seen is None:
            return
        last, read_at = self._seen
        seen = replace(last, workers=self.desired, age_seconds=self._clock.monotonic() - read_at)
        if seen.age_seconds > self._spec.settings.stale_seconds:
            held = hold_stale(seen, ScalingState(), self._spec.settings)
            past = PastDecision(
                at=seen.at, workers=held.workers, wanted=held.wanted, cause=held.cause, reason=held.reason
            )
            self._report(past, 1, self.desired)

    def _report(self, decision: PastDecision, fleets: int, together: int) -> None:
        """One line per change: the same decision every five seconds would hide the others."""
        if self._said == (self.desired, decision.cause, fleets):
            return
        self._said = self.desired, decision.cause, fleets
        shared = {"fleets": fleets, "pool_workers": together} if fleets > 1 else {}
        self._events.emit(
            "fleet_decision",
            workers=self.desired,
            wanted=decision.wanted,
            live=len(self.active),
            cause=decision.cause,
            reason=decision.reason,
            **shared,
        )

    async def _leave(self) -> None:
        """Other fleets take over the share of this one. They would notice its silence as well, but later."""
        if self._world is None:
            return
        with contextlib.suppress(LeasewayError, TimeoutError, OSError):
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                await self._seat.leave(self._world, self._name)

    # -- processes --

    def _start(self, group: asyncio.TaskGroup) -> None:
        self._started += 1
        member = FleetMember(self._started, self._generation, self._clock.monotonic())
        self._members.append(member)
        group.create_task(self._attend(member))

    async def _attend(self, member: FleetMember) -> None:
        """From the start of a worker to its end."""
        try:
            ours = await self._launch(member)
        except OSError as error:  # no rights, no memory, too many processes or files
            self._lost(member, f"cannot be started: {error}")
            return
        assert member.process is not None
        with ours:
            if self._signals:  # it was being started when the fleet was told to end
                self._stop(member)
            if await self._is_heard(ours):
                member.ready_at = self._clock.monotonic()
                self._events.emit("fleet_worker_ready", pid=member.pid)
                self._wake.set()
            code = await member.process.wait()
        if member.is_draining:
            self._ended(member, code)
        else:
            self._lost(member, f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}", code)

    async def _launch(self, member: FleetMember) -> socket.socket:
        """Start the process, and return the socket that connects it with the fleet."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                member.process = await asyncio.create_subprocess_exec(
                    *self._spec.command,
                    env={**self._spec.environ, FLEET_SOCKET: str(theirs.fileno())},
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C reaches the fleet only, which then drains its workers
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    async def _is_heard(self, ours: socket.socket) -> bool:
        """False: the worker has ended before it was ready."""
        try:
            return bool(await asyncio.get_running_loop().sock_recv(ours, 1))
        except OSError:
            return False

    def _ended(self, member: FleetMember, code: int) -> None:
        self._members.remove(member)
        # A worker that was not ready yet had no leases, and no handler for the signal either.
        self._is_clean = self._is_clean and (code == 0 or member.ready_at is None)
        self._events.emit("fleet_worker_ended", pid=member.pid, exit_code=code)
        self._wake.set()

    def _lost(self, member: FleetMember, why: str, code: int | None = None) -> None:
        """A worker has ended by itself. One that had worked for a while is replaced at once."""
        now = self._clock.monotonic()
        self._members.remove(member)
        self._crashed += 1
        was_healthy = member.ready_at is not None and now - member.ready_at >= HEALTHY_SECONDS
        self._failures = 0 if was_healthy else self._failures + (code != STORE_UNAVAILABLE or not self._failures)
        self._retry_at = now + backoff_seconds(self._failures)
        self._why_failed = why
        self._events.emit("fleet_worker_lost", pid=member.pid, why=why, retry_seconds=backoff_seconds(self._failures))
        self._wake.set()

    def _judge_failures(self) -> None:
        """Raises if workers die as soon as they are started and none is left."""
        now = self._clock.monotonic()
        ready = [member.ready_at for member in self.active if member.ready_at is not None]
        if ready and self._failures and now - max(ready) >= HEALTHY_SECONDS and max(ready) > self._retry_at:
            self._failures = 0
        if self._failures < FAILURES_MAX:
            return
        if not ready:
            raise TerminalError(
                f"{self._failures} workers in a row failed to start or died within {HEALTHY_SECONDS:.0f} s: the last "
                f"one {self._why_failed}. Their own messages are above; run one without --fleet to see what is wrong"
            )
        if self._generation and any(member.generation < self._generation for member in self.active):
            self._events.emit("fleet_restart_failed", why=self._why_failed, old_workers=len(ready))
            for member in self.active:  # the old code goes on
                member.generation = self._generation

    def _roll(self) -> int:
        """The rolling restart: one worker more than desired, until all of them run the new code. An old worker drains
        when a new one is ready."""
        old = [member for member in self.active if member.generation < self._generation]
        ready = [member for member in self.active if member.generation == self._generation and member.ready_at]
        for member in old[: max(len(old) + len(ready) - self.desired, 0)]:
            self._stop(member)
        return 1 if any(not member.is_draining for member in old) else 0

    async def _drain(self, count: int) -> None:
        leased: dict[int, int] = {}
        with contextlib.suppress(LeasewayError, TimeoutError, OSError):
            async with asyncio.timeout(OBSERVE_SECONDS_MAX):
                leased = await self._leased_by_process()
        for member in choose_drained(self.active, count, leased, self._generation):
            self._events.emit("fleet_worker_drains", pid=member.pid, leased=leased.get(member.pid, 0))
            self._stop(member)

    async def _leased_by_process(self) -> dict[int, int]:
        """Worker ids begin with the names of host and process."""
        if self._world is None or self._world.store.inspection is None:
            return {}
        here = f"{socket.gethostname()}:"
        owners = [owner for owner in await self._world.store.inspection.owners() if owner.name.startswith(here)]
        return {int(owner.name[len(here) :].partition(":")[0]): owner.leased for owner in owners}

    def _stop(self, member: FleetMember) -> None:
        member.is_draining = True
        member.send(signal.SIGTERM)

    # -- signals and the end --

    @contextlib.contextmanager
    def _handling_signals(self) -> Iterator[None]:
        loop, handlers = asyncio.get_running_loop(), dict.fromkeys(SIGNALS, self.stop)
        if self._spec.reloads or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            handlers[signal.SIGHUP] = self._on_hangup if self._spec.reloads else self.stop
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """As a signal does: the first call drains all workers, the second ends their grace period, the third exits."""
        self._signals += 1
        self._events.emit("fleet_draining", workers=len(self._members), signals=self._signals)
        for member in self._members:
            if self._signals > 1 or not member.is_draining:  # a worker that drains already keeps its grace period
                self._stop(member)
        if self._signals > 2:
            os._exit(LEASES_LEFT)
        self._wake.set()

    def _on_hangup(self) -> None:
        self._generation += 1
        self._events.emit("fleet_restarting", workers=len(self.active))
        self._wake.set()

    async def _end(self) -> None:
        """Wait for all workers. They bound their own end; a worker that does not keep to it is killed, and its leases
        expire."""
        for member in self._members:
            if not member.is_draining:
                self._stop(member)
        await self._leave()
        until = self._clock.monotonic() + self._spec.grace_seconds + 2 * PATIENCE_SECONDS
        while self._members and self._clock.monotonic() < until:
            await self._pause()
        for member in self._members:
            member.send(signal.SIGKILL)
