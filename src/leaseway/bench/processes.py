"""Run probes in processes of their own, and read their results."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from leaseway.app import App
from leaseway.telemetry.log import NoEvents
from leaseway.worker.submit import JobHandle

PAYLOAD_BYTES = 200
TEXT = "x" * (PAYLOAD_BYTES - len('{"text":""}'))

Figures = dict[str, Any]
"""The result of a probe, as it is sent between processes."""


def app_at(url: str) -> tuple[App, JobHandle[Any]]:
    app = App(url, events=NoEvents())

    @app.job
    async def noop(text: str) -> None:
        pass

    return app, noop


def command(name: str, url: str, count: int) -> list[str]:
    return [sys.executable, "-m", "leaseway.bench.probe", name, url, str(count)]


def probed(name: str, url: str, count: int) -> Figures:
    """The figures of a probe, measured in a new process."""
    ran = subprocess.run(command(name, url, count), stdout=subprocess.PIPE, check=True)
    return decoded(ran.stdout)


async def started(name: str, url: str, count: int) -> asyncio.subprocess.Process:
    """Start another probe, and wait until it is ready."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command(name, url, count), stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def ready() -> None:
    """In the probe: tell the parent that it is ready, and wait for its signal."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


def decoded(text: bytes) -> Figures:
    figures: Figures = json.loads(text)
    return figures
