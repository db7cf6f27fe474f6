"""admit (lane, limits, budget) ─► [request to the provider] ─► rate limit headers ─► limits

`ctx.http`: every request, including each retry, is admitted by the job's limits and budgets, and what the reply reports
about the provider's limits reaches the whole fleet. A request that is safe to repeat is retried a few times. If the
provider asks for a long wait, `Throttled` is raised and the job is released.

The permit is checked again after the connection is made and before the first byte is sent, because connecting may take
longer than the permit is valid.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from leaseway.domain.errors import BadValue, TransientError, UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits import rate_limit_headers
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus, Throttled, TooLarge
from leaseway.domain.validators import Seconds, parse_duration_us
from leaseway.ports.clock import Chance, Clock

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
"""Between two parts of a reply."""
REPLY_SECONDS = 300.0
"""For the whole reply, unless the caller sets a longer timeout. A server that sends one byte at a time would never
reach the timeout above."""
TIMEOUT_SECONDS_MAX = 86_400
REPLY_BYTES_MAX = 256 * 1_048_576
"""After decompression: a megabyte on the wire may become gigabytes."""

TRIES_MAX = 3
GRANTS_MAX = 10
"""How often a permit that expired before the request could be sent is replaced."""
PAUSE_FIRST_US = SECOND_US // 2
PAUSE_US_MAX = 8 * SECOND_US
PATIENCE_US = 5 * SECOND_US
"""For a longer wait the job is released instead of keeping its handler waiting."""

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
KEYED = frozenset({"POST", "PATCH"})
TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})
TOO_MANY = 429
KEY_HEADER = "Idempotency-Key"

ABOUT_TO_SEND = "send_request_headers.started"
"""The trace event of the client before the first byte is sent."""


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

    async def before(self) -> RequestGrant:
        """Wait until one request may be sent."""
        ...

    async def after(self, grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        """The request has ended; `status` is None if there was no reply. Must not raise if a store is unavailable,
        because the caller has a reply already."""
        ...


class SharedClient:
    """The HTTP client of a worker process: opened by the first request, closed with the worker."""

    def __init__(self, transport: "httpx2.AsyncBaseTransport | None" = None) -> None:
        self._transport = transport
        self._client: httpx2.AsyncClient | None = None

    def open(self) -> "httpx2.AsyncClient":
        if self._client is None:
            # Imported late, like the client itself, because most commands send no requests.
            from http.cookiejar import CookieJar, DefaultCookiePolicy

            httpx2 = library()
            self._client = httpx2.AsyncClient(
                transport=self._transport,
                # A redirect would be a request without a permit.
                follow_redirects=False,
                # One client serves all tenants: a cookie of one tenant must not be sent for another.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                # Limits and the worker's slots bound the number of requests.
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            )
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def library() -> Any:
    try:
        import httpx2
    except ImportError as error:
        raise UsageError("ctx.http needs httpx2; install it with: pip install 'leaseway[http]'") from error
    return httpx2


class HttpSettings(NamedTuple):
    patience_us: int = PATIENCE_US
    key_header: str | None = KEY_HEADER
    """The header in which the provider expects idempotency keys. None: it does not support them."""


DEFAULT_SETTINGS = HttpSettings()


class HttpEnvironment(NamedTuple):
    """What all requests of a worker share."""

    client: SharedClient
    clock: Clock
    chance: Chance


class Http:
    """The HTTP client `ctx.http`. It returns replies of every status; call `raise_for_status` if you need it."""

    def __init__(
        self,
        environment: HttpEnvironment,
        admission: RequestAdmission,
        call_key: Callable[[str], str],
        settings: HttpSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._environment = environment
        self._admission = admission
        self._call_key = call_key
        self._settings = settings
        self._seen: Counter[str] = Counter()

    async def get(self, url: str, **options: Any) -> "httpx2.Response":
        return await self.request("GET", url, **options)

    async def head(self, url: str, **options: Any) -> "httpx2.Response":
        return await self.request("HEAD", url, **options)

    async def options(self, url: str, **options: Any) -> "httpx2.Response":
        return await self.request("OPTIONS", url, **options)

    async def put(self, url: str, **options: Any) -> "httpx2.Response":
        return await self.request("PUT", url, **options)

    async def delete(self, url: str, **options: Any) -> "httpx2.Response":
        return await self.request("DELETE", url, **options)

    async def post(self, url: str, **options: Any) -> "httpx2.Response":
        return await self.request("POST", url, **options)

    async def patch(self, url: str, **options: Any) -> "httpx2.Response":
        return await self.request("PATCH", url, **options)

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Any = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: str | bytes | None = None,
        data: Mapping[str, Any] | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the name that users of every client expect
        retry: bool | None = None,
        step: str | None = None,
    ) -> "httpx2.Response":
        """Send a request as soon as the job's limits and budgets allow it.

        `timeout`: how long the provider may stay silent, in seconds. `retry`: whether the request is safe to repeat;
        None: if its method is idempotent or it carries an idempotency key. `step`: a name for this request within the
        job, used in its idempotency key; without it, equal requests are told apart by their order.
        """
        if content is not None and not isinstance(content, str | bytes):
            raise BadValue("content", f"must be str or bytes, which can be sent again (is {type(content).__name__})")
        read_seconds = READ_SECONDS if timeout is None else timeout_seconds(timeout)
        request = self._environment.client.open().build_request(
            method.upper(), url, params=params, headers=headers, json=json, content=content, data=data
        )
        request.extensions["timeout"] = {"connect": CONNECT_SECONDS, "read": read_seconds, "write": read_seconds}
        has_key = self._set_key(request, step)
        may_repeat = retry if retry is not None else has_key or request.method in IDEMPOTENT
        return await self._send_with_retries(request, max(read_seconds, REPLY_SECONDS), may_repeat)

    def _set_key(self, request: "httpx2.Request", step: str | None) -> bool:
        """Set an idempotency key that is the same in every attempt and different for every other request. A key that
        the caller has set is kept."""
        name = self._settings.key_header
        if name is None or request.method not in KEYED:
            return False
        if name not in request.headers:
            request.headers[name] = self._call_key(self._step_name(request) if step is None else step)
        return True

    def _step_name(self, request: "httpx2.Request") -> str:
        parts = f"{request.method} {request.url}\n".encode() + request.content
        digest = hashlib.sha256(parts).hexdigest()[:16]
        self._seen[digest] += 1
        return f"{digest}-{self._seen[digest]}"

    async def _send_with_retries(
        self, request: "httpx2.Request", reply_seconds: float, may_repeat: bool
    ) -> "httpx2.Response":
        for tries in range(1, TRIES_MAX + 1):
            attempt = RequestAttempt(self._environment, self._admission, request, reply_seconds)
            result = await attempt.run()
            is_last = tries == TRIES_MAX
            self._raise_if_throttled(result, may_repeat, is_last)
            if is_last or not may_retry(result, request.method, may_repeat):
                break
            await self._environment.clock.sleep(
                retry_pause_us(result.status, tries, self._environment.chance.random()) / SECOND_US
            )
        if result.error is not None:
            raise result.error
        assert result.reply is not None
        return result.reply

    def _raise_if_throttled(self, result: "RequestResult", may_repeat: bool, is_last: bool) -> None:
        """Release the job if the wait is too long or the last try was throttled, too."""
        status, reply = result.status, result.reply
        if status is None or reply is None or not status.throttled or not may_repeat:
            return
        wait_us = status.retry_after_us or 0
        # A 503 may be a fault as well as throttling. After the last try the caller gets it, or the job could wait
        # forever.
        if wait_us > self._settings.patience_us or (is_last and reply.status_code == TOO_MANY):
            where = f"{reply.request.method} {reply.request.url.host}"
            wait = f"asks for a wait of {wait_us / SECOND_US:g} s" if wait_us else "asks for a wait"
            raise Throttled(f"{where}: status {reply.status_code}, the provider {wait}", status.retry_after_us)


class SyncHttp:
    """`ctx.http` for plain functions, which run in a thread."""

    def __init__(self, http: Http, loop: asyncio.AbstractEventLoop) -> None:
        self._http = http
        self._loop = loop

    def request(self, method: str, url: str, **options: Any) -> "httpx2.Response":
        return asyncio.run_coroutine_threadsafe(self._http.request(method, url, **options), self._loop).result()

    def get(self, url: str, **options: Any) -> "httpx2.Response":
        return self.request("GET", url, **options)

    def head(self, url: str, **options: Any) -> "httpx2.Response":
        return self.request("HEAD", url, **options)

    def options(self, url: str, **options: Any) -> "httpx2.Response":
        return self.request("OPTIONS", url, **options)

    def put(self, url: str, **options: Any) -> "httpx2.Response":
        return self.request("PUT", url, **options)

    def delete(self, url: str, **options: Any) -> "httpx2.Response":
        return self.request("DELETE", url, **options)

    def post(self, url: str, **options: Any) -> "httpx2.Response":
        return self.request("POST", url, **options)

    def patch(self, url: str, **options: Any) -> "httpx2.Response":
        return self.request("PATCH", url, **options)


class RequestResult(NamedTuple):
    """The result of one try: a reply with its rate limit status, or an error."""

    reply: "httpx2.Response | None"
    status: RateLimitStatus | None
    error: Exception | None
    delivery: Delivery


class RequestAttempt:
    """One try of a request, with its grant."""

    def __init__(
        self, environment: HttpEnvironment, admission: RequestAdmission, request: "httpx2.Request", reply_seconds: float
    ) -> None:
        self._environment = environment
        self._admission = admission
        self._request = request
        self._reply_seconds = reply_seconds
        self._grant: RequestGrant | None = None
        self._is_sent: bool | None = None
        """None: the client has not reported yet."""
        self._deadline = asyncio.timeout(None)

    async def run(self) -> RequestResult:
        httpx2 = library()
        await self._admit()
        try:
            reply = await self._send()
        except httpx2.HTTPError as error:
            delivery = self._delivery_after(error)
            await self._close(None, delivery)
            return RequestResult(None, None, error, delivery)
        except BaseException as error:
            await self._close(None, self._delivery_after(error))
            raise
        status = self._status(reply)
        await self._close(status, Delivery.ANSWERED)
        return RequestResult(reply, status, None, Delivery.ANSWERED)

    async def _admit(self) -> None:
        """Take a grant that is valid now."""
        for _ in range(GRANTS_MAX):
            if self._grant is None:
                self._grant = await self._admission.before()
            if self._grant.is_valid():
                return
            await self._close(None, Delivery.NOT_SENT)
        raise TransientError(f"the permits of a request expired {GRANTS_MAX} times before it could be sent")

    async def _close(self, status: RateLimitStatus | None, delivery: Delivery) -> None:
        if (grant := self._grant) is not None:
            self._grant = None
            await self._admission.after(grant, status, delivery)

    async def _send(self) -> "httpx2.Response":
        self._request.extensions["trace"] = self._trace
        client = self._environment.client.open()
        try:
            async with self._deadline:
                self._rearm(CONNECT_SECONDS + self._reply_seconds)
                return await read_whole(await client.send(self._request, stream=True))
        except TimeoutError as error:
            if not self._deadline.expired():
                raise
            message = f"the whole reply took longer than {self._reply_seconds:g} s"
            raise library().ReadTimeout(message, request=self._request) from error

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        self._is_sent = self._is_sent or False
        # With a proxy, the client sends a CONNECT request first. That is not the user's request.
        if event.endswith(ABOUT_TO_SEND) and info["request"].method != b"CONNECT":
            # Waiting for a permit does not count against the provider's time.
            self._deadline.reschedule(None)
            await self._admit()
            self._rearm(self._reply_seconds)
            self._is_sent = True

    def _rearm(self, seconds: float) -> None:
        self._deadline.reschedule(asyncio.get_running_loop().time() + seconds)

    def _delivery_after(self, error: BaseException) -> Delivery:
        if self._is_sent is not None:
            return Delivery.UNKNOWN if self._is_sent else Delivery.NOT_SENT
        return Delivery.NOT_SENT if isinstance(error, before_sending()) else Delivery.UNKNOWN

    def _status(self, reply: "httpx2.Response") -> RateLimitStatus:
        body = ""
        if reply.status_code >= 400:
            body = reply.content[: rate_limit_headers.BODY_MAX].decode("utf-8", "replace")
        return rate_limit_headers.parse_rate_limits(
            reply.status_code, reply.headers.multi_items(), body, self._environment.clock.wall_us()
        )


async def read_whole(reply: "httpx2.Response") -> "httpx2.Response":
    """Read the body, up to the allowed size."""
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async for part in reply.aiter_bytes():
            size_bytes += len(part)
            if size_bytes > REPLY_BYTES_MAX:
                where = f"{reply.request.method} {reply.request.url.host}"
                raise TooLarge(f"{where}: the reply has more than {REPLY_BYTES_MAX:,} bytes")
            parts.append(part)
    finally:
        await reply.aclose()
    reply._content = b"".join(parts)  # as the client's own `aread` does, which has no bound
    return reply


def may_retry(result: RequestResult, method: str, may_repeat: bool) -> bool:
    """Whether the request is safe to repeat and repeating it could help."""
    if result.error is not None:
        if result.delivery is Delivery.NOT_SENT:
            return may_repeat and isinstance(result.error, connection_errors())
        # A provider may ignore idempotency keys, so after a lost reply only idempotent methods are repeated. A
        # timeout is not repeated, because the next try would take as long.
        return may_repeat and method in IDEMPOTENT and isinstance(result.error, broken_connections())
    assert result.reply is not None
    assert result.status is not None
    is_transient = result.reply.status_code in TRANSIENT_STATUSES or result.status.throttled
    return may_repeat and is_transient and not result.status.is_final


def retry_pause_us(status: RateLimitStatus | None, tries: int, chance: float) -> int:
    """What the provider asks for, plus a random time, so that calls that were throttled together do not return
    together."""
    longest_us = min(PAUSE_FIRST_US << (tries - 1), PAUSE_US_MAX)
    asked_us = 0 if status is None else status.retry_after_us or 0
    return asked_us + int(longest_us * chance)


def timeout_seconds(timeout: Seconds) -> float:
    return parse_duration_us("timeout", timeout, 0.001, TIMEOUT_SECONDS_MAX) / SECOND_US


def connection_errors() -> tuple[type[Exception], ...]:
    httpx2 = library()
    return httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout


def before_sending() -> tuple[type[Exception], ...]:
    return *connection_errors(), library().UnsupportedProtocol


def broken_connections() -> tuple[type[Exception], ...]:
    httpx2 = library()
    return httpx2.NetworkError, httpx2.RemoteProtocolError
