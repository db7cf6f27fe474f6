"""Sentences, short facts, durations and progress, as text on stdout and stderr."""

import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from shutil import get_terminal_size
from types import TracebackType

import msgspec

from leaseway.cli.output.color import harmless, is_terminal, painted
from leaseway.domain.health import render_duration
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import parse_needs

WIDTH_MAX = 100


def say(text: str = "", style: str = "") -> None:
    print(painted(text, style, sys.stdout))


def note(text: str) -> None:
    """A note on stderr, beside the answer."""
    print(painted(text, "dim", sys.stderr), file=sys.stderr)


def heading(text: str) -> None:
    say()
    say(text, "bold")


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values below each other; names without a value are left out."""
    kept = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        lines = wrapped(harmless(value), width + 4)
        print(f"  {painted(name.ljust(width), 'dim', sys.stdout)}  {lines}")


def counted(count: int, what: str) -> str:
    """1 job, 2 jobs"""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def block(text: str) -> None:
    """Text from outside, unchanged and indented."""
    print(textwrap.indent(harmless(text).rstrip("\n"), "  "))


def wrapped(text: str, indent: int = 0) -> str:
    """Wrapped at words on a terminal, with `indent` from the second line on; unchanged in a pipe."""
    if not is_terminal(sys.stdout):
        return text
    width = max(min(get_terminal_size().columns, WIDTH_MAX), indent + 20)
    space = " " * indent
    lines = [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(
            line,
            width,
            initial_indent=space,
            subsequent_indent=space,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
    return "\n".join(lines).lstrip(" ")


def needs_in_words(text: str) -> str:
    """Limits with the weight of a call, then budgets. A text that cannot be parsed is shown unchanged."""
    try:
        needs = parse_needs(text)
    except msgspec.DecodeError:
        return text
    return ", ".join([*map(_ask_in_words, needs.limits), *(f"budget {charge.name}" for charge in needs.budgets)])


def _ask_in_words(ask: PermitRequest) -> str:
    return ask.name if ask.cost == 1 else f"{ask.cost:,} of {ask.name}"


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


def local(instant: Instant) -> str:
    try:
        return datetime.fromtimestamp(instant // SECOND_US, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "out of range"


def short(instant: Instant, now: Instant) -> str:
    """The time if it is today, else the date."""
    text, today = local(instant), local(now)[:10]
    return text[11:] if text.startswith(today) else text[:10]


def relative(instant: Instant, now: Instant) -> str:
    if abs(instant - now) < SECOND_US:
        return "now"
    return f"in {render_duration(instant - now)}" if instant > now else f"{render_duration(now - instant)} ago"


def moment(instant: Instant | None, now: Instant) -> str:
    """Empty for None."""
    return "" if instant is None else f"{relative(instant, now)} ({local(instant)})"


def span(us: int) -> str:
    """A duration as short as those of limits: 0.62 s, 12 s, 3 min."""
    if us >= 10 * SECOND_US:
        return render_duration(us)
    return f"{us / SECOND_US:.3g} s" if us >= SECOND_US // 1_000 else f"{us / 1_000:.3g} ms"
