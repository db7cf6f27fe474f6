"""Processes of an earlier version are at work while today's code brings the schema up to date, and afterwards beside
those of today: what each submits, the other one runs, and nobody notices."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from tests.faults.harness import Process, eventually
from tests.stores.test_postgres_scenery import address, closing, new_name
from tests.upgrades.earlier import ROOT, Tree

from leaseway.stores.postgres import migrate
from leaseway.stores.postgres.jobs import PostgresStore
from leaseway.testing.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PROGRAM = Path(__file__).with_name("program.py")
ENOUGH = 60


class Actor:
    """A process of some version, and its record."""

    def __init__(self, mode: str, source: Path, url: str, folder: Path) -> None:
        self._record = folder / f"{new_name(mode)}.record"
        command = [sys.executable, str(PROGRAM), mode, url, str(self._record)]
        self.process = Process(command, {**os.environ, "PYTHONPATH": str(source)}, self._record.with_suffix(".log"))

    def __str__(self) -> str:
        return self._record.stem

    def did(self) -> list[str]:
        if not self._record.exists():
            return []
        return [line.split()[1] for line in self._record.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def leave(self) -> None:
        assert self.process.stop() == 0, self.process.said()[-2000:]
        assert "Traceback" not in self.process.said()


@contextmanager
def troupe(folder: Path, url: str) -> Iterator[Callable[[str, Path], Actor]]:
    actors: list[Actor] = []

    def enter(mode: str, source: Path) -> Actor:
        actors.append(Actor(mode, source, url, folder))
        return actors[-1]

    try:
        yield enter
    finally:
        for actor in actors:
            if actor.process.is_alive:
                actor.process.kill()
            print(f"--- {actor.process.pid} (exit {actor.process.exit_code}) said:\n{actor.process.said()[-2000:]}")


def test_an_earlier_version_works_on_while_the_schema_becomes_todays(
    tree: Tree, server: PostgresServer, tmp_path: Path
) -> None:
    url = address(server, new_name("upgraded"))
    with troupe(tmp_path, url) as enter:
        old, new = tree.folder / "src", ROOT / "src"
        old_worker, old_submitter = enter("work", old), enter("submit", old)
        eventually(lambda: len(old_worker.did()) > ENOUGH, what="the earlier version at work on its own schema")

        assert asyncio.run(brought_to_today(url)) == len(migrate.NEEDS) - tree.version
        new_worker, new_submitter = enter("work", new), enter("submit", new)
        late_worker = enter("work", old)  # a process of the earlier version that is started again
        workers, submitters = (old_worker, late_worker, new_worker), (old_submitter, new_submitter)
        for worker, submitter in product(workers, submitters):
            eventually(partial(has_run_enough, worker, submitter), what=f"{worker} has run jobs of {submitter}")

        for submitter in submitters:
            submitter.leave()
        submitted = [label for submitter in submitters for label in submitter.did()]
        eventually(lambda: sum(len(worker.did()) for worker in workers) >= len(submitted), what="everything has run")
        for worker in workers:
            worker.leave()
        assert Counter(label for worker in workers for label in worker.did()) == Counter(submitted)
    assert asyncio.run(done_in(url)) == len(submitted)


def has_run_enough(worker: Actor, submitter: Actor) -> bool:
    return len({*worker.did()} & {*submitter.did()}) > ENOUGH


async def brought_to_today(url: str) -> int:
    """How many versions that took."""
    async with closing(PostgresStore(url)) as store:
        return await store.open()


async def done_in(url: str) -> int:
    async with closing(PostgresStore(url)) as store:
        await store.open()
        lanes = await store.lanes()
        assert sum(lane.unfinished for lane in lanes) == 0
        return sum(lane.done for lane in lanes)
