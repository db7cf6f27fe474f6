"""A server process for tests: started on a free port of loopback, with its own data, and ended with all of it.

`postgres`, `valkey` and `mongodb` in this package derive from `ServerProcess`.
"""

import contextlib
import importlib.metadata
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.005
PORTS = (10_000, 32_000)
PORT_TRIES_MAX = 100


class ServerProcess:
    """One server with its own data. It can be stopped, killed and started again, with its port and its data."""

    name: str
    start_seconds_max = 60.0
    stop_seconds_max = 30.0

    def __init__(self, base: Path) -> None:
        self._base = base
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self._base / "log").read_text(errors="replace")

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open, and no request is answered until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _launch(self, command: Sequence[str], is_ready: Callable[[], bool], **options: Any) -> None:
        """Start the program and wait until it accepts requests."""
        with (self._base / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        self._await(is_ready)

    def _await(self, is_ready: Callable[[], bool]) -> None:
        assert self.process is not None
        process = self.process

        def is_up() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start:\n{self.log[-2000:]}")
            return is_ready()

        if not wait_until(is_up, self.start_seconds_max):
            raise TimeoutError(f"{self.name} is not ready after {self.start_seconds_max} s:\n{self.log[-2000:]}")

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.resume()  # a paused process would not react to the signal
        self.process.send_signal(number)
        try:
            self.process.wait(self.stop_seconds_max)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def wait_until(is_ready: Callable[[], bool], seconds: float) -> bool:
    """Poll until it is ready. False: it was not within this time."""
    deadline = time.monotonic() + seconds
    while not is_ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def packaged_file(package: str, prefix: str) -> Path:
    """The file of an installed package whose name is `prefix` or, if there is none, begins with it."""
    try:
        files = importlib.metadata.files(package) or ()
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"the package {package} is not installed: pip install {package}") from None
    exact = [file for file in files if file.name == prefix]
    for file in exact or [file for file in files if file.name.startswith(prefix)]:
        return Path(str(file.locate())).resolve()
    raise FileNotFoundError(f"{prefix} is not in the installed package {package}")


def free_port() -> int:
    """A free port below those that the system gives to outgoing connections, so that none of them takes it meanwhile.

    Random, because test processes that run side by side look for ports at the same time.
    """
    for _ in range(PORT_TRIES_MAX):
        port = random.randrange(*PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port among {PORT_TRIES_MAX} between {PORTS[0]} and {PORTS[1]}")


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def wait_for_interrupt() -> None:
    """Until Ctrl-C or SIGTERM, so that the caller's `with` block removes the data."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
