"""leaseway submit --many: JSON lines in, batches into the store.

A batch is stored whole or not at all, and batches are stored in order: whatever stops the command, it can say which
lines are stored and which are not.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from leaseway.app import App
from leaseway.cli.screen.as_json import line
from leaseway.cli.screen.counter import Counter
from leaseway.cli.screen.text import counted, note, say
from leaseway.cli.settings import Settings
from leaseway.cli.verbs.submit import Typed, app_at, bind, object_of, options_of
from leaseway.domain.errors import BadValue, UnknownOutcome, UsageError
from leaseway.worker.submit import Bound

BATCH = 1_000


class Numbered(NamedTuple):
    line: int
    job: Bound


class Stored:
    """What is in the store for certain."""

    def __init__(self) -> None:
        self.jobs = 0
        self.replayed = 0
        self.line = 0
        self.sent: tuple[int, int] | None = None
        """First and last line of the batch that is on its way."""


def submit_many(settings: Settings, app_name: str, kind: str, file: str, typed: Typed, options: dict[str, Any]) -> None:
    refuse_mixture(typed, options)
    app = app_at(settings, app_name)
    stored = Stored()
    try:
        with lines_of(file) as lines:
            asyncio.run(submit_batches(settings, app, bound(app, kind, lines, options_of(options)), stored))
    except BaseException as error:
        # Who interrupts a batch, or loses the reply to it, does not know whether it is stored.
        is_open = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | UnknownOutcome)
        tell_rest(settings, stored, stored.sent if is_open else None)
        raise
    if settings.json:
        line(so_far(stored))
    else:
        say(f"submitted {counted(stored.jobs, 'job')}" + (f", {stored.replayed:,} replayed" if stored.replayed else ""))


def refuse_mixture(typed: Typed, options: dict[str, Any]) -> None:
    words, json_args = typed
    if words or json_args is not None:
        raise UsageError("--many reads the arguments from the file; do not give others besides")
    if options.get("key") is not None:
        raise BadValue("--key", "one key cannot stand for many jobs")


@contextmanager
def lines_of(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        lines = Path(file).open("rb")  # noqa: SIM115 - errors of the body are not errors of opening
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); name a file of JSON lines, or -") from error
    with lines:
        yield lines


def bound(app: App, kind: str, lines: BinaryIO, options: dict[str, Any]) -> Iterator[Numbered]:
    """Each line as a checked job; an error names its line."""
    for number, raw in enumerate(lines, 1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if text:
                yield Numbered(number, bind(app, kind, object_of(text, "arguments"), options))
        except UnicodeDecodeError as error:
            raise UsageError(f"line {number}: is not UTF-8 text ({error.reason})") from error
        except BadValue as error:
            raise BadValue(f"line {number}: {error.field}", error.problem) from error


async def submit_batches(settings: Settings, app: App, jobs: Iterator[Numbered], stored: Stored) -> None:
    async with app:
        with Counter("submitted") as counter:
            while batch := list(islice(jobs, BATCH)):
                stored.sent = (batch[0].line, batch[-1].line)
                answers = await app.submit_many(each.job for each in batch)
                stored.sent = None
                stored.jobs += len(batch)
                stored.replayed += sum(answer.replayed for answer in answers)
                stored.line = batch[-1].line
                counter.add(len(batch))
                if settings.json:
                    for each, answer in zip(batch, answers, strict=True):
                        line({"line": each.line, "id": answer.id, "replayed": answer.replayed})


def tell_rest(settings: Settings, stored: Stored, doubtful: tuple[int, int] | None) -> None:
    """Before the error itself: how far it came, and how to go on."""
    if settings.json:
        line(so_far(stored) | ({} if doubtful is None else {"doubtful_lines": doubtful}))
        return
    doubt = "" if doubtful is None else f" Lines {doubtful[0]:,} to {doubtful[1]:,} may be stored as well."
    if stored.jobs:
        note(
            f"{counted(stored.jobs, 'job')} stored, up to line {stored.line:,}; the lines behind it are not.{doubt} "
            f"To go on: tail -n +{stored.line + 1} FILE | leaseway submit … --many -"
        )
    else:
        note(f"nothing was stored.{doubt}")


def so_far(stored: Stored) -> dict[str, Any]:
    return {"stored": stored.jobs, "replayed": stored.replayed, "last_line": stored.line}
