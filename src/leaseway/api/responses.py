"""Values ─► answers."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder()


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encoder.encode(value), status_code=status, headers=headers, media_type="application/json")


def page(items: list[Any], next_cursor: str | None) -> Response:
    """A part of a list, and where it goes on."""
    return answer({"items": items, "next": next_cursor})
