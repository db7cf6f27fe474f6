"""Timestamps, durations and amounts, as documents show them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, structs, to_builtins

from leaseway.domain.ids import SECOND_US, Instant

Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""ISO 8601, in UTC."""
Amount = Annotated[str, Meta(description="A decimal number as text, because floating point would not be exact.")]


class Document(Struct, forbid_unknown_fields=True):
    """What a route returns. Field names are the words of the domain, and stable."""


D = TypeVar("D", bound=Document)


def extend(kind: type[D], document: Document, **fields: Any) -> D:
    """A larger document that starts with the fields of a smaller one."""
    return kind(**structs.asdict(document), **fields)


def as_dict(document: Document) -> dict[str, Any]:
    """For callers that add fields of their own. Unset fields are left out."""
    fields: dict[str, Any] = to_builtins(document)
    return fields


def timestamp(instant: Instant | None) -> str | None:
    """None for instants that the calendar cannot express."""
    if instant is None:
        return None
    try:
        # Not through a float, which cannot hold all digits.
        seconds, us = divmod(instant, SECOND_US)
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=us)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(us: int | None) -> float | None:
    return None if us is None else us / SECOND_US


class ProblemDocument(Struct, kw_only=True):
    """An error as defined by RFC 9457. Programs compare `code`; `detail` is for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[Mapping[str, Any]] | UnsetType = UNSET
    """One entry per invalid field or parameter: `pointer`, a JSON pointer into the body or the parameter's place, and
    `detail`."""
    request_id: str | UnsetType = UNSET
    """The id under which the service logged the request."""
