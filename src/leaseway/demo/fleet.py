"""The demo's processes: one provider and several workers. Leaving the `with` block ends all of them."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from leaseway.app import App
from leaseway.demo.spec import API_KEY, KEY_VARIABLE, Files
from leaseway.imports.assembly import load_import
from leaseway.imports.run.shard_jobs import register_jobs

DRAIN_SECONDS = 5.0
PROC = Path("/proc")
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


class Member:
    """A worker process. Numbers are never reused."""

    def __init__(self, number: int, process: "subprocess.Popen[bytes]") -> None:
        self.number = number
        self.process = process
        self.was_killed = False
        self.peak_bytes = 0
        """Its peak memory; 0 where the system does not report it."""

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def look(self) -> None:
        """Not `wait4`, whose peak is at least that of the process which started it."""
        with contextlib.suppress(OSError):
            found = PEAK.search((PROC / str(self.pid) / "status").read_text("ascii", "replace"))
            self.peak_bytes = int(found[1]) * 1_024 if found else self.peak_bytes

    def kill(self) -> None:
        """SIGKILL: nothing is settled or released."""
        self.process.kill()
        self.process.wait()

    def wait(self, seconds_max: float) -> None:
        """Wait for the workers to exit; kill those that have not exited by then."""
        try:
            self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()


class DemoFleet:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._provider: subprocess.Popen[bytes] | None = None
        self._logs = contextlib.ExitStack()
        self.url = ""
        self.members: list[Member] = []

    def __enter__(self) -> "DemoFleet":
        return self

    def start_provider(self, rows: int | None, limit: int, *, is_real: bool) -> None:
        arguments = ["--limit", f"{limit}/second", "--until-eof", *(["--places"] if is_real else [])]
        arguments += [] if rows is None else ["--rows", str(rows)]  # without it, all places
        self._provider = self._start(
            "leaseway.testing.fake_open_charge_map", arguments, "provider.log", stdout=subprocess.PIPE
        )
        assert self._provider.stdout is not None
        self.url = self._provider.stdout.readline().decode().strip()
        if not self.url:
            log = self._files.folder / "provider.log"
            raise RuntimeError(f"the provider did not start: {log.read_text('utf-8')}")

    def add(self) -> Member:
        number = len(self.members) + 1
        arguments = [str(self._files.spec), self._files.store_url]
        member = Member(number, self._start("leaseway.demo.fleet", arguments, f"worker-{number}.log"))
        self.members.append(member)
        return member

    def alive(self) -> list[Member]:
        return [member for member in self.members if member.is_alive]

    def look(self) -> None:
        for member in self.members:
            member.look()

    def kill(self, member: Member) -> None:
        member.kill()
        member.was_killed = True

    @property
    def peak_bytes(self) -> int:
        """The peak memory of the worker that used the most."""
        return max((member.peak_bytes for member in self.members), default=0)

    def dismiss(self) -> None:
        """End the workers. The provider stays and can still be queried."""
        for member in self.alive():
            member.process.terminate()
        for member in self.members:
            member.wait(DRAIN_SECONDS)
            close_stdin(member.process)

    def end(self) -> None:
        self.dismiss()
        if self._provider is not None:
            close_stdin(self._provider)  # which ends it
            try:
                self._provider.wait(DRAIN_SECONDS)
            except subprocess.TimeoutExpired:
                self._provider.kill()
                self._provider.wait()
            assert self._provider.stdout is not None
            self._provider.stdout.close()
            self._provider = None
        self._logs.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def _start(
        self, module: str, arguments: list[str], log: str, stdout: int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C reaches only the demo, which then ends its children in order.
        file = self._logs.enter_context((self._files.folder / log).open("wb"))
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=file,
            env={**os.environ, KEY_VARIABLE: API_KEY},
            start_new_session=True,
        )


def close_stdin(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()


CONCURRENCY = 4


def end_with_parent() -> None:
    """Exit when stdin is closed: the parent holds the other end, so it closes however the parent died."""
    os.read(0, 1)
    os._exit(1)


def main(spec: str, store_url: str) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    parts = load_import(Path(spec))
    app = App(store_url)
    register_jobs(app, parts)
    asyncio.run(parts.sink.open())
    app.work(queues=[parts.queue], until_empty=True, concurrency=CONCURRENCY, grace=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
