"""type of a body ─► valid bodies, each with one number at the limit of its type"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
from msgspec import inspect

NUMBERS = (2**31, 2**63)
"""One more than the columns of databases can hold."""
Place = tuple[str | int, ...]


def sample_body(kind: Any) -> Any:
    """A body with all optional fields."""
    return sample(inspect.type_info(kind))


def sample(info: inspect.Type) -> Any:
    match info:
        case inspect.StructType():
            tag = {} if info.tag_field is None else {info.tag_field: info.tag}
            return tag | {field.encode_name: sample(field.type) for field in info.fields}
        case inspect.UnionType():
            return sample(next(each for each in info.types if not isinstance(each, inspect.NoneType)))
        case inspect.TupleType():
            return [sample(each) for each in info.item_types]
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            return [sample(info.item_type)]
        case inspect.DictType():
            return {"a": sample(info.value_type)}
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case inspect.LiteralType():
            return info.values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.StrType():
            return "a"
        case inspect.DateTimeType():
            return "2026-01-01T00:00:00Z"
        case inspect.AnyType() | inspect.RawType():
            return {"a": 1}
    raise AssertionError(f"{info}: say here what such a value looks like")


def leaf_values(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """None has no numbers to change."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield from leaf_values(each, (*place, name))
    if not isinstance(value, dict | list):
        yield place, value


def extreme_bodies(kind: Any) -> Iterator[tuple[Place, bytes]]:
    whole = sample_body(kind)
    for place, value in leaf_values(whole):
        for edge in NUMBERS if isinstance(value, int) and not isinstance(value, bool) else ():
            yield place, msgspec.json.encode(with_value(whole, place, edge))


def with_value(whole: Any, place: Place, value: Any) -> Any:
    copy = deepcopy(whole)
    inner = copy
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return copy
