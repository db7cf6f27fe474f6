"""The progress of a long command, on one line of stderr if that is a terminal."""

import sys
from types import TracebackType

from leaseway.cli.output.color import is_terminal


class Counter:
    def __init__(self, what: str) -> None:
        self.count = 0
        self._what = what
        self._is_shown = is_terminal(sys.stderr)

    def __enter__(self) -> "Counter":
        return self

    def add(self, count: int) -> None:
        self.count += count
        if self._is_shown:
            sys.stderr.write(f"\r\033[2K{self._what} {self.count:,} …")
            sys.stderr.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_shown and self.count:
            sys.stderr.write("\r\033[2K")
            sys.stderr.flush()
