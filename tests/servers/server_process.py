"""Starts and stops servers that others wrote."""

import contextlib
import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.npm_packages import node
from tests.processes import kill_session

from leaseway.system import SystemClock

PROGRAMS = Path(__file__).parent / "programs"
START_SECONDS_MAX = 240
"""Some import hundreds of modules, which takes minutes on a busy machine."""
REQUEST_SECONDS_MAX = 60
LOOK_SECONDS = 0.1
LOG_LENGTH_MAX = 3_000


class RunningServer:
    def __init__(self, url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.url, self.process, self.log = url, process, log

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """One request, for the records of a test."""
        content = None if body is None else json.dumps(body).encode()
        named = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(f"{self.url}{path}", content, named, method=method)
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS_MAX) as reply:
            return json.loads(reply.read() or b"null")


class ServerKit:
    """`environment` has the packages, `modules` those of npm. All processes end with the kit."""

    def __init__(self, environment: Path, modules: Path) -> None:
        self.environment, self.modules = environment, modules
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "ServerKit":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._started:
            kill_session(process)

    def program(self, folder: Path, name: str, *arguments: Any) -> RunningServer:
        """A program of this folder. `PORT` among the arguments is replaced."""
        return self.start(folder, [str(self.environment / "bin" / "python"), str(PROGRAMS / name)], arguments)

    def script(self, folder: Path, name: str, *arguments: Any) -> RunningServer:
        """A command that a package installs."""
        return self.start(folder, [str(self.environment / "bin" / name)], arguments)

    def node(self, folder: Path, path: Path, *arguments: Any) -> RunningServer:
        return self.start(folder, [str(node()), str(path)], arguments)

    def start(self, folder: Path, command: list[str], arguments: tuple[Any, ...]) -> RunningServer:
        port, log = free_port(), folder / "server.log"
        given = [str(port) if each == "PORT" else str(each) for each in arguments]
        process = start_process([*command, *given], folder, log)
        self._started.append(process)
        if not has_opened(port, process):
            raise AssertionError(f"the server did not start: {log.read_text('utf-8', 'replace')[-LOG_LENGTH_MAX:]}")
        return RunningServer(f"http://127.0.0.1:{port}", process, log)


def start_process(command: list[str], folder: Path, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        environ = {**os.environ, "PYTHONWARNINGS": "ignore"}
        return subprocess.Popen(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip


def has_opened(port: int, process: "subprocess.Popen[bytes]") -> bool:
    clock = SystemClock()
    until = clock.monotonic() + START_SECONDS_MAX
    while process.poll() is None and clock.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_SECONDS)
    return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
