"""A folder with an app in it, and a command line that runs there."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from leaseway.cli.load_app import load_app
from leaseway.cli.main import main

TASKS = """
import asyncio, sys, time
from leaseway import App, Fail

app = App("sqlite:///work.db")


@app.job
async def add(x: int, y: int = 1) -> int:
    return x + y


@app.job
async def greet(name: str) -> str:
    return f"hello {name}"


@app.job
async def measure(length: float) -> None: ...


@app.job(attempts=2, backoff=0)
async def shaky(name: str = "joe") -> None:
    raise ValueError(f"no luck for {name}")


@app.job(attempts=3)
async def waits_after_failing() -> None:
    raise OSError("come back later")


@app.job
async def hopeless() -> None:
    raise Fail("it never will", code="gone")


@app.job(queue="slow", lease=2)
async def nap(ctx, seconds: float) -> str:
    print("napping", flush=True)
    ctx.progress(1, 4, "halfway")
    await asyncio.sleep(seconds)
    return "rested"


@app.job(queue="stubborn")
async def stay() -> None:
    print("staying", flush=True)
    while True:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass


@app.job(queue="stuck")
def hang() -> None:
    print("hanging", flush=True)
    time.sleep(600)


@app.job(queue="stuck")
async def hang_elsewhere() -> None:
    print("hanging", flush=True)
    await asyncio.to_thread(time.sleep, 600)


@app.cron("0 3 * * *", tz="Europe/Berlin")
@app.job
async def nightly(fire_time: str = "") -> None: ...
"""


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Place:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.database = folder / "work.db"
        self._capsys = capsys
        (folder / "tasks.py").write_text(TASKS)

    def run(self, *argv: str) -> Answer:
        """Run the command in this process. No command may end in a traceback."""
        self._capsys.readouterr()
        code = main(argv)
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err or "--traceback" in argv or os.environ.get("LEASEWAY_TRACEBACK"), err
        return Answer(code, out, err)

    def ok(self, *argv: str) -> Answer:
        answer = self.run(*argv)
        assert answer.code == 0, answer.err
        return answer

    def json(self, *argv: str) -> Any:
        return self.ok(*argv, "--json").json

    def process(self, *argv: str, stdin: str = "", **environment: str) -> Answer:
        """Run the command in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "leaseway.cli", *argv],
            cwd=self.folder,
            env=self.environment(**environment),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def running(self, *argv: str) -> Iterator["subprocess.Popen[str]"]:
        """A command that keeps running. It is ended with the test, whatever happens."""
        process = subprocess.Popen(
            [sys.executable, "-m", "leaseway.cli", *argv],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEWAY_", "_LEASEWAY"))}
        return kept | {"LEASEWAY_STORE": "sqlite:///work.db", "PYTHONUNBUFFERED": "1"} | more

    def submit(self, kind: str, *more: str) -> str:
        id_: str = self.json("submit", "tasks:app", kind, *more)["id"]
        return id_

    def work_off(self, **settings: Any) -> None:
        """Run the pending jobs with a worker in this process, without a command."""

        async def work() -> None:
            async with load_app("tasks:app") as app:
                worker = app.worker(until_empty=True, **settings)
                await app.run_worker(worker)

        asyncio.run(work())

    def sql(self, statement: str, *values: object) -> list[Any]:
        """For what no command can do: break things, and move time."""
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def locked(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
