"""What can be said of a function that fetches one page: what it takes, where it stands, and what it did wrong."""

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leaseway.domain.errors import BadValue, TerminalError, UsageError

GIVEN = ("shard", "cursor", "limit", "http")
SHOWN_LENGTH = 80

PageFunction = Callable[..., Any]


class BadPage(TerminalError):
    """A page function returned nonsense, or is wrong."""


def page_parameters(function: PageFunction) -> frozenset[str]:
    """Which of the four the function takes, by their names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{function!r} is no function that fetches a page: {error}") from error
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return frozenset(GIVEN)
    unknown = [each for each in parameters if each.default is each.empty and not is_page_parameter(each)]
    if unknown:
        raise BadValue(
            f"{describe_function(function)}: {unknown[0].name}",
            f"nobody gives it; a page function takes {', '.join(GIVEN)}",
        )
    return frozenset(each.name for each in parameters) & frozenset(GIVEN)


def is_page_parameter(parameter: inspect.Parameter) -> bool:
    is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return parameter.kind is parameter.VAR_POSITIONAL or (is_named and parameter.name in GIVEN)


def describe_function(function: PageFunction) -> str:
    name = str(getattr(function, "__qualname__", function)).rpartition("<locals>.")[2]
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name}()" if code is None else f"{name}() in {Path(code.co_filename).name}, line {code.co_firstlineno}"


def error_line(error: BaseException, function: PageFunction) -> str:
    """Where in the function's own file it happened."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def describe_value(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {render_short(value)}"


def render_short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"
