"""What commands print on stdout and stderr: sentences, short facts, durations and progress, or JSON.

Commands print only through this package, which makes every text harmless: text from a store, a provider or a spec may
contain escape sequences that a terminal would obey, and line breaks that would add lines to the answer. Words are
coloured if the stream is a terminal that supports colours; this module does not need rich. The documents of --json are
those of the HTTP API, so that programs read the same everywhere.
"""

import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from shutil import get_terminal_size
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from msgspec import to_builtins

from leaseway.domain.errors import BadValue
from leaseway.domain.health import FindingLevel, render_duration
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.job import State
from leaseway.domain.limits.limit import PermitRequest
from leaseway.domain.requirements import parse_needs

if TYPE_CHECKING:
    from rich.console import Console

CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal: lines are fitted to its width."""
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


class Styled(NamedTuple):
    """A part of a line in a style, such as "red bold"."""

    text: str
    style: str


class Lines(str):
    """Text whose line breaks are meant: it was wrapped or indented here. In other texts they are shown as \\n."""

    __slots__ = ()


Line = str | Sequence[str | Styled]


def render_line(line: Line, stream: TextIO) -> str:
    """A line for a stream, with colours if the stream shows them. Its texts are made harmless here."""
    parts = [line] if isinstance(line, str) else line
    return "".join(_painted(part, stream) if isinstance(part, Styled) else _shown(part) for part in parts)


def _shown(text: str) -> str:
    return harmless(text) if isinstance(text, Lines) else harmless_line(text)


def _painted(part: Styled, stream: TextIO) -> str:
    text = _shown(part.text)
    if not part.style or not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    codes = ";".join(str(CODES[word]) for word in part.style.split())
    return f"\033[{codes}m{text}\033[0m"


def harmless(text: str) -> str:
    """Text without control characters, which a terminal would obey, and without characters that change the direction of
    text. They are shown as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else escaped(char) for char in text)


def harmless_line(text: str) -> str:
    """The same on one line, so that the text cannot add lines of its own."""
    return harmless(text).replace("\n", "\\n")


def escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def rich_console(*, stderr: bool = False, width: int | None = None) -> "Console":
    """A console of rich whose texts are harmless as well."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class HarmlessConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(harmless(segment.text), segment.style)

    return HarmlessConsole(stderr=stderr, width=width, highlight=False)


STATE_STYLES = {
    State.PENDING: "yellow",
    State.LEASED: "cyan",
    State.DONE: "green",
    State.FAILED: "red",
    State.CANCELLED: "dim",
}

LEVEL_STYLES = {FindingLevel.OK: "green", FindingLevel.WARNING: "yellow", FindingLevel.PROBLEM: "red bold"}


WIDTH_MAX = 100


def say(line: Line = "", style: str = "") -> None:
    parts = [Styled(line, style)] if isinstance(line, str) else line
    print(render_line(parts, sys.stdout))


def note(text: str, style: str = "dim") -> None:
    """A note on stderr, beside the answer."""
    complain([Styled(text, style)])


def complain(line: Line) -> None:
    """An error on stderr."""
    print(render_line(line, sys.stderr), file=sys.stderr)


def confirm(question: str) -> None:
    """Ask on stderr, and abort the command unless the answer is yes."""
    import click

    click.confirm(harmless_line(question), abort=True, err=True)


def heading(text: str) -> None:
    say()
    say(text, "bold")


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values below each other; names without a value are left out."""
    kept = [(name, value) for name, value in pairs if value]
    width = max((len(harmless_line(name)) for name, _ in kept), default=0)
    for name, value in kept:
        say(["  ", Styled(harmless_line(name).ljust(width), "dim"), "  ", wrapped(value, width + 4)])


def counted(count: int, what: str) -> str:
    """1 job, 2 jobs"""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def block(text: str, indent: str = "  ") -> None:
    """Text from outside that has several lines. Further than `facts` are, if it is not JSON: it must not look so."""
    say(Lines(textwrap.indent(harmless(text).rstrip("\n"), indent)))


FOREIGN = "    "
"""Indents lines that others have written."""


def wrapped(text: str, indent: int = 0) -> str:
    """Wrapped at words on a terminal, with `indent` from the second line on; not wrapped in a pipe."""
    text = harmless_line(text)
    if not is_terminal(sys.stdout):
        return text
    width = max(min(get_terminal_size().columns, WIDTH_MAX), indent + 20)
    space = " " * indent
    lines = textwrap.wrap(
        text, width, initial_indent=space, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )
    return Lines("\n".join(lines).lstrip(" "))


def needs_in_words(text: str) -> str:
    """Limits with the weight of a call, then budgets. A text that cannot be parsed is shown unchanged."""
    try:
        needs = parse_needs(text)
    except BadValue:
        return text
    return ", ".join([*map(_ask_in_words, needs.limits), *(f"budget {charge.name}" for charge in needs.budgets)])


def _ask_in_words(ask: PermitRequest) -> str:
    return ask.name if ask.cost == 1 else f"{ask.cost:,} of {ask.name}"


def show_status(text: str) -> None:
    """Replace the last line on stderr, if it is a terminal. An empty text removes it."""
    if is_terminal(sys.stderr):
        sys.stderr.write(f"\r\033[2K{harmless_line(text)}")
        sys.stderr.flush()


class Counter:
    def __init__(self, what: str) -> None:
        self.count = 0
        self._what = what

    def __enter__(self) -> "Counter":
        return self

    def add(self, count: int) -> None:
        self.count += count
        show_status(f"{self._what} {self.count:,} …")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.count:
            show_status("")


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


def print_json(value: Any) -> None:
    """Print the one document of a command."""
    print(render_json(value, sys.stdout, indent=2))


def print_json_line(value: Any) -> None:
    """Print one of many documents, as a JSON line."""
    print(render_json(value, sys.stdout))


def render_json(value: Any, stream: TextIO, indent: int | None = None) -> str:
    """JSON in which every character that a terminal would obey is an escape. Programs read the same text."""
    is_unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(value, indent=indent, default=to_builtins, ensure_ascii=not is_unicode)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
