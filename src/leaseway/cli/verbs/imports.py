"""leaseway import"""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

from leaseway.cli.screen.as_json import document
from leaseway.cli.screen.table import Cell, Column, show_table
from leaseway.cli.screen.text import note, say
from leaseway.cli.settings import Settings
from leaseway.cli.verbs.stores import store_url
from leaseway.domain.errors import NoSuchJob, TransientError, UsageError
from leaseway.domain.imports.progress import EXIT_CODES, RunRow, ShardRow, ShardState
from leaseway.flows.http import Http, HttpWorld, Wire
from leaseway.imports.open_door import OpenDoor
from leaseway.imports.parts import Parts, parts_of
from leaseway.imports.plan import Plan, planned
from leaseway.imports.run import finish, import_app, queue_of, refuse_other_spec, start, submit_open
from leaseway.ports.source import Refused
from leaseway.system import SystemChance, SystemClock, wall_clock_us

T = TypeVar("T")

LOOK_SECONDS = 0.5
GRACE_SECONDS = 2
"""A shard may take hours, and goes on at its last page elsewhere: nobody waits for its end."""
SHARDS_SHOWN_MAX = 40
STYLES = {"done": "green", "running": "cyan", "parked": "red", "split": "dim"}


def show_plan(settings: Settings, path: Path) -> None:
    parts = parts_of(path)
    plan = asyncio.run(plan_of(parts))
    if settings.json:
        shards = [{"key": shard.key, "label": shard.label} for shard in plan.shards]
        document({"shards": shards, "rows": plan.rows, "requests": plan.requests, "seconds": plan.seconds})
        return
    say(f"{parts.spec.source.name}: {len(plan.shards):,} shards into {parts.spec.sink.table}")
    show_table(
        [Column("shard"), Column("rows", right=True)],
        [(shard.label, amount(shard.estimated_rows)) for shard in plan.shards[:SHARDS_SHOWN_MAX]],
    )
    if len(plan.shards) > SHARDS_SHOWN_MAX:
        note(f"and {len(plan.shards) - SHARDS_SHOWN_MAX:,} more")
    rates = parts.source.limit.definition.rates if parts.source.limit else ()
    pace = " and ".join(str(rate) for rate in rates) or "no limit"
    say(f"rows {amount(plan.rows)}, requests {amount(plan.requests)} at least, {pace}, {span(plan.seconds)}")


async def plan_of(parts: Parts) -> Plan:
    """Ask the source what it knows about itself; nobody counts these few requests."""
    wire = Wire()
    try:
        http = Http(HttpWorld(wire, SystemClock(), SystemChance()), OpenDoor(), lambda step: step)
        probe = await parts.source.probe(http)
    except Refused as error:
        raise UsageError(str(error)) from error
    except OSError as error:  # as the HTTP client's own errors are not
        raise unreachable(parts, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "httpx2":
            raise
        raise unreachable(parts, error) from error
    finally:
        await wire.close()
    return planned(parts.spec, parts.source.caps, probe, parts.source.limit, parts.source.page_limit)


class Crew(NamedTuple):
    workers: int
    lease_seconds: float


def unreachable(parts: Parts, error: Exception) -> TransientError:
    address = parts.spec.source.base_url or parts.spec.source.file
    return TransientError(f"source {parts.spec.source.name}: {address} cannot be asked: {error}")


def run_import(settings: Settings, path: Path, run: str | None, crew: Crew, *, is_new: bool) -> int:
    parts, url = parts_of(path), store_url(settings)
    run = asyncio.run(begun(parts, url, run, crew.lease_seconds, is_new))
    note(f"run {run}")
    began = time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with contextlib.suppress(KeyboardInterrupt), terminated_as_interrupted():
            processes += (worker_process(settings, path) for _ in range(crew.workers))
            asyncio.run(watch(parts, run, processes))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    return close(settings, parts, run, time.monotonic() - began)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM must not leave the workers behind either."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def begun(parts: Parts, url: str, run: str | None, lease_seconds: float, is_new: bool) -> str:
    app, handle = import_app(parts, url, lease_seconds)
    try:
        await parts.sink.open()
        now = wall_clock_us()
        if is_new:
            run = run or f"{parts.spec.source.name}-{now // 1_000}"
            plan = await plan_of(parts)
            await start(parts, handle, run, plan.shards, now)
        else:
            found = await run_of(parts, run)
            refuse_other_spec(parts, found)
            run = found.id
            await submit_open(parts, handle, run)
        return run
    finally:
        await parts.sink.close()
        await app.close()


def worker_process(settings: Settings, path: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "leaseway.cli", "import", "work", str(path), "--until-empty"]
    return subprocess.Popen([*command, "--store", store_url(settings)], stdout=subprocess.DEVNULL)


async def watch(parts: Parts, run: str, processes: "list[subprocess.Popen[bytes]]") -> None:
    """Until all workers have left."""
    await parts.sink.open()
    try:
        began, first = time.monotonic(), None
        while any(process.poll() is None for process in processes):
            await asyncio.sleep(LOOK_SECONDS)
            try:
                shards = await parts.sink.shards(run)
            except TransientError:
                continue  # it is only a look; the workers go on
            rows = sum(row.rows for row in shards)
            first = rows if first is None else first
            pace = (rows - first) / max(time.monotonic() - began, 0.1)
            line(f"{ended(shards):,} of {len(shards):,} shards, {rows:,} rows, {pace:,.0f} rows/s")
    finally:
        await parts.sink.close()
        line("")


def close(settings: Settings, parts: Parts, run: str, seconds: float) -> int:
    async def end() -> tuple[int, list[ShardRow]]:
        await parts.sink.open()
        try:
            state = await finish(parts, run)
            shards = await parts.sink.shards(run)
            report(settings, parts, run, shards, state.value, seconds)
            return EXIT_CODES.get(state, 1), shards
        finally:
            await parts.sink.close()

    return asyncio.run(end())[0]


def report(
    settings: Settings, parts: Parts, run: str, shards: list[ShardRow], state: str, seconds: float | None = None
) -> None:
    names = ("pages", "rows", "inserted", "updated", "unchanged", "stale", "quarantined", "requests")
    totals = {name: sum(getattr(row, name) for row in shards) for name in names}
    states = Counter(row.state.value for row in shards)
    guards: Counter[str] = Counter()
    for row in shards:
        guards.update(row.guards)
    if settings.json:
        document({"run": run, "state": state, "shards": dict(states), "guards": dict(guards), **totals})
        return
    say(f"{parts.spec.source.name}: {state}" + ("" if seconds is None else f" after {seconds:,.1f} s"))
    say(", ".join(f"{count:,} {name}" for name, count in totals.items()))
    say("shards: " + ", ".join(f"{count:,} {name}" for name, count in states.items()))
    if guards:
        say("guards: " + ", ".join(f"{name} {count:,}" for name, count in guards.items()))
    for row in [row for row in shards if row.state is ShardState.PARKED]:
        say(f"parked: {row.shard.label}: {row.why}", "red")


def show_status(settings: Settings, path: Path, run: str | None) -> None:
    parts = parts_of(path)
    found, shards = with_sink(parts, lambda: status_of(parts, run))
    if not settings.json:
        show_table(
            [Column("shard"), Column("state"), *(Column(name, right=True) for name in ("pages", "rows", "attempts"))],
            [
                (row.shard.label, Cell(row.state.value, STYLES.get(row.state.value, "")), f"{row.pages:,}",
                 f"{row.rows:,}", f"{row.attempts:,}")
                for row in shards[:SHARDS_SHOWN_MAX]
            ],
        )  # fmt: skip
    report(settings, parts, found.id, shards, found.state.value)


async def status_of(parts: Parts, run: str | None) -> tuple[RunRow, list[ShardRow]]:
    found = await run_of(parts, run)
    return found, await parts.sink.shards(found.id)


def show_quarantine(settings: Settings, path: Path, run: str | None) -> None:
    parts = parts_of(path)
    bad = with_sink(parts, lambda: parts.sink.bad_rows(run))
    if settings.json:
        document(
            [{"number": number, "shard": shard, "code": row.code, "problem": row.problem} for number, shard, row in bad]
        )
    elif not bad:
        note("nothing is in quarantine")
    else:
        columns = [Column("number", right=True), Column("shard"), Column("id"), Column("code"), Column("problem")]
        show_table(columns, [(f"{n:,}", shard, row.external_id or "", row.code, row.problem) for n, shard, row in bad])


def work_on(settings: Settings, path: Path, until_empty: bool) -> None:
    settings.runs_handlers = True
    parts = parts_of(path)
    app, _ = import_app(parts, store_url(settings))
    asyncio.run(parts.sink.open())
    concurrency = parts.spec.source.concurrency or 4
    app.work(queues=[queue_of(parts)], until_empty=until_empty, concurrency=concurrency, grace=GRACE_SECONDS)


async def run_of(parts: Parts, run: str | None) -> RunRow:
    runs = await parts.sink.runs(parts.spec.source.name)
    found = next((row for row in runs if run in (None, row.id)), None)
    if found is None:
        known = ", ".join(row.id for row in runs) or "none yet"
        raise NoSuchJob(f"there is no run {run or 'of ' + parts.spec.source.name}; there are: {known}")
    return found


def with_sink(parts: Parts, question: Callable[[], Awaitable[T]]) -> T:
    async def asked() -> T:
        await parts.sink.open()
        try:
            return await question()
        finally:
            await parts.sink.close()

    return asyncio.run(asked())


def ended(shards: list[ShardRow]) -> int:
    return sum(row.state not in (ShardState.WAITING, ShardState.RUNNING) for row in shards)


def amount(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def span(seconds: float | None) -> str:
    return "as fast as it goes" if seconds is None else f"{seconds:,.0f} s at the least"


def line(text: str) -> None:
    """The same line again and again, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text:<100}\r")
        sys.stderr.flush()
