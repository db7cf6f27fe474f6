"""A running hash of everything that happened; two equal hashes mean two equal histories."""

import hashlib
from collections.abc import Callable


class Trace:
    """Lines go into the hash, and to `write` if somebody wants to read along."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self._digest = hashlib.sha256()
        self._write = write
        self.lines = 0

    def add(self, seconds: float, who: str, what: str) -> None:
        line = f"{seconds:10.6f} {who:10} {what}\n"
        self._digest.update(line.encode())
        self.lines += 1
        if self._write is not None:
            self._write(line)

    def hash(self) -> str:
        return self._digest.hexdigest()[:16]
