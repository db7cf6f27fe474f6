"""exception ─► [problem] ─► response: errors as RFC 9457 problem documents.

Every problem has a stable `code` and a `detail` that says what to do. Internal details and tracebacks go to the log,
under the request id that the client receives.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from leaseway.api.schemas.values import ProblemDocument
from leaseway.domain.errors import (
    BadValue,
    IdConflict,
    KeyConflict,
    NoSuchJob,
    QuotaExceeded,
    Stale,
    StoreRefused,
    TransientError,
    UnknownBudget,
    UnknownKind,
    UnknownLimit,
    UnknownOutcome,
    UsageError,
)
from leaseway.worker.definitions import TooManyWriters

log = logging.getLogger("leaseway.api")

MEDIA_TYPE = "application/problem+json"
TYPES = "https://leaseway.dev/problems/"
"""Prefix of problem types. They are identifiers, not pages to fetch."""
RETRY_SECONDS = 1
QUOTA_RETRY_SECONDS = 30
"""Room for a tenant at its quota appears when its jobs end or are deleted, which takes longer than a busy store."""
LOST_REPLY = (
    "the store's reply was lost, so the request may or may not have taken effect; "
    "repeat it with the same Idempotency-Key to have it take effect once"
)
CODES = {404: "not_found", 405: "method_not_allowed"}
TITLES = {
    400: "Bad request", 401: "Not authenticated", 403: "Not allowed", 404: "Not found", 405: "Method not allowed",
    406: "Not acceptable", 408: "Request timeout", 409: "Conflict", 411: "Length required", 412: "Precondition failed",
    413: "Content too large", 415: "Unsupported media type", 421: "Misdirected request",
    422: "Unprocessable content", 429: "Too many requests", 431: "Request header fields too large",
    500: "Internal server error", 503: "Service unavailable",
}  # fmt: skip


class Problem(Exception):
    """An error response. Programs compare `code`, which is stable; `detail` is for people."""

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


def missing_credential() -> Problem:
    return Problem(
        401, "not_authenticated", "send an API key: Authorization: Bearer lw_…",
        headers={"WWW-Authenticate": 'Bearer realm="leaseway"'},
    )  # fmt: skip


def invalid_credential() -> Problem:
    """The same response for every invalid credential: it does not reveal what is wrong with it."""
    return Problem(
        401, "not_authenticated", "this credential is not valid, or has expired; ask your administrator for a new one",
        headers={"WWW-Authenticate": 'Bearer realm="leaseway", error="invalid_token"'},
    )  # fmt: skip


# -- rendering ------------------------------------------------------------------------------------------------------


def problem_document(problem: Problem, request_id: str | None = None) -> dict[str, Any]:
    document = ProblemDocument(
        type=f"{TYPES}{problem.code}",
        title=TITLES.get(problem.status, "Error"),
        status=problem.status,
        code=problem.code,
        detail=problem.detail,
        errors=list(problem.errors) or msgspec.UNSET,
        request_id=request_id or msgspec.UNSET,
    )
    return {**msgspec.to_builtins(document), **problem.extra}


def problem_response(problem: Problem, request_id: str) -> Response:
    body = msgspec.json.encode(problem_document(problem, request_id))
    return Response(body, status_code=problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def problem_bytes(problem: Problem) -> bytes:
    """A whole HTTP response, for input that is rejected before it becomes a request. The connection is closed."""
    body = msgspec.json.encode(problem_document(problem, secrets.token_hex(8)))
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), "connection": "close", **problem.headers}
    head = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n{head}\r\n".encode() + body


# -- exceptions -----------------------------------------------------------------------------------------------------


def log_problem(error: Exception, request_id: str, path: str) -> Problem:
    """Convert an exception to a problem. Server errors are logged under the request id."""
    problem = problem_from(error)
    if problem.status >= 500:
        # As a literal, because a path may contain line breaks that would forge log lines.
        log.error("%s %r: %s", request_id, path, problem.code, exc_info=error)
    return problem


def problem_from(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return invalid_parameters(error.errors())
        case HTTPException():
            code = CODES.get(error.status_code, f"http_{error.status_code}")
            return Problem(error.status_code, code, str(error.detail), headers=error.headers)
        case NoSuchJob() | UnknownLimit() | UnknownBudget():
            return Problem(404, "not_found", str(error))
        case TooManyWriters():
            return Problem(409, "busy", str(error), headers={"Retry-After": str(RETRY_SECONDS)})
        case KeyConflict():
            return Problem(422, "key_conflict", str(error))
        case IdConflict():
            return Problem(409, "id_conflict", str(error), errors=[{"pointer": "/id", "detail": str(error)}])
        case QuotaExceeded():
            return quota_problem(error)
        case Stale():
            return Problem(412, "stale", str(error))
        case UnknownKind():
            return Problem(422, "unknown_kind", str(error), errors=[{"pointer": "/kind", "detail": str(error)}])
        case BadValue():
            pointer = "/" + error.field.replace(": ", "/").replace(".", "/")
            return Problem(422, "invalid", str(error), errors=[{"pointer": pointer, "detail": error.problem}])
        case StoreRefused():
            # Its message contains host names and file names, which clients must not see.
            return Problem(500, "failed", "the store cannot be used; search the service's log for the request id")
        case UsageError():
            return Problem(422, "refused", str(error))
        case UnknownOutcome():
            return Problem(503, "unknown_outcome", LOST_REPLY, headers={"Retry-After": str(RETRY_SECONDS)})
        case TransientError():
            detail = "the store does not respond; repeat the request later"
            return Problem(503, "unavailable", detail, headers={"Retry-After": str(RETRY_SECONDS)})
        case _:
            return Problem(500, "failed", "internal error; search the service's log for the request id")


def quota_problem(error: QuotaExceeded) -> Problem:
    figures = {"quota": error.quota, "limit": error.limit, "used": error.used, "needed": error.needed}
    if error.is_permanent:
        return Problem(413, "quota_exceeded", str(error), extra=figures)
    return Problem(429, "quota_exceeded", str(error), headers={"Retry-After": str(QUOTA_RETRY_SECONDS)}, extra=figures)


def invalid_parameters(errors: Sequence[Any]) -> Problem:
    """Invalid path or query parameters; `loc` says which."""
    found = [
        {"pointer": "/" + "/".join(str(part) for part in each["loc"]), "detail": str(each["msg"])} for each in errors
    ]
    return Problem(422, "invalid", f"{found[0]['pointer']}: {found[0]['detail']}", errors=found)


def not_found(what: str, name: str, advice: str = "") -> Problem:
    return Problem(404, "not_found", f"there is no {what} {name[:200]!r}" + (f"; {advice}" if advice else ""))
