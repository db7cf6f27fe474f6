"""A kind of job: one function, the shape of its arguments, and its defaults."""

import hashlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import msgspec.inspect
from msgspec import Struct

from leaseway.domain import payload
from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.outcome import Backoff
from leaseway.domain.requirements import NO_REQUIREMENTS, Requirements
from leaseway.domain.validators import check_name

CONTEXT = "ctx"


class KindDefaults(Struct, frozen=True, kw_only=True):
    """What a job of this kind gets unless its submission says otherwise."""

    queue: str = "default"
    attempts: int = 5
    timeout_us: int | None = None
    lease_us: int = 15_000_000
    backoff: Backoff = Backoff()
    priority: int = 0


class Kind:
    """One registered function. Arguments go through its `Arguments` type when submitted and again when run."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        defaults: KindDefaults,
        requirements: Requirements = NO_REQUIREMENTS,
    ) -> None:
        self.name = check_name("name", name)
        self.function = function
        self.defaults = defaults
        self.requirements = requirements
        self.is_async = inspect.iscoroutinefunction(function)
        self.takes_context, self.Arguments = read_signature(name, function)
        self._decoder = msgspec.json.Decoder(self.Arguments)
        self._fields = self.Arguments.__struct_fields__
        self.takes_nothing = not self._fields

    def encode(self, arguments: Mapping[str, Any]) -> str:
        """The payload for these arguments, proved to be readable by `decode`."""
        text = payload.encode(arguments, self.name)
        self.check(text)
        return text

    def check(self, text: str) -> None:
        """Refuse a payload that `decode` could not read, naming the argument."""
        try:
            self._decoder.decode(text)
        except msgspec.DecodeError as error:  # ValidationError is one of these
            raise BadValue(*self._blame(str(error))) from None  # it says all that the cause says, in the user's words
        except RecursionError as error:
            raise BadValue(self.name, "is nested too deeply") from error
        except UnicodeError as error:
            raise BadValue(self.name, "contains a lone surrogate, which is not a character") from error

    def decode(self, text: str) -> dict[str, Any]:
        """The keyword arguments for the function. Defaults are the function's own, of the day it runs."""
        arguments = self._decoder.decode(text)
        given = ((name, getattr(arguments, name)) for name in self._fields)
        return {name: value for name, value in given if value is not msgspec.UNSET}

    def fingerprint(self, text: str) -> str:
        """Tells kind and arguments apart from others that came under the same idempotency key."""
        return hashlib.sha256(f"{self.name}\n{text}".encode()).hexdigest()

    def _blame(self, problem: str) -> tuple[str, str]:
        """msgspec says "Expected `int`, got `str` - at `$.x`": put the argument in front."""
        what, _, place = (
            problem.rpartition(" - at `$") if problem.endswith("`") and " - at `$" in problem else (problem, "", "")
        )
        path = place.removesuffix("`").removeprefix(".")
        for theirs, ours in PHRASES.items():
            if what.startswith(theirs):
                what = ours + what.removeprefix(theirs)
        return f"{self.name}: {path}" if path else self.name, what[:1].lower() + what[1:].replace("`", "")


PHRASES = {
    "Object missing required field ": "missing required argument ",
    "Object contains unknown field ": "unknown argument ",
}


def read_signature(name: str, function: Callable[..., Any]) -> tuple[bool, type[Struct]]:
    """Whether the function wants the context, and a type that holds its other parameters."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, SyntaxError, TypeError, ValueError, AttributeError) as error:
        problem = f"job {name}: the signature cannot be read: {error}"
        raise UsageError(f"{problem}; types of arguments must be importable at module level") from error
    takes_context = bool(parameters) and parameters[0].name == CONTEXT
    fields = [argument_field(name, parameter, hints) for parameter in parameters[takes_context:]]
    try:
        shape = msgspec.defstruct(f"{name} arguments", fields, kw_only=True, forbid_unknown_fields=True)
        refuse_custom_types(msgspec.inspect.type_info(shape))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"job {name}: an argument cannot be read from JSON: {error}") from error
    return takes_context, shape


def refuse_custom_types(shape: Any) -> None:
    """A type that msgspec does not know by itself can be registered, but never filled."""
    waiting, seen = [shape], set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, msgspec.inspect.CustomType):
            raise TypeError(f"{each.cls.__name__} is no type that JSON can fill")
        if isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, Struct) and id(each) not in seen:
            seen.add(id(each))
            waiting += [getattr(each, field) for field in each.__struct_fields__]


def argument_field(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise UsageError(
            f"job {name}: parameter {parameter.name!r} has no fixed name; jobs take named arguments, "
            "so write each one out instead of *args, **kwargs or positional-only ones"
        )
    if parameter.name in SUBMIT_OPTIONS:
        raise UsageError(
            f"job {name}: parameter {parameter.name!r} is also an option of submit(); please rename the parameter"
        )
    hint = hints.get(parameter.name, Any)
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    # UNSET marks an argument that was not given, so that the function's own default applies when it runs.
    return (parameter.name, hint | msgspec.UnsetType, msgspec.UNSET)


SUBMIT_OPTIONS = frozenset(
    ["key", "tenant", "queue", "priority", "run_at", "delay", "attempts", "timeout", "cursor", "shard_key"]
)
"""Names that submit() keeps for itself."""
