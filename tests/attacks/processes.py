"""The service as users start it: one or several processes over one store."""

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

SECONDS = 60.0
NOT_OURS = ("LEASEWAY_", "PYTHONUNBUFFERED")
"""Settings that users do not have."""


@asynccontextmanager
async def service(place: Path, store_url: str, *words: str) -> AsyncIterator[str]:
    """`leaseway serve`; yields its URL. Its log is `service.log`."""
    async with service_process(place, store_url, *words) as (url, _):
        yield url


@asynccontextmanager
async def service_process(
    place: Path, store_url: str, *words: str, descriptors: int | None = None
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Like `service`, with its process. `descriptors`: how many files it may have open."""
    command = [sys.executable, "-m", "leaseway.cli", "serve", "--json", "--port", "0", "--store", store_url, *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}

    def limit_descriptors() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with (place / "service.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=log, preexec_fn=limit_descriptors
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            told = await process.stdout.readline()
        yield str(json.loads(told)["url"]), process
    finally:
        process.kill()
        await process.wait()
