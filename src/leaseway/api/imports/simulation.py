"""Simulates an import in a process of its own: `leaseway simulate SPEC`. Virtual time needs a whole processor, and the
service must answer others meanwhile.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from leaseway.domain.errors import TransientError, UsageError

SECONDS_MAX = 60.0
USAGE, UNAVAILABLE = 2, 3
"""Exit codes of the command."""
DETAIL_LENGTH_MAX = 500

_one_at_a_time = asyncio.Semaphore(1)


async def simulate_spec(path: Path, options: Sequence[str]) -> dict[str, Any]:
    """The report of the command. `TransientError`: another simulation runs, or this one takes too long."""
    if _one_at_a_time.locked():
        raise TransientError("another simulation runs now; try again when it has ended")
    async with _one_at_a_time:
        command = (sys.executable, "-m", "leaseway.cli", "simulate", str(path), "--json", *options)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            async with asyncio.timeout(SECONDS_MAX):
                out, said = await process.communicate()
        except TimeoutError:
            raise TransientError(
                f"the simulation takes longer than {SECONDS_MAX:.0f} s; try fewer rows, or run: leaseway simulate"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return read_report(process.returncode, out, said)


def read_report(code: int | None, out: bytes, said: bytes) -> dict[str, Any]:
    if code == 0:
        report: dict[str, Any] = msgspec.json.decode(out)
        return report
    lines = said.decode("utf-8", "replace").strip().splitlines()
    detail = (lines[-1] if lines else f"exit code {code}").removeprefix("error: ")[:DETAIL_LENGTH_MAX]
    if code == USAGE:
        raise UsageError(detail)
    if code == UNAVAILABLE:
        raise TransientError(detail)
    raise TransientError("the simulation ended with an error; run leaseway simulate to see it")
