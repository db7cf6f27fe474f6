"""Whatever was raised ─► a problem: what the caller can do about it, and nothing about our insides."""

import logging
from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from leaseway.api.problems import Problem
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
