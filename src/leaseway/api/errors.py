"""What went wrong, as RFC 9457 has it: one shape, stable types, a way out, never a traceback."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from leaseway.domain.errors import (
    BadValue,
    KeyConflict,
    NoSuchJob,
    Stale,
    StoreRefused,
    TransientError,
    UnknownKind,
    UnknownOutcome,
    UsageError,
)

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


log = logging.getLogger("leaseway.api")

RETRY_SECONDS = 1
CODES = {404: "not_found", 405: "method_not_allowed"}


def told(error: Exception, request_id: str, path: str) -> Problem:
    """The problem; whatever is our own fault is in the log, under the id that the caller is given."""
    problem = problem_of(error)
    if problem.status >= 500:
        # As it would be written in code: a path may hold line breaks, and what follows them is not ours.
        log.error("%s %r: %s", request_id, path, problem.code, exc_info=error)
    return problem


def problem_of(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return invalid(error.errors())
        case HTTPException():
            code = CODES.get(error.status_code, f"http_{error.status_code}")
            return Problem(error.status_code, code, str(error.detail), headers=error.headers)
        case NoSuchJob():
            return Problem(404, "not_found", str(error))
        case KeyConflict():
            return Problem(422, "key_conflict", str(error))
        case Stale():
            return Problem(412, "stale", str(error))
        case UnknownKind():
            return Problem(422, "unknown_kind", str(error), errors=[{"pointer": "/kind", "detail": str(error)}])
        case BadValue():
            pointer = "/" + error.field.replace(": ", "/").replace(".", "/")
            return Problem(422, "invalid", str(error), errors=[{"pointer": pointer, "detail": error.problem}])
        case StoreRefused():
            # The message names addresses and files, which are nobody's business out there.
            return Problem(500, "failed", "the store does not fit; the request id leads to the log")
        case UsageError():
            return Problem(422, "refused", str(error))
        case UnknownOutcome():
            detail = (
                "the store's reply was lost, so it may have happened; with the same Idempotency-Key it happens once"
            )
            return Problem(503, "unknown_outcome", detail, headers={"Retry-After": str(RETRY_SECONDS)})
        case TransientError():
            detail = "the store does not answer now; the same request may succeed soon"
            return Problem(503, "unavailable", detail, headers={"Retry-After": str(RETRY_SECONDS)})
        case _:
            return Problem(500, "failed", "something broke on our side; the request id leads to the log")


def invalid(errors: Sequence[Any]) -> Problem:
    """A parameter in the path or the query: `loc` says where."""
    found = [
        {"pointer": "/" + "/".join(str(part) for part in each["loc"]), "detail": str(each["msg"])} for each in errors
    ]
    return Problem(422, "invalid", f"{found[0]['pointer']}: {found[0]['detail']}", errors=found)


def refused() -> Problem:
    return Problem(
        401, "not_authenticated", "this credential is not valid, or not any more; ask whoever made it for a new one",
        headers={"WWW-Authenticate": 'Bearer realm="leaseway", error="invalid_token"'},
    )  # fmt: skip


def anonymous() -> Problem:
    return Problem(
        401, "not_authenticated", "send a key: Authorization: Bearer lw_…",
        headers={"WWW-Authenticate": 'Bearer realm="leaseway"'},
    )  # fmt: skip
