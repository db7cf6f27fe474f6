"""Runs one job that does nothing on SQLite and prints the Python files and functions that it executes, as JSON.

Recording starts after a first job has run, so imports, opening the store and creating the schema are not counted. It
covers the submission, the start of a worker, the job and its settlement, until the worker finds the queue empty.
"""

import asyncio
import json
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from leaseway import App
from leaseway import __file__ as package_file
from leaseway.worker import lease_renewal

PACKAGE = Path(package_file).resolve().parent
REPEATS = 5
"""Jobs one after the other: which thread is first decides whether some functions are called."""


class Recorder:
    """A profile function for all threads; it records only between `start` and `stop`."""

    def __init__(self) -> None:
        self.is_recording = False
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_recording and event == "call":
            self.seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    def executed(self) -> dict[str, list[str]]:
        """Path inside the package → functions."""
        found: dict[str, list[str]] = {}
        for name, function in sorted(self.seen):
            if Path(name).is_relative_to(PACKAGE):
                found.setdefault(str(Path(name).relative_to(PACKAGE)), []).append(function)
        return found


async def run_one_job(folder: str, recorder: Recorder) -> None:
    app = App(f"sqlite:///{folder}/jobs.db")

    @app.job
    async def noop(ctx: Any) -> None:
        pass

    lease_renewal.FIRST_BEAT_SECONDS = 3_600.0  # on a busy machine a worker may live long enough for a heartbeat
    async with app:
        await noop.submit()
        await app.run_worker(until_empty=True)
        recorder.is_recording = True
        for _ in range(REPEATS):
            await noop.submit()
            await app.run_worker(until_empty=True)
        recorder.is_recording = False


def main() -> None:
    recorder = Recorder()
    sys.setprofile(recorder)
    threading.setprofile(recorder)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run_one_job(folder, recorder))
    sys.setprofile(None)
    print(json.dumps(recorder.executed()))


if __name__ == "__main__":
    main()
