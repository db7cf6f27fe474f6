"""The worker's log lines: one per event, as text or as JSON."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leaseway.cli.output.console import (
    FOREIGN,
    Lines,
    Styled,
    harmless_line,
    is_terminal,
    render_line,
    rich_console,
)
from leaseway.domain.errors import LeasewayError
from leaseway.ports.reads import JobReads
from leaseway.ports.telemetry import Events
from leaseway.telemetry.log import LEVELS, JsonLines, RepeatFilter, render_fields, wants_json

if TYPE_CHECKING:
    from rich.text import Text

LOGGER = "leaseway"
ACCESS = "leaseway.access"
STYLES = {logging.DEBUG: "dim", logging.INFO: "green", logging.WARNING: "yellow", logging.ERROR: "red"}


class WorkEvents:
    """A log handler that keeps the event's fields, and counts failed attempts for the final summary."""

    def __init__(self, also: Events | None) -> None:
        self._also = also
        self._logger = logging.getLogger(LOGGER)
        self.attempts_failed = 0

    def emit(self, name: str, /, **fields: object) -> None:
        if name == "attempt_failed":
            self.attempts_failed += 1
        self._logger.log(LEVELS.get(name, logging.DEBUG), name, extra={"fields": fields})
        if self._also is not None:
            self._also.emit(name, **fields)


def log_to_stderr(as_json: bool, *, quiet: bool, verbose: bool) -> bool:
    """Configure logging: leaseway's lines always, those of the app's loggers unless it configured logging itself.
    Returns whether lines are JSON; nothing else may then be written in between.
    """
    as_json = as_json or wants_json()
    handler = logging.StreamHandler(Stderr())
    handler.setFormatter(JsonLines() if as_json else LogLines())
    handler.addFilter(RepeatFilter())
    # Lines per request are for programs, or for --verbose.
    logging.getLogger(ACCESS).setLevel(logging.INFO if (wants_json() or verbose) and not quiet else logging.WARNING)
    ours, root = logging.getLogger(LOGGER), logging.getLogger()
    ours.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    ours.addHandler(handler)
    ours.propagate = False
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(logging.INFO if verbose else logging.WARNING)
    return as_json


class Stderr:
    """The current stderr: the progress line replaces it."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class LogLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        level = Styled(record.levelname.lower().ljust(7), STYLES.get(record.levelno, ""))
        told = render_fields(getattr(record, "fields", {}))
        # A field cannot add a line, which would look like an event of its own.
        text = f"{record.getMessage()}  {harmless_line(told)}".rstrip()
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        indented = Lines(text.replace("\n", f"\n{FOREIGN}"))
        return render_line([Styled(time, "dim"), " ", level, " ", indented], sys.stderr)


LOOK_SECONDS = 0.5
COUNTS = ("ready", "scheduled", "leased", "done", "failed")


@asynccontextmanager
async def showing_progress(reads: JobReads, queues: Sequence[str], show: bool) -> AsyncIterator[None]:
    """Shows progress beside the body, if stderr is a terminal."""
    if not show or not sys.stderr.isatty() or not is_terminal(sys.stderr):
        yield
        return
    from rich.live import Live

    progress = WorkProgress()
    # Text that handlers print goes above the progress line, unless it goes into a file.
    live = Live(
        get_renderable=progress.text,
        console=rich_console(stderr=True),
        refresh_per_second=4,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    with live:
        looking = asyncio.get_running_loop().create_task(progress.keep_looking(reads, queues))
        try:
            yield
        finally:
            looking.cancel()


class WorkProgress:
    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._per_second = 0.0

    async def keep_looking(self, reads: JobReads, queues: Sequence[str]) -> None:
        clock = asyncio.get_running_loop().time
        seen_at = clock()
        while True:  # until cancelled
            try:
                lanes = [lane for lane in await reads.lanes() if lane.queue in queues]
            except LeasewayError:
                lanes = []  # the worker reports the problem with the store itself
            if lanes:
                counts = {name: sum(getattr(lane, name) for lane in lanes) for name in COUNTS}
                now = clock()
                done = counts["done"] - self._counts.get("done", counts["done"])
                self._per_second = max(done, 0) / max(now - seen_at, 0.001)
                self._counts, seen_at = counts, now
            await asyncio.sleep(LOOK_SECONDS)

    def text(self) -> "Text":
        from rich.text import Text

        if not self._counts:
            return Text("waiting for work", style="dim")
        told = [f"{self._counts[name]:,} {name}" for name in COUNTS if self._counts[name] or name != "scheduled"]
        return Text(f"{' · '.join(told)} · {self._per_second:,.0f}/s", style="dim")
