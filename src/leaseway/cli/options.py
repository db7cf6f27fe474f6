"""Options and parameter types that several commands share, and the parsed options."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import click

NONE = "none"
"""The value that removes a cap."""


@dataclass
class CliSettings:
    """Options that are valid before or after any command."""

    store: str | None = None
    limits: str | None = None
    json: bool = False
    traceback: bool = False
    runs_handlers: bool = False
    """The command runs user code, which may leave threads behind that never end."""


class Filters(NamedTuple):
    """Filters; all conditions must hold, and None or empty means any."""

    states: tuple[str, ...] = ()
    kind: str | None = None
    queue: str | None = None
    tenant: str | None = None
    error: str | None = None


F = TypeVar("F", bound=Callable[..., Any])

STATES = ("pending", "leased", "done", "failed", "cancelled")

pass_settings = click.make_pass_decorator(CliSettings, ensure=True)


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """The innermost option wins: one after the command overrides the same one before it."""
    if value is not None and value is not False:
        setattr(ctx.find_root().ensure_object(CliSettings), str(parameter.name), value)


def everywhere(function: F, traceback: str = "Print the Python traceback on errors.") -> F:
    """--json and --traceback."""
    remembered: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _remember}
    as_json = click.option("--json", help="Print JSON.", **remembered)
    return as_json(click.option("--traceback", help=traceback, **remembered)(function))


def with_store(function: F) -> F:
    """--store, --json and --traceback."""
    return store(everywhere(function))


store = click.option(
    "--store",
    metavar="URL",
    expose_value=False,
    callback=_remember,
    help="The store, e.g. sqlite:///work.db, postgresql://host/db or mongodb://host/db. Default: $LEASEWAY_STORE, then "
    "the store of the app, if one is named, then sqlite:///leaseway.db.",
)


def with_limits(function: F) -> F:
    """--store, --limits, --json and --traceback."""
    return store(limits(everywhere(function)))


limits = click.option(
    "--limits",
    metavar="URL",
    expose_value=False,
    callback=_remember,
    help="Where limits are stored, if not with the jobs: redis://host:6379/0. Default: $LEASEWAY_LIMITS, then "
    "the limiter of the app, if one is named.",
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
    """Seconds, or a number with a unit: s, m, h, d. The domain checks the range."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return value
        match = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)\s*([smhd]?)", value.strip())
        if match is None:
            self.fail(f"{value!r} is not a duration; write seconds, or for example 90s, 5m, 2h, 7d.", param, ctx)
        return float(match[1]) * UNIT_SECONDS[match[2]]


class Moment(click.ParamType[Any]):
    """ISO 8601; local time unless it has a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value.strip())
            return moment if moment.tzinfo is not None else moment.astimezone()
        except (ValueError, OverflowError):
            example = "2030-12-31T08:00 (local time) or 2030-12-31T08:00Z"
            self.fail(f"{value!r} is not a point in time; write for example {example}.", param, ctx)


class CountOrNone(click.ParamType[Any]):
    """A whole number, or `none`, which removes a cap. The domain checks the range."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        try:
            return NONE if value == NONE else int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number; write for example 5, or {NONE} for no cap.", param, ctx)


COUNT_OR_NONE = CountOrNone()
DURATION = Duration()
MOMENT = Moment()
