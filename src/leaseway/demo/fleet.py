"""The demo's processes: one provider, and a fleet of workers (`main` is their main function)."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType

import click

from leaseway.app import App
from leaseway.demo.spec import API_KEY, KEY_VARIABLE, STORE_VARIABLE, Files
from leaseway.domain.scaling.agreement import PastDecision
from leaseway.domain.scaling.decision import count_workers
from leaseway.domain.scaling.demand import ScalingSettings
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.shard_jobs import register_jobs
from leaseway.scaling.agree import fleet_pool, read_pools
from leaseway.scaling.fleet import Fleet, FleetSpec
from leaseway.signals import drained_by_signals, join_fleet, run_to_the_end
from leaseway.worker.environment import Environment

CONCURRENCY = 4
GRACE_SECONDS = 2.0
DRAIN_SECONDS = 5.0
STEP_SECONDS = 2.0
"""One worker is added per step, so that the growth can be seen within the demo's minute."""
LATENCY_SECONDS = 0.2
"""Of the provider, as over the internet: one worker alone cannot use the limit up."""
PROC = Path("/proc")
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


class DemoProvider:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> "DemoProvider":
        return self

    def start(self, rows: int | None, limit: int, *, is_real: bool, latency_seconds: float = 0.0) -> None:
        arguments = ["--limit", f"{limit}/second", "--until-eof", *(["--places"] if is_real else [])]
        arguments += [] if rows is None else ["--rows", str(rows)]  # without it, all places
        if latency_seconds:
            arguments += ["--faults", json.dumps({"slow_every": 1, "slow_seconds": latency_seconds})]
        log = self._files.folder / "provider.log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "leaseway.testing.fake_open_charge_map", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=worker_environ(self._files),
                start_new_session=True,  # Ctrl-C reaches only the demo, which then ends its children in order
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        if not self.url:
            raise RuntimeError(f"the provider did not start: {log.read_text('utf-8')}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # which ends it
        try:
            self._process.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def worker_command(files: Files, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "leaseway.demo.fleet", str(files.spec), *arguments]


def worker_environ(files: Files) -> dict[str, str]:
    return {**os.environ, KEY_VARIABLE: API_KEY, STORE_VARIABLE: files.store_url}


def fleet_spec(files: Files, queue: str, workers_max: int) -> FleetSpec:
    return FleetSpec(
        command=worker_command(files),
        environ=worker_environ(files),
        queues=[queue],
        slots=CONCURRENCY,
        grace_seconds=GRACE_SECONDS,
        reloads=False,  # the code does not change, and SIGHUP of a closed terminal must end the demo
        settings=ScalingSettings(
            workers_min=1, workers_max=workers_max, step_seconds=STEP_SECONDS, up_step_workers=1, up_step_ratio=0.0,
            down_window_seconds=30.0,
        ),
    )  # fmt: skip


class DemoMember:
    """A worker process that was ready once. Numbers are never reused."""

    def __init__(self, number: int, pid: int) -> None:
        self.number, self.pid = number, pid
        self.is_alive = True
        self.was_killed = False

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    def peak_bytes(self) -> int:
        """Its peak memory; 0 where the system does not report it. Not `wait4`, whose peak is at least that of the
        process which started it."""
        with contextlib.suppress(OSError):
            found = PEAK.search((PROC / str(self.pid) / "status").read_text("ascii", "replace"))
            return int(found[1]) * 1_024 if found else 0
        return 0


class DemoFleet:
    """A supervisor in this process. Its events tell which workers there are."""

    def __init__(self, spec: FleetSpec, app: App, say: Callable[[str, str], None]) -> None:
        self._spec, self._app, self._say = spec, app, say
        self._fleet = Fleet(spec, self._open_world, app.world.clock, self)
        self._running: asyncio.Task[object] | None = None
        self.members: list[DemoMember] = []
        self.workers_most = 0
        self.peak_bytes = 0
        """The peak memory of the worker that used the most."""
        self.decision: PastDecision | None = None
        """The last one, as the store has it."""

    async def _open_world(self) -> Environment:
        await self._app.store()
        await self._app.world.limiter.open()
        return self._app.world

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end, all workers drain. Raises what the fleet raised, and Abort if a signal ended it."""
        self._running = asyncio.create_task(self._fleet.run())
        was_interrupted = False
        try:
            yield
            was_interrupted = self._running.done()
        finally:
            self._fleet.stop()
            await self._running
        if was_interrupted:
            raise click.Abort

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    @property
    def workers_max(self) -> int:
        return self._spec.settings.workers_max

    @property
    def desired(self) -> int:
        return self._fleet.desired

    async def look(self) -> None:
        alive = [member for member in self.members if member.is_alive]
        self.workers_most = max(self.workers_most, len(alive))
        self.peak_bytes = max([self.peak_bytes, *(member.peak_bytes() for member in alive)])
        agreed = (await read_pools(await self._app.store())).get(fleet_pool(self._spec.queues))
        self.decision = self.decision if agreed is None else agreed.last

    def kill(self, member: DemoMember) -> None:
        """SIGKILL: nothing is settled or released. The fleet notices it, and starts another worker."""
        member.was_killed = True
        os.kill(member.pid, signal.SIGKILL)

    def emit(self, name: str, /, **facts: object) -> None:
        match name, facts.get("pid"):
            case "fleet_decision", _:
                self._say(f"fleet: {count_workers(self.desired)}, because {facts['reason']}", "cyan")
            case "fleet_worker_ready", int(pid):
                self.members.append(DemoMember(len(self.members) + 1, pid))
                self._say(f"{self.members[-1].name} (pid {pid}) is ready", "")
            case "fleet_worker_lost" | "fleet_worker_ended", int(pid):
                self._on_end(pid, "" if name == "fleet_worker_ended" else str(facts["why"]))

    def _on_end(self, pid: int, why: str) -> None:
        for member in self.members:
            member.is_alive = member.is_alive and member.pid != pid
        is_expected = any(member.was_killed for member in self.members if member.pid == pid)
        if why and not is_expected:
            self._say(f"a worker (pid {pid}) {why}", "red")


# -- one worker: `python -m leaseway.demo.fleet SPEC [until-empty]` ----------------------------------------------------


def main(spec: str, until: str = "stopped") -> None:
    log_beside(Path(spec))
    parts = load_import(Path(spec))
    app = App(os.environ[STORE_VARIABLE])
    register_jobs(app, parts)
    run_to_the_end(work(app, parts, until_empty=until == "until-empty"))


async def work(app: App, parts: ImportParts, *, until_empty: bool) -> None:
    worker = app.worker(queues=[parts.queue], concurrency=CONCURRENCY, grace=GRACE_SECONDS, until_empty=until_empty)
    try:
        await parts.sink.open()
        await app.store()
        async with asyncio.timeout(None) as scope:
            with drained_by_signals(worker, scope):
                join_fleet()
                await app.run_worker(worker)
    finally:
        await app.close()


def log_beside(spec: Path) -> None:
    """Messages would tear the table that the demo draws."""
    with (spec.parent / f"worker-{os.getpid()}.log").open("wb") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:])
