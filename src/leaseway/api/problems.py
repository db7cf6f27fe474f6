"""What went wrong, as RFC 9457 has it: one shape, stable types, a way out, never a traceback."""

import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
TYPES = "https://leaseway.dev/problems/"
"""Types are names, not pages to fetch."""


class Problem(Exception):
    """Raised anywhere below a route. `code` is stable: programs compare it; `detail` is for people."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})


TITLES = {
    400: "Bad request", 401: "Not authenticated", 403: "Not allowed", 404: "Not found", 405: "Method not allowed",
    406: "Not acceptable", 408: "Too slow", 409: "Conflict", 411: "Length required", 412: "Precondition failed",
    413: "Too large",
    415: "Unsupported media type", 421: "Misdirected request", 422: "Cannot be done", 429: "Too many requests",
    431: "Header too large",
    500: "Our fault", 503: "Not available now",
}  # fmt: skip


def document_of(problem: Problem) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": f"{TYPES}{problem.code}",
        "title": TITLES.get(problem.status, "Problem"),
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        **problem.extra,
    }
    if problem.errors:
        body["errors"] = list(problem.errors)
    return body


def line_of(problem: Problem) -> bytes:
    """The whole answer as it goes over the wire, for what is refused before it is a request. The connection ends."""
    body = msgspec.json.encode({**document_of(problem), "request_id": secrets.token_hex(8)})
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), "connection": "close", **problem.headers}
    head = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n{head}\r\n".encode() + body


def answer_of(problem: Problem, request_id: str) -> Response:
    body = msgspec.json.encode({**document_of(problem), "request_id": request_id})
    return Response(body, status_code=problem.status, headers=problem.headers, media_type=MEDIA_TYPE)
