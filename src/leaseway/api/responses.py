"""The values that routes return ─► [response]

A route returns a struct, a `Page` of structs, either of them in a `Reply` with its status or headers, or None. Its
return annotation is the description of the response: the OpenAPI document is derived from it.
"""

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from starlette.responses import Response

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


class DocumentPage(Struct, Generic[T]):
    """One page of a list."""

    items: list[T]
    next: str | None
    """The cursor of the next page; None: this is the last one."""


class Reply(NamedTuple, Generic[T]):
    """A value with a status or headers of its own."""

    value: T
    status: int | None = None
    """None: the status that the route declares."""
    headers: Mapping[str, str] | None = None


def render(returned: Any, status: int) -> Response:
    """The response for a route's return value; `status` is the status that the route declares."""
    match returned:
        case Response():
            return returned
        case None:
            return Response(status_code=status)
        case Reply():
            return json_response(returned.value, returned.status or status, returned.headers)
        case _:
            return json_response(returned, status)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encoder.encode(value), status_code=status, headers=headers, media_type="application/json")
