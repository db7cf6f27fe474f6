"""Values that a source reports about itself, by reference: "/status#$.maxId"."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from leaseway.imports.domain.jsonpath import MISSING, parse_path
from leaseway.imports.sources.port import BadReply
from leaseway.imports.spec.model import Filter, IdRange, Resource

VALUES_MAX = 10_000

Bodies = Mapping[str, Any]
"""Replies by path."""


class LookupResult(NamedTuple):
    first: Any
    all: list[Any]


def list_references(resource: Resource) -> list[str]:
    upper = resource.partition.upper if isinstance(resource.partition, IdRange) else None
    of_filters = [each for filter_ in resource.filters.values() for each in (filter_.values_from, filter_.rows_from)]
    return [each for each in (upper, *of_filters) if isinstance(each, str)]


def look_up(reference: str, bodies: Bodies) -> LookupResult:
    path, _, place = reference.partition("#")
    compiled = parse_path(reference, place)
    return LookupResult(compiled.first(bodies[path]), compiled.all(bodies[path]))


def read_id_max(resource: Resource, bodies: Bodies) -> int | None:
    upper = resource.partition.upper if isinstance(resource.partition, IdRange) else None
    if not isinstance(upper, str):
        return upper
    value = look_up(upper, bodies).first
    if not isinstance(value, int) or isinstance(value, bool):
        is_now = "nothing" if value is MISSING else repr(value)
        raise BadReply(f"resource.partition.upper: {upper} must lead to an integer (leads to {is_now[:100]})")
    return value


def read_values(resource: Resource, bodies: Bodies) -> dict[str, list[str]]:
    """The values of each filter, in order."""
    values: dict[str, list[str]] = {}
    for name, filter_ in resource.filters.items():
        if filter_.values is not None:
            values[name] = [str(value) for value in filter_.values]
        elif filter_.values_from is not None:
            found = [value for value in look_up(filter_.values_from, bodies).all if isinstance(value, str | int)]
            if not found or len(found) > VALUES_MAX:
                place = f"resource.filters.{name}.values_from"
                raise BadReply(f"{place}: {filter_.values_from} leads to {len(found):,} values")
            values[name] = list(dict.fromkeys(str(value) for value in found))
    return values


def read_counts(resource: Resource, bodies: Bodies) -> dict[str, dict[str, int]]:
    """Rows per value, where the source reports them."""
    filters = resource.filters.items()
    return {
        name: read_filter_counts(f"resource.filters.{name}", each, bodies) for name, each in filters if each.rows_from
    }


def read_filter_counts(place: str, filter_: Filter, bodies: Bodies) -> dict[str, int]:
    values = look_up(str(filter_.values_from), bodies).all
    counts = look_up(str(filter_.rows_from), bodies).all
    if len(values) != len(counts):
        problem = f"leads to {len(counts):,} numbers, and values_from to {len(values):,} values"
        raise BadReply(f"{place}.rows_from: {filter_.rows_from} {problem}; both lists must have the same length")
    strange = next((count for count in counts if not isinstance(count, int) or isinstance(count, bool)), None)
    if strange is not None:
        raise BadReply(f"{place}.rows_from: {filter_.rows_from} must lead to integers (is {str(strange)[:40]!r})")
    return {str(value): count for value, count in zip(values, counts, strict=True)}
