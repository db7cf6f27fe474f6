"""A function ─► [its signature as types] ─► a kind of job

What a signature cannot express as JSON is refused here, when the module is imported, with the way out.
"""

import inspect
import typing
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import msgspec.inspect
from msgspec import Struct

from leaseway.domain.errors import UsageError
from leaseway.domain.signature.models import JSON_TYPES, is_pydantic_dataclass, is_readable

CONTEXT = "ctx"
ENCODED_SUBCLASSES = (dict, list, tuple, set, frozenset)
"""Values of their subclasses can be written as JSON, although msgspec cannot make them from it."""


class Signature(NamedTuple):
    takes_context: bool
    Arguments: type[Struct]
    result: Any
    """The type of the result; Any if there is no annotation, or if it cannot be read back from JSON."""


LAMBDA = "<lambda>"


def name_of(function: Callable[..., Any]) -> str:
    """The name of a job that is given none: that of its function, by which every process finds it."""
    require_function(function)
    name = str(function.__name__)
    if name == LAMBDA:
        raise UsageError("a lambda has no name by which a worker could find it; write a function, or give it name=")
    return name


def require_function(function: Any) -> None:
    what = None
    if isinstance(function, str):
        what = f"the text {function!r}; write @app.job(name={function!r})"
    elif inspect.isclass(function):
        what = f"the class {function.__name__}; write a function that makes the object"
    elif inspect.iscoroutine(function):
        function.close()
        what = f"a coroutine, {function.__name__}(…); pass the function itself, without calling it"
    elif not callable(function) or not hasattr(function, "__name__"):
        what = f"an object of type {type(function).__name__}; write a function that uses it"
    if what is not None:
        raise UsageError(f"app.job takes a function, and was given {what}")


def argument_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The values of arguments that are not given."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # `read_signature` reports it
        return {}
    return {each.name: each.default for each in parameters if each.default is not each.empty and each.name != CONTEXT}


def read_signature(name: str, function: Callable[..., Any]) -> Signature:
    refuse_generators(name, function)
    require_function(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, SyntaxError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"job {name}: the signature cannot be read: {error}; define its types at module level, and import "
            "them when the program runs, not only under TYPE_CHECKING"
        ) from error
    refuse_methods(name, function, parameters)
    takes_context = bool(parameters) and parameters[0].name == CONTEXT
    if takes_context and parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise UsageError(f"job {name}: {CONTEXT} is given by position; write it before the *")
    fields = [argument_field(name, parameter, hints) for parameter in parameters[takes_context:]]
    return Signature(takes_context, arguments_type(name, fields), result_type(name, hints.get("return", Any)))


def refuse_generators(name: str, function: Callable[..., Any]) -> None:
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004 - the method of a callable object
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise UsageError(
                f"job {name}: is a generator, and a job has one result; remove `yield`: return a list, or call "
                "ctx.submit(…) for each item"
            )


def refuse_methods(name: str, function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """In a class body, a method is a function whose first parameter has no special meaning yet."""
    scope = str(getattr(function, "__qualname__", "")).split(".")[:-1]
    if scope and scope[-1] != "<locals>" and parameters and parameters[0].name in ("self", "cls"):
        raise UsageError(
            f"job {name}: is a method, and a worker has no object to call it on; move it out of the class "
            f"{scope[-1]}, or make it a @staticmethod below @app.job"
        )


def argument_field(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise UsageError(
            f"job {name}: parameter {parameter.name!r} has no fixed name; replace *args, **kwargs and positional-only "
            "parameters by named ones"
        )
    hint = hints.get(parameter.name, Any)
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    # UNSET marks an argument that was not given, so that the function's default at run time applies.
    return (parameter.name, hint | msgspec.UnsetType, msgspec.UNSET)


def arguments_type(name: str, fields: list[Any]) -> type[Struct]:
    try:
        shape = msgspec.defstruct(f"{name} arguments", fields, kw_only=True, forbid_unknown_fields=True)
        for kind in unreadable_types(msgspec.inspect.type_info(shape)):
            raise TypeError(f"{kind.__name__} is not a type that can be read from JSON; {JSON_TYPES}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"job {name}: an argument cannot be read from JSON: {error}") from error
    return shape


def result_type(name: str, hint: Any) -> Any:
    """Refuse a result that can never be written as JSON. Unions that JSON cannot tell apart are read as any value."""
    try:
        unreadable = list(unreadable_types(msgspec.inspect.type_info(hint)))
    except (TypeError, ValueError, RuntimeError):
        return Any
    for kind in unreadable:
        if is_never_json(kind):
            raise UsageError(f"job {name}: its result, {kind.__name__}, cannot be stored as JSON; {JSON_TYPES}")
    return Any if unreadable else hint


def is_never_json(kind: type) -> bool:
    """Whether no value of this type can be written as JSON. An abstract type may have subclasses that can."""
    if issubclass(kind, Awaitable | Iterator | AsyncIterable):
        return True
    is_abstract = inspect.isabstract(kind) or getattr(kind, "_is_protocol", False)
    return not is_abstract and not issubclass(kind, ENCODED_SUBCLASSES)


def unreadable_types(shape: Any) -> Iterator[type]:
    """The types that can be part of a value, but not made from JSON."""
    waiting, seen = [shape], set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, msgspec.inspect.CustomType) and not is_readable(each.cls):
            yield each.cls
        if isinstance(each, msgspec.inspect.DataclassType) and is_pydantic_dataclass(each.cls):
            yield each.cls
        if isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, Struct) and id(each) not in seen:
            seen.add(id(each))
            waiting += [getattr(each, field) for field in each.__struct_fields__]
