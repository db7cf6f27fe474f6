"""The HTTP API of another queue, for comparison."""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import say
from benchmarks.service.flower_peer import PASSWORD, USER
from benchmarks.service.hammer import hammered, request_of
from benchmarks.service.place import Served, Size, cpu_seconds
from benchmarks.service.submitting import JOB, Submitted, of
from leaseway.testing.server import free_port
from leaseway.testing.valkey import valkey_server

PYTHON = os.environ.get("LEASEWAY_BENCH_FLOWER") or sys.executable
"""An interpreter with Flower, Celery and redis, if this one does not have them."""
START_SECONDS_MAX = 60.0
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
PATH = "/api/task/async-apply/noop"


def has_flower() -> bool:
    command = [PYTHON, "-c", "import celery, flower, kombu.transport.redis"]
    is_there = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not is_there:
        say("  not installed, and left out: Flower; name a Python that has it with LEASEWAY_BENCH_FLOWER")
    return is_there


def flower_version() -> str:
    command = [
        PYTHON,
        "-c",
        "from importlib.metadata import version as v; print('Flower', v('flower'), 'Celery', v('celery'))",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def flower(size: Size, connections: int) -> Submitted:
    with valkey_server() as broker, started(broker.url) as service:
        body = json.dumps({"args": [JOB["arguments"]["text"]]}).encode()  # type: ignore[index]
        request = request_of(service, PATH, body, (f"Authorization: Basic {BASIC}",))
        before, warm = cpu_seconds(service.pid), min(size.peer_seconds / 3, 1.0)
        found = hammered(service, request, connections=connections, seconds=size.peer_seconds, warm_seconds=warm)
        return of(found, cpu_seconds(service.pid) - before, found["seconds"] + warm)


@contextmanager
def started(broker: str) -> Iterator[Served]:
    port = free_port()
    command = [PYTHON, str(Path(__file__).with_name("flower_peer.py")), str(port), broker]
    # Its environment may have packages of its own.
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        command, env=known, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        await_answer(f"http://127.0.0.1:{port}", process)
        yield Served(f"http://127.0.0.1:{port}", process.pid, "")
    finally:
        process.kill()
        process.wait()


def await_answer(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/healthcheck", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it responds, if only with a request for a password
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("Flower did not start")
