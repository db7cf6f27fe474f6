"""Coloured words, if the stream is a terminal that supports colours. Does not need rich."""

import os
from typing import TextIO

from leaseway.domain.health import FindingLevel
from leaseway.domain.job import State

CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal: lines are fitted to its width."""
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def painted(text: str, style: str, stream: TextIO) -> str:
    if not style or not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    codes = ";".join(str(CODES[word]) for word in style.split())
    return f"\033[{codes}m{text}\033[0m"


def harmless(text: str) -> str:
    """Text from outside without control characters, which could change the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else escaped(char) for char in text)


def escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


STATE_STYLES = {
    State.PENDING: "yellow",
    State.LEASED: "cyan",
    State.DONE: "green",
    State.FAILED: "red",
    State.CANCELLED: "dim",
}

LEVEL_STYLES = {FindingLevel.OK: "green", FindingLevel.WARNING: "yellow", FindingLevel.PROBLEM: "red bold"}
