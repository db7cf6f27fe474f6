"""What went wrong on the way or over there ─► the exception that a store beside us would have raised.

Three answers, not two: a request that never left, or that was refused, has changed nothing; of one whose answer did not
come, nobody knows.
"""

from typing import Any

import httpx2
import msgspec
from msgspec import Struct

from leaseway.domain.errors import (
    BadValue,
    KeyConflict,
    LeasewayError,
    Stale,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TransientError,
    UnknownBudget,
    UnknownLimit,
    UnknownOutcome,
    UsageError,
)
from leaseway.stores.http.address import KEY_VARIABLE, Address

UNSENT = (
    httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError, httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
)  # fmt: skip
"""Errors that occur before a request was sent."""
BY_CODE: dict[str, type[LeasewayError]] = {
    "key_conflict": KeyConflict,
    "stale": Stale,
    "unknown_limit": UnknownLimit,
    "unknown_budget": UnknownBudget,
    "refused": UsageError,
    "busy": StoreBusy,
    "full": StoreFull,
    "unavailable": TransientError,
    "unknown_outcome": UnknownOutcome,
}
"""Exceptions by the code of the problem."""
REFUSED = {401, 403, 404, 405, 415, 421}
"""The service refuses the client or does not know the route: repeating the call does not help."""
OVERSIZE = 413
TOO_MANY = 429
CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
TEXT_MAX = 300


class ProblemDetails(Struct):
    """The fields of an RFC 9457 problem that the client uses."""

    code: str
    detail: str = ""
    errors: list[dict[str, Any]] = []


def translate_transport_error(error: Exception, address: Address) -> LeasewayError:
    """The request or its reply was lost."""
    if CERTIFICATE in str(error):
        return StoreRefused(f"{address.url} has no certificate that this machine trusts; check its issuer ({error})")
    said = f"{type(error).__name__}: {error}"[:TEXT_MAX]
    if isinstance(error, UNSENT):
        return TransientError(f"{address.url} cannot be reached ({said})")
    return UnknownOutcome(f"the reply of {address.url} was lost ({said})")


def translate_problem(status: int, body: bytes, address: Address) -> LeasewayError:
    """The service, or a proxy before it, returned an error."""
    told = parse_problem(body)
    if told is None:
        return translate_foreign_answer(status, address)
    if told.code == "invalid" and told.errors:
        return bad_value(told)
    if status in REFUSED:
        return StoreRefused(f"{address.url} refuses: {told.detail}{advice_for(status)}")
    if status == OVERSIZE:
        return BadValue("the call", told.detail)
    if status == TOO_MANY:
        return StoreBusy(f"{address.url}: {told.detail}")
    known = BY_CODE.get(told.code)
    if known is not None:
        return known(told.detail)
    if status < 500:
        return UsageError(f"{address.url}: {told.detail}")
    # The service failed while it worked, before or after it wrote.
    return UnknownOutcome(f"{address.url}: {told.detail}")


def translate_foreign_answer(status: int, address: Address) -> LeasewayError:
    """The reply is not a problem document: it comes from a proxy or another kind of server."""
    if status >= 500 or status in (408, TOO_MANY):
        return UnknownOutcome(f"{address.url} answered {status} without a problem document of a leaseway service")
    return StoreRefused(f"{address.url} answered {status}: it is not a leaseway service, or has another version")


def parse_problem(body: bytes) -> ProblemDetails | None:
    try:
        return msgspec.json.decode(body, type=ProblemDetails)
    except msgspec.DecodeError:
        return None


def bad_value(told: ProblemDetails) -> BadValue:
    """The detail consists of the field, a colon and the problem."""
    problem = str(told.errors[0].get("detail", ""))
    return BadValue(told.detail.removesuffix(f": {problem}"), problem)


def advice_for(status: int) -> str:
    return f"; pass key= to App, or set {KEY_VARIABLE}" if status == 401 else ""
