"""Types in annotations that msgspec does not know: pydantic models, and `object`, which stands for any value.

pydantic is not a dependency. A class can only be a model if the user's code has imported pydantic, so this module looks
for it among the modules that are loaded and never imports it.
"""

import dataclasses
import sys
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

PYDANTIC = "pydantic"
ERRORS_MAX = 5
"""How many errors of a model are named in one message."""


def is_model(kind: object) -> bool:
    """Whether it is a model class of pydantic 2."""
    pydantic = sys.modules.get(PYDANTIC)
    if pydantic is None or not isinstance(kind, type):
        return False
    return issubclass(kind, pydantic.BaseModel) and hasattr(kind, "model_validate_json")


def is_readable(kind: type) -> bool:
    """Whether `decode_custom` can make values of a type that msgspec does not know."""
    return kind is object or is_model(kind)


def encode_custom(value: Any) -> Any:
    """For msgspec's encoder: a value of a type that it does not know, as types that it knows.

    Aliases and no computed fields, so that the model can read what it wrote.
    """
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"values of type {type(value).__name__} have no JSON form; {way_out(value)}")


def way_out(value: object) -> str:
    """What to return or to submit instead of this value."""
    if isinstance(value, Awaitable):
        return "await it, in an async function"
    if isinstance(value, Iterator | AsyncIterable):
        return "make a list of it"
    if isinstance(value, BaseException):
        return "raise it"
    return JSON_TYPES


JSON_TYPES = (
    "use numbers, text, lists, dicts, dates, enums, dataclasses, msgspec structs or pydantic models, and of another "
    "object the part that you need"
)


def decode_custom(kind: type, value: Any) -> Any:
    """For msgspec's decoder: a value of a type that it does not know."""
    if kind is object:
        return value
    if not is_model(kind):
        raise NotImplementedError(kind.__name__)
    try:
        # From JSON and not from Python values: strict models accept a date as text only in JSON.
        return kind.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
    except sys.modules[PYDANTIC].ValidationError as error:
        raise ValueError(describe(error)) from None  # the cause would repeat the values, which may be secrets


def describe(error: Any) -> str:
    """The fields of a model that do not fit, without their values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    texts = [f"{place}: {each['msg']}" if (place := path(each["loc"])) else str(each["msg"]) for each in found]
    more = [f"and {len(texts) - ERRORS_MAX} more"] if len(texts) > ERRORS_MAX else []
    return "; ".join(texts[:ERRORS_MAX] + more)


def path(place: tuple[int | str, ...]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return "".join(steps).removeprefix(".")


def fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a struct, a dataclass or a model, with their values."""
    kind = type(value)
    names: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    if names is None and is_model(kind):
        names = [*kind.model_fields, *(value.model_extra or ())]
    return ((name, getattr(value, name)) for name in names or ())


def children(value: Any) -> Iterable[tuple[str | int, Any]]:
    """What a value contains, each part with its name or its index."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    return fields(value)


def is_pydantic_dataclass(kind: object) -> bool:
    """msgspec would fill it without the checks of pydantic."""
    return dataclasses.is_dataclass(kind) and hasattr(kind, "__pydantic_validator__")
