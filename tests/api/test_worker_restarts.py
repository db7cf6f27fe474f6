"""A worker process that has only a URL and a key, and a service that is killed while the worker runs."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from leaseway import App

JOBS = 40
KILLS = 2
SECONDS_MAX = 240
"""Starting a process takes a second or two, and much longer on a busy machine."""

TASKS = """
import asyncio

from leaseway import App

app = App()


@app.job(lease=300)
async def note(number: int) -> int:
    with open("notes.txt", "a") as notes:
        notes.write(f"{number}\\n")
    await asyncio.sleep(0.05)
    return number
"""


@contextmanager
def process(place: Path, *words: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LEASEWAY_")}
    started = subprocess.Popen(
        [sys.executable, "-m", "leaseway.cli", *words],
        cwd=place,
        env=clean | settings,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@contextmanager
def service(place: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with process(place, "serve", "--json", "--port", str(port), LEASEWAY_STORE="sqlite:///work.db") as serving:
        assert serving.stdout is not None
        yield serving, json.loads(serving.stdout.readline())["url"]


def written(notes: Path, least: int) -> None:
    until = time.monotonic() + SECONDS_MAX
    while len(notes.read_text().split()) < least:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.timeout(2 * SECONDS_MAX)
def test_a_service_that_dies_loses_nothing_and_nothing_is_done_twice(tmp_path: Path) -> None:
    """Services are killed during deployments while workers hold leases."""
    (tmp_path / "tasks.py").write_text(TASKS)
    notes, app = tmp_path / "notes.txt", App(f"sqlite:///{tmp_path / 'work.db'}")
    notes.touch()
    app.job(name="note", lease=300)(lambda number: number)
    submitted = app.submit_many_sync(app.bind("note", {"number": n}) for n in range(JOBS))
    made = subprocess.run(
        [sys.executable, "-m", "leaseway.cli", "keys", "create", "--role", "worker", "--json", "--store", app.url],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    key = json.loads(made.stdout)["key"]
    with ExitStack() as stack:
        serving, url = stack.enter_context(service(tmp_path, 0))
        settings = {"LEASEWAY_STORE": url, "LEASEWAY_KEY": key}
        worker = stack.enter_context(
            process(tmp_path, "work", "tasks:app", "--until-empty", "--concurrency", "4", **settings)
        )
        for kill in range(1, KILLS + 1):
            written(notes, kill * JOBS // (KILLS + 2))
            serving.kill()
            serving.wait()
            serving, _ = stack.enter_context(service(tmp_path, int(url.rpartition(":")[2])))
        assert worker.wait(SECONDS_MAX) == 0
    jobs = [app.sync(app.find(each)) for each in submitted]
    assert Counter((job.state, job.attempts) for job in jobs if job is not None) == {("done", 1): JOBS}
    assert sorted(map(int, notes.read_text().split())) == list(range(JOBS))
    app.close_sync()
