"""`leaseway import run` of a spec whose workers are killed on the way."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.processes import child_processes
from tests.servers.gated_proxy import GatedProxy
from tests.sqlite_files import open_sqlite

from leaseway.system import SystemClock

KILLS = 5
REQUESTS_BETWEEN = (3, 7)
STUCK_SECONDS = 240
LOOK_SECONDS = 0.05
OUTPUT = "run.log"
COLUMNS = "SELECT name, deleted_at IS NOT NULL, updated_at = first_seen FROM things"


class StoredThing(NamedTuple):
    name: str
    is_deleted: bool
    is_written_once: bool


class Imported(NamedTuple):
    exit_code: int
    things: list[StoredThing]
    output: str
    requests: int


async def import_with_kills(
    folder: Path, spec: str, proxy: GatedProxy, environ: Mapping[str, str], kills: int = KILLS
) -> Imported:
    """Kill all workers with a request in hand, or just after its reply, and let the command replace them."""
    (folder / "things.toml").write_text(spec.replace("URL", proxy.url), "utf-8")
    chance = random.Random(len(spec))
    run = start_run(folder, environ)
    try:
        for _ in range(kills):
            proxy.close_after(chance.randint(*REQUESTS_BETWEEN), answers_first=chance.random() < 0.5)
            await reached_or_ended(proxy, run, folder)
            workers = child_processes(run.pid)
            assert workers, "nobody was there to be killed"
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            proxy.open()
        await asyncio.wait_for(asyncio.to_thread(run.wait), STUCK_SECONDS)
    finally:
        for process in [*child_processes(run.pid), run.pid] if run.poll() is None else []:
            os.kill(process, signal.SIGKILL)
    with open_sqlite(folder / "data.db") as file:
        found = [StoredThing(*line) for line in file.execute(COLUMNS)]
    return Imported(run.returncode, found, (folder / OUTPUT).read_text("utf-8"), proxy.requests)


def start_run(folder: Path, environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "leaseway.cli", "import", "run", "things.toml", "--workers", "2", "--lease", "2"]
    with (folder / OUTPUT).open("wb") as output:
        return subprocess.Popen(
            [*command, "--store", f"sqlite:///{folder}/jobs.db"], cwd=folder, env={**os.environ, **environ},
            stdout=output, stderr=output,
        )  # fmt: skip


async def reached_or_ended(proxy: GatedProxy, run: "subprocess.Popen[bytes]", folder: Path) -> None:
    """An import that ends too early fails at once, with its own words."""
    clock = SystemClock()
    until = clock.monotonic() + STUCK_SECONDS
    while not proxy.is_reached() and run.poll() is None and clock.monotonic() < until:
        await clock.sleep(LOOK_SECONDS)
    if not proxy.is_reached():
        raise AssertionError(f"the import did not come to the next kill:\n{(folder / OUTPUT).read_text('utf-8')}")
