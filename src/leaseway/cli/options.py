"""Options that several commands share."""

import re
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar, cast

import click

from leaseway.cli.settings import NONE, CliSettings, Filters

F = TypeVar("F", bound=Callable[..., Any])

STATES = ("pending", "leased", "done", "failed", "cancelled")

pass_settings = click.make_pass_decorator(CliSettings, ensure=True)


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """The innermost word counts: an option after the command wins over the same one before it."""
    if value is not None and value is not False:
        setattr(ctx.find_root().ensure_object(CliSettings), str(parameter.name), value)


def everywhere(function: F, traceback: str = "Show Python's traceback on errors.") -> F:
    """--json and --traceback."""
    remembered: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _remember}
    as_json = click.option("--json", help="Answer in JSON, for programs.", **remembered)
    return as_json(click.option("--traceback", help=traceback, **remembered)(function))


def with_store(function: F) -> F:
    """--store, and what is everywhere."""
    return store(everywhere(function))


store = click.option(
    "--store",
    metavar="URL",
    expose_value=False,
    callback=_remember,
    help="The store, e.g. sqlite:///work.db or postgresql://host/db. Else $LEASEWAY_STORE, then that of the app, if "
    "one is named, then sqlite:///leaseway.db.",
)


def with_limits(function: F) -> F:
    """--store, --limits, and what is everywhere."""
    return store(limits(everywhere(function)))


limits = click.option(
    "--limits",
    metavar="URL",
    expose_value=False,
    callback=_remember,
    help="Where limits are kept, if not beside the jobs: redis://host:6379/0. Else $LEASEWAY_LIMITS, then "
    "that of the app, if one is named.",
)


def with_filters(*states: str) -> Callable[[F], F]:
    """Five options that reach the command as one value, `filters`."""

    def decorate(function: F) -> F:
        @wraps(function)
        def collected(*arguments: Any, **options: Any) -> Any:
            filters = Filters(**{name: options.pop(name) for name in Filters._fields})
            return function(*arguments, filters=filters, **options)

        given: Any = collected
        for option in reversed(
            [
                click.option("--state", "states", type=click.Choice(states), multiple=True, help="May be repeated."),
                click.option("--kind", metavar="KIND", help="Only jobs of this kind."),
                click.option("--queue", metavar="QUEUE", help="Only jobs of this queue."),
                click.option("--tenant", metavar="TENANT", help="Only jobs of this tenant."),
                click.option("--error", metavar="CODE", help="Only jobs whose last error has this code."),
            ]
        ):
            given = option(given)
        return cast(F, given)

    return decorate


UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Duration(click.ParamType[Any]):
    """Seconds, or a number with one of the units s, m, h, d. Whether it makes sense is for the domain to say."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return value
        match = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)\s*([smhd]?)", value.strip())
        if match is None:
            self.fail(f"{value!r} is no duration; write seconds, or for example 90s, 5m, 2h, 7d.", param, ctx)
        return float(match[1]) * UNIT_SECONDS[match[2]]


class Moment(click.ParamType[Any]):
    """ISO 8601; local time unless it says otherwise."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value.strip())
            return moment if moment.tzinfo is not None else moment.astimezone()
        except (ValueError, OverflowError):
            example = "2030-12-31T08:00 (local time) or 2030-12-31T08:00Z"
            self.fail(f"{value!r} is no point in time; write for example {example}.", param, ctx)


class CountOrNone(click.ParamType[Any]):
    """A whole number, or the word none, which takes a cap away. Whether it makes sense is for the domain to say."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        try:
            return NONE if value == NONE else int(value)
        except ValueError:
            self.fail(f"{value!r} is no whole number; write for example 5, or {NONE} for no cap.", param, ctx)


COUNT_OR_NONE = CountOrNone()
DURATION = Duration()
MOMENT = Moment()
