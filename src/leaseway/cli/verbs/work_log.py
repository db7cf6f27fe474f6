"""What a worker tells while it works: one line for each event, for people or for programs."""

import logging
import sys
from datetime import UTC, datetime

from leaseway.cli.screen.paint import harmless, painted
from leaseway.ports.events import Events
from leaseway.telemetry.lines import JsonLines, wants_json
from leaseway.telemetry.log import LEVELS

LOGGER = "leaseway"
ACCESS = "leaseway.access"
STYLES = {logging.DEBUG: "dim", logging.INFO: "green", logging.WARNING: "yellow", logging.ERROR: "red"}


class WorkEvents:
    """Log lines that keep the facts as facts, and the one count that the final report needs."""

    def __init__(self, also: Events | None) -> None:
        self._also = also
        self._logger = logging.getLogger(LOGGER)
        self.attempts_failed = 0

    def emit(self, name: str, /, **facts: object) -> None:
        if name == "attempt_failed":
            self.attempts_failed += 1
        self._logger.log(LEVELS.get(name, logging.DEBUG), name, extra={"facts": facts})
        if self._also is not None:
            self._also.emit(name, **facts)


def log_to_stderr(as_json: bool, *, quiet: bool, verbose: bool) -> bool:
    """Our lines always; those of the app's own loggers too, unless it has made its own arrangements. Whether they are
    JSON: then nothing else shall come in between."""
    as_json = as_json or wants_json()
    handler = logging.StreamHandler(Stderr())
    handler.setFormatter(JsonLines() if as_json else Lines())
    # A line for each request is for programs that read them, or for people who asked for everything.
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
    """Whatever stderr is at the moment: the progress line puts itself in between."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        level = painted(record.levelname.lower().ljust(7), STYLES.get(record.levelno, ""), sys.stderr)
        told = " ".join(f"{name}={fact}" for name, fact in getattr(record, "facts", {}).items())
        text = f"{harmless(record.getMessage())}  {harmless(told)}".rstrip()
        if record.exc_info:
            text += f"\n{harmless(self.formatException(record.exc_info))}"
        return f"{painted(time, 'dim', sys.stderr)} {level} {text}"
