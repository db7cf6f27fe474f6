"""Options that several commands share."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

from leaseway.cli.settings import Filters, Settings

F = TypeVar("F", bound=Callable[..., Any])

STATES = ("pending", "leased", "done", "failed", "cancelled")

pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """The innermost word counts: an option after the command wins over the same one before it."""
    if value is not None and value is not False:
        setattr(ctx.find_root().ensure_object(Settings), str(parameter.name), value)


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
