"""The error document of RFC 9457."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType


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
