"""leaseway submit, one job"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from leaseway.app import App
from leaseway.cli.screen.as_json import document
from leaseway.cli.screen.text import say
from leaseway.cli.settings import Settings
from leaseway.cli.verbs.apps import load_app
from leaseway.cli.verbs.stores import refuse_memory, store_url
from leaseway.domain.errors import BadValue
from leaseway.domain.job import Submitted
from leaseway.worker.submit import Bound

Typed = tuple[Sequence[str], str | None]
"""NAME=VALUE words, and the text of --json-args."""


def submit_one(settings: Settings, app_name: str, kind: str, typed: Typed, options: dict[str, Any]) -> None:
    app = app_at(settings, app_name)
    job = bind(app, kind, arguments_of(typed), options_of(options))
    submitted = asyncio.run(submit(app, job))
    if settings.json:
        document({"id": submitted.id, "replayed": submitted.replayed})
    elif submitted.replayed:
        say(f"{submitted.id}  replayed: this key was submitted before, the first job stands")
    else:
        say(f"{submitted.id}  submitted")


def app_at(settings: Settings, name: str) -> App:
    """The app, with the store that was asked for."""
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
        hint = "what is valid JSON is read as JSON; for text write name='\"…\"'"
        raise BadValue(error.field, f"{error.problem} ({hint})") from error


def arguments_of(typed: Typed) -> dict[str, Any]:
    words, json_args = typed
    arguments = {} if json_args is None else object_of(json_args, "--json-args")
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadValue(word, "is no argument; write NAME=VALUE")
        if name in arguments:
            raise BadValue(name, "is given twice")
        arguments[name] = value_of(value)
    return arguments


def object_of(text: str, field: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadValue(field, f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadValue(field, 'must be one JSON object of arguments, like {"address": "…"}')
    return value


def value_of(text: str) -> Any:
    """JSON if it is, else text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


def options_of(typed: dict[str, Any]) -> dict[str, Any]:
    """What was said about the job, in the words of submit()."""
    given = {name: value for name, value in typed.items() if value is not None}
    if "cursor" in given:
        given["cursor"] = value_of(given["cursor"])
    return given
