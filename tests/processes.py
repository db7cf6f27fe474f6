"""Looks at processes that a test has started, through /proc, so that no `ps` has to be installed."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

PROC = Path("/proc")
END_SECONDS_MAX = 10


def child_processes(parent: int) -> list[int]:
    """The ids of the processes that `parent` has started and that have not been reaped."""
    return [int(path.name) for path in PROC.glob("[0-9]*") if parent_process(path) == parent]


def parent_process(path: Path) -> int | None:
    try:
        stat = (path / "stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):  # it has ended in the meantime
        return None
    # The name of the program is in parentheses and may contain spaces; the state and the parent's id follow it.
    return int(stat.rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill_children_of_failed_blocks() -> None:
    """From now on, `with Popen(…)` kills the process if the block fails, instead of waiting for it.

    Otherwise a test that fails or times out while its process still runs would hang for as long as the process lives.
    """
    wait_for_process = Popen.__exit__

    def exit_block(self: "Popen[Any]", kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self.kill()
        wait_for_process(self, kind, error, traceback)

    Popen.__exit__ = exit_block  # type: ignore[method-assign]


def kill_session(process: "Popen[Any]") -> None:
    """Kill a process that was started with `start_new_session=True`, and everything that it has started.

    Children hold the pipes of their parent open, so waiting for the output of a killed parent alone may never end.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=END_SECONDS_MAX)
