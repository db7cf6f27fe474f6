"""What `ctx.http` works through: the admission of each request to a provider, and what sends it."""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from leaseway.domain.http import HttpReply, HttpRequest
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus


class Delivery(Enum):
    """What happened to a request for which a grant was taken."""

    NOT_SENT = "nothing was sent"
    ANSWERED = "a complete reply arrived"
    UNKNOWN = "it was sent and no complete reply arrived: the provider may have processed it"


class RequestGrant(Protocol):
    """The permission to send one request."""

    def is_valid(self) -> bool:
        """Whether the request may still be sent. False: its permit has expired and must be replaced."""
        ...


class RequestAdmission(Protocol):
    """The job's limits and budgets. Every grant that `before` returns is passed to `after` exactly once."""

    async def before(self, seconds: float) -> RequestGrant:
        """Wait until one request may be sent, whose reply is expected within these seconds."""
        ...

    async def after(self, grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        """The request has ended; `status` is None if there was no reply. Must not raise if a store is unavailable,
        because the caller has a reply already."""
        ...

    def settle(self, grant: RequestGrant, amounts: Mapping[str, Any]) -> None:
        """What the request cost and used, by unit, before `after`. Without it, the estimate is charged. Raises BadValue
        for amounts that make no sense, and UsageError if it is settled already."""
        ...

    async def wait_in_place(self, why: str, seconds: float, *, by_limit: bool) -> bool:
        """Wait, if the job must not start again because it has made calls. False: it may start again, or it is to
        stop."""
        ...


AboutToSend = Callable[[], Awaitable[None]]


class HttpTransport(Protocol):
    """Opened by its first request. It can be used again after `close`."""

    async def send(self, request: HttpRequest, about_to_send: AboutToSend) -> HttpReply:
        """Send one request, once, and return the complete reply.

        `about_to_send` is awaited once, when the connection is made and before the first byte of the request is sent.
        What it raises is raised, and nothing is sent. Redirects are not followed, no cookies are kept, and nothing is
        repeated. Raises `HttpError`; `ConnectFailed` only if nothing was sent. Raises `TooLarge` for a body that is
        larger than a process should hold.
        """
        ...

    async def close(self) -> None: ...
