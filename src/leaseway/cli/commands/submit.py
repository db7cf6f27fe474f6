"""leaseway submit"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
import msgspec

from leaseway.app import App
from leaseway.cli.load_app import load_app
from leaseway.cli.open_store import refuse_memory, store_url
from leaseway.cli.options import DURATION, MOMENT, CliSettings, pass_settings, with_store
from leaseway.cli.output.console import Counter, counted, note, print_json, print_json_line, say
from leaseway.domain.errors import BadValue, UnknownOutcome, UsageError
from leaseway.domain.job import Submitted
from leaseway.worker.submit import Bound


@click.command("submit")
@click.argument("app", metavar="MODULE:APP")
@click.argument("kind")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--json-args", metavar="JSON", help="The arguments as one JSON object.")
@click.option("--many", metavar="FILE", help="One JSON object of arguments per line; - reads standard input.")
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key submits the same job only once.")
@click.option("--tenant", metavar="TEXT")
@click.option("--queue", metavar="TEXT", help="Queue of the job. Default: the queue of its kind.")
@click.option("--priority", type=int, help="-1000 … 1000; higher runs first.")
@click.option("--delay", type=DURATION, metavar="TIME", help="Do not run before this time has passed: 90, 5m, 2h.")
@click.option(
    "--run-at", type=MOMENT, metavar="TIME", help="Do not run before: 2030-12-31T08:00, in local time or with a zone."
)
@click.option("--attempts", type=int, help="Maximum number of attempts.")
@click.option("--timeout", type=DURATION, metavar="TIME", help="Timeout of one attempt.")
@click.option("--shard-key", metavar="TEXT")
@click.option("--cursor", metavar="VALUE", help="Cursor of the first attempt; JSON, else text.")
@with_store
@pass_settings
def command(
    settings: CliSettings,
    /,
    app: str,
    kind: str,
    arguments: tuple[str, ...],
    json_args: str | None,
    many: str | None,
    **options: Any,
) -> None:
    """Submit a job, or many from a file.

    A VALUE that is valid JSON is read as JSON (5, true, null, [1,2]), anything else as text. For the text 5 write
    name='"5"'.

    \b
      leaseway submit tasks:app geocode address="Main Street 1" --key geo:1
      leaseway submit tasks:app geocode --many addresses.jsonl
    """
    if many is not None:
        submit_many(settings, app, kind, many, (arguments, json_args), options)
    else:
        submit_one(settings, app, kind, (arguments, json_args), options)


Typed = tuple[Sequence[str], str | None]
"""NAME=VALUE words, and the text of --json-args."""


def submit_one(settings: CliSettings, app_name: str, kind: str, typed: Typed, options: dict[str, Any]) -> None:
    app = app_at(settings, app_name)
    job = bind(app, kind, parse_arguments(typed), parse_options(options))
    submitted = asyncio.run(submit(app, job))
    if settings.json:
        print_json({"id": submitted.id, "replayed": submitted.replayed})
    elif submitted.replayed:
        say(f"{submitted.id}  exists: a job with this key was submitted before")
    else:
        say(f"{submitted.id}  submitted")


def app_at(settings: CliSettings, name: str) -> App:
    """The app, with the store that the options name."""
    app = load_app(name)
    url = store_url(settings, app.url)
    refuse_memory(url)
    app.move(url)
    return app


async def submit(app: App, job: Bound) -> Submitted:
    async with app:
        return await app.submit(job)


def bind(app: App, kind: str, arguments: dict[str, Any], options: dict[str, Any]) -> Bound:
    try:
        return app.bind(kind, arguments, **options)
    except BadValue as error:
        if not error.problem.startswith("expected str, got"):
            raise
        hint = "a value that is valid JSON is read as JSON; for text write name='\"…\"'"
        raise BadValue(error.field, f"{error.problem} ({hint})") from error


def parse_arguments(typed: Typed) -> dict[str, Any]:
    words, json_args = typed
    arguments = {} if json_args is None else parse_object(json_args, "--json-args")
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadValue(word, "is not an argument; write NAME=VALUE")
        if name in arguments:
            raise BadValue(name, "is given twice")
        arguments[name] = parse_value(value)
    return arguments


def parse_object(text: str, field: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadValue(field, f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadValue(field, 'must be one JSON object of arguments, like {"address": "…"}')
    return value


def parse_value(text: str) -> Any:
    """JSON if it is valid, else text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


def parse_options(typed: dict[str, Any]) -> dict[str, Any]:
    """The options of the job, as arguments of submit()."""
    given = {name: value for name, value in typed.items() if value is not None}
    if "cursor" in given:
        given["cursor"] = parse_value(given["cursor"])
    return given


BATCH = 1_000


class Numbered(NamedTuple):
    line: int
    job: Bound


class StoredCount:
    """What is certainly in the store."""

    def __init__(self) -> None:
        self.jobs = 0
        self.replayed = 0
        self.line = 0
        self.sent: tuple[int, int] | None = None
        """First and last line of the batch that is being written."""


def submit_many(
    settings: CliSettings, app_name: str, kind: str, file: str, typed: Typed, options: dict[str, Any]
) -> None:
    refuse_mixture(typed, options)
    app = app_at(settings, app_name)
    stored = StoredCount()
    try:
        with open_lines(file) as lines:
            asyncio.run(submit_batches(settings, app, bound(app, kind, lines, parse_options(options)), stored))
    except BaseException as error:
        # If a batch is interrupted or its reply is lost, it may or may not be stored.
        is_open = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | UnknownOutcome)
        tell_rest(settings, stored, stored.sent if is_open else None)
        raise
    if settings.json:
        print_json_line(so_far(stored))
    else:
        say(f"submitted {counted(stored.jobs, 'job')}" + (f", {stored.replayed:,} replayed" if stored.replayed else ""))


def refuse_mixture(typed: Typed, options: dict[str, Any]) -> None:
    words, json_args = typed
    if words or json_args is not None:
        raise UsageError("--many reads the arguments from the file; do not pass others")
    if options.get("key") is not None:
        raise BadValue("--key", "one key cannot identify many jobs")


@contextmanager
def open_lines(file: str) -> Iterator[BinaryIO]:
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
    """Each line as a validated job; an error names its line."""
    for number, raw in enumerate(lines, 1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if text:
                yield Numbered(number, bind(app, kind, parse_object(text, "arguments"), options))
        except UnicodeDecodeError as error:
            raise UsageError(f"line {number}: is not UTF-8 text ({error.reason})") from error
        except BadValue as error:
            raise BadValue(f"line {number}: {error.field}", error.problem) from error


async def submit_batches(settings: CliSettings, app: App, jobs: Iterator[Numbered], stored: StoredCount) -> None:
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
                        print_json_line({"line": each.line, "id": answer.id, "replayed": answer.replayed})


def tell_rest(settings: CliSettings, stored: StoredCount, doubtful: tuple[int, int] | None) -> None:
    """Printed before the error: how many jobs are stored, and how to continue."""
    if settings.json:
        print_json_line(so_far(stored) | ({} if doubtful is None else {"doubtful_lines": doubtful}))
        return
    doubt = "" if doubtful is None else f" Lines {doubtful[0]:,} to {doubtful[1]:,} may be stored as well."
    if stored.jobs:
        note(
            f"{counted(stored.jobs, 'job')} stored, up to line {stored.line:,}; later lines are not.{doubt} "
            f"To continue: tail -n +{stored.line + 1} FILE | leaseway submit … --many -"
        )
    else:
        note(f"nothing was stored.{doubt}")


def so_far(stored: StoredCount) -> dict[str, Any]:
    return {"stored": stored.jobs, "replayed": stored.replayed, "last_line": stored.line}
