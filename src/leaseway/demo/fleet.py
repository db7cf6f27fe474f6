"""The demo's processes: one provider, some workers. Whoever leaves the `with` block leaves none of them behind."""

import contextlib
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

DRAIN_SECONDS = 5.0


class Member(NamedTuple):
    """A worker process. Names are never reused."""

    number: int
    process: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None


class Fleet:
    def __init__(self, folder: Path, store: Path, concurrency: int) -> None:
        self._folder = folder
        self._store = store
        self._concurrency = concurrency
        self._provider: subprocess.Popen[bytes] | None = None
        self._logs = contextlib.ExitStack()
        self.port = 0
        self.members: list[Member] = []

    def __enter__(self) -> "Fleet":
        return self

    def start_provider(self, journal: Path, wait_seconds: float, seed: int) -> None:
        arguments = [str(journal), str(wait_seconds), str(seed)]
        self._provider = self._start("leaseway.demo.provider", arguments, "provider.log", stdout=subprocess.PIPE)
        assert self._provider.stdout is not None
        self.port = int(self._provider.stdout.readline() or 0)
        if not self.port:
            raise RuntimeError(f"the provider did not start; see {self._folder / 'provider.log'}")

    def add(self) -> Member:
        number = len(self.members) + 1
        arguments = [str(self._store), str(self.port), str(number), str(self._concurrency)]
        member = Member(number, self._start("leaseway.demo.worker", arguments, f"worker-{number}.log"))
        self.members.append(member)
        return member

    def alive(self) -> list[Member]:
        return [member for member in self.members if member.is_alive]

    def kill(self, member: Member) -> None:
        """SIGKILL: no goodbye, no settlement, nothing handed back."""
        member.process.kill()
        member.process.wait()

    def end(self) -> None:
        """Workers first, so that the provider answers their last calls and its journal is complete."""
        for member in self.alive():
            member.process.terminate()
        for member in self.members:
            wait_or_kill(member.process)
        if self._provider is not None:
            with self._provider:  # closes its stdin, which ends it
                assert self._provider.stdin is not None
                self._provider.stdin.close()
                wait_or_kill(self._provider)
            self._provider = None
        self._logs.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def _start(
        self, module: str, arguments: list[str], log: str, stdout: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C reaches the demo only, which then ends its children in order.
        file = self._logs.enter_context((self._folder / log).open("wb"))
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=stdout, stderr=file, start_new_session=True
        )  # fmt: skip


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(DRAIN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
