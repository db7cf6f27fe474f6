"""admit (lane, limits, budget) ─► [request to the provider] ─► rate limit headers ─► limits

`ctx.http`: every request, including each retry, is admitted by the job's limits and budgets, and what the reply reports
about the provider's limits reaches the whole fleet. A request that is safe to repeat is retried a few times. If the
provider asks for a long wait, `Throttled` is raised and the job is released.

The permit is checked again after the connection is made and before the first byte is sent, because connecting may take
longer than the permit is valid.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, NamedTuple

from leaseway.deadlines import Deadline, Deadlines
from leaseway.domain.errors import BadValue, TransientError
from leaseway.domain.http import (
    ConnectFailed,
    HttpError,
    HttpHeaders,
    HttpReply,
    HttpRequest,
    Params,
    ProxyRefused,
    ReplyLost,
    ReplyTimeout,
    build_url,
    encode_body,
    merge_headers,
)
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits import rate_limit_headers
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus, Throttled
from leaseway.domain.validators import Seconds, parse_duration_us
from leaseway.ports.clock import Chance, Clock
from leaseway.ports.provider_requests import AboutToSend, Delivery, HttpTransport, RequestAdmission, RequestGrant

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
"""Between two parts of a reply."""
REPLY_SECONDS = 300.0
"""For the whole reply, unless the caller sets a longer timeout. A server that sends one byte at a time would never
reach the timeout above."""
TIMEOUT_SECONDS_MAX = 86_400

TRIES_MAX = 3
GRANTS_MAX = 10
"""How often a permit that expired before the request could be sent is replaced."""
PAUSE_FIRST_US = SECOND_US // 2
PAUSE_US_MAX = 8 * SECOND_US
PATIENCE_US = 5 * SECOND_US
"""For a longer wait the job is released instead of keeping its handler waiting."""

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
KEYED = frozenset({"POST", "PATCH"})
TRANSIENT_STATUSES = frozenset({429, 502, 503, 504, 529})
TOO_MANY = 429
KEY_HEADER = "Idempotency-Key"

BASE_HEADERS = HttpHeaders({"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "leaseway"})
"""For headers that the caller does not set."""

AnswerFunction = Callable[[HttpRequest], HttpReply | Awaitable[HttpReply]]
"""A function that answers requests in a test."""
SettleFunction = Callable[[HttpReply], Mapping[str, Any]]


class FunctionTransport:
    """Answers the requests of `ctx.http` by a function, for tests."""

    def __init__(self, answer: AnswerFunction) -> None:
        self._answer = answer

    async def send(self, request: HttpRequest, about_to_send: AboutToSend) -> HttpReply:
        await about_to_send()
        answer = self._answer(request)
        reply = await answer if isawaitable(answer) else answer
        reply.request = request
        return reply

    async def close(self) -> None: ...


class HttpSettings(NamedTuple):
    patience_us: int = PATIENCE_US
    key_header: str | None = KEY_HEADER
    """The header in which the provider expects idempotency keys. None: it does not support them."""


DEFAULT_SETTINGS = HttpSettings()


class HttpEnvironment:
    """What all requests of a worker share."""

    def __init__(self, transport: HttpTransport, clock: Clock, chance: Chance) -> None:
        self.transport = transport
        self.clock = clock
        self.chance = chance
        self.deadlines = Deadlines()


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
        self._seen: dict[str, int] = {}
        self.sent = 0
        """Requests that have left, including each retry."""

    async def get(self, url: str, **options: Any) -> HttpReply:
        return await self.request("GET", url, **options)

    async def head(self, url: str, **options: Any) -> HttpReply:
        return await self.request("HEAD", url, **options)

    async def options(self, url: str, **options: Any) -> HttpReply:
        return await self.request("OPTIONS", url, **options)

    async def put(self, url: str, **options: Any) -> HttpReply:
        return await self.request("PUT", url, **options)

    async def delete(self, url: str, **options: Any) -> HttpReply:
        return await self.request("DELETE", url, **options)

    async def post(self, url: str, **options: Any) -> HttpReply:
        return await self.request("POST", url, **options)

    async def patch(self, url: str, **options: Any) -> HttpReply:
        return await self.request("PATCH", url, **options)

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: str | bytes | None = None,
        data: Params | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the name that users of every client expect
        retry: bool | None = None,
        step: str | None = None,
        settle: SettleFunction | None = None,
    ) -> HttpReply:
        """Send a request as soon as the job's limits and budgets allow it.

        `timeout`: how long the provider may stay silent, in seconds. `retry`: whether the request is safe to repeat;
        None: if its method is idempotent or it carries an idempotency key. `step`: a name for this request within the
        job, used in its idempotency key; without it, equal requests are told apart by their order. `settle`: a
        function of a reply below status 400 that returns what the call cost and used, by unit:
        `lambda reply: {"usd": 0.004, "tokens": reply.json()["usage"]["total_tokens"]}`.
        """
        if settle is not None and not callable(settle):
            raise BadValue("settle", f"must be a function of the reply (is {settle!r})")
        body, content_type = encode_body(json, content, data)
        others = BASE_HEADERS
        if content_type is not None:
            others = HttpHeaders((*BASE_HEADERS.pairs, ("Content-Type", content_type)))
        request = HttpRequest(
            method.upper(),
            build_url(url, params),
            headers=merge_headers(headers, others),
            content=body,
            timeout_seconds=READ_SECONDS if timeout is None else timeout_seconds(timeout),
        )
        has_key = self._set_key(request, step)
        may_repeat = retry if retry is not None else has_key or request.method in IDEMPOTENT
        return await self._send_with_retries(request, may_repeat, settle)

    def _set_key(self, request: HttpRequest, step: str | None) -> bool:
        """Set an idempotency key that is the same in every attempt and different for every other request. A key that
        the caller has set is kept."""
        name = self._settings.key_header
        if name is None or request.method not in KEYED:
            return False
        if name not in request.headers:
            key = self._call_key(self._step_name(request) if step is None else step)
            request.headers = merge_headers({name: key}, request.headers)
        return True

    def _step_name(self, request: HttpRequest) -> str:
        parts = f"{request.method} {request.url}\n".encode() + request.content
        digest = hashlib.sha256(parts).hexdigest()[:16]
        self._seen[digest] = number = self._seen.get(digest, 0) + 1
        return f"{digest}-{number}"

    async def _send_with_retries(
        self, request: HttpRequest, may_repeat: bool, settle: SettleFunction | None
    ) -> HttpReply:
        tries = 0
        while True:  # until a try succeeds or is the last; a job that waits in place starts to count again
            tries += 1
            reply_seconds = max(request.timeout_seconds, REPLY_SECONDS)
            result = await RequestAttempt(self._environment, self._admission, request, reply_seconds, settle).run()
            self.sent += result.delivery is not Delivery.NOT_SENT
            is_last = tries == TRIES_MAX
            throttled = self._throttled(result, is_last) if may_repeat else None
            if throttled is not None:
                await self._wait_or_release(throttled)
                tries = 0
                continue
            if is_last or not may_retry(result, request.method, may_repeat):
                break
            await self._environment.clock.sleep(
                retry_pause_us(result.status, tries, self._environment.chance.random()) / SECOND_US
            )
        if result.error is not None:
            raise result.error
        assert result.reply is not None
        return result.reply

    def _throttled(self, result: "RequestResult", is_last: bool) -> Throttled | None:
        """What to raise if the wait is too long for a handler, or if the last try was throttled, too."""
        status, reply = result.status, result.reply
        if status is None or reply is None or not status.throttled:
            return None
        wait_us = status.retry_after_us or 0
        # A 503 or 529 may be a fault as well. After the last try the caller gets it, or the job could wait forever.
        if wait_us <= self._settings.patience_us and not (is_last and reply.status_code == TOO_MANY):
            return None
        where = "" if reply.request is None else f"{reply.request.method} {reply.request.host}: "
        return rate_limit_headers.throttled_error(reply.status_code, status, where)

    async def _wait_or_release(self, throttled: Throttled) -> None:
        """Release the job, unless it has made calls that would be repeated."""
        seconds = (throttled.retry_after_us or PAUSE_US_MAX) / SECOND_US
        if not await self._admission.wait_in_place(str(throttled), seconds, by_limit=True):
            raise throttled


class RequestResult(NamedTuple):
    """The result of one try: a reply with its rate limit status, or an error."""

    reply: HttpReply | None
    status: RateLimitStatus | None
    error: Exception | None
    delivery: Delivery


class RequestAttempt:
    """One try of a request, with its grant."""

    __slots__ = (
        "_admission", "_deadline", "_environment", "_grant", "_is_sent", "_reply_seconds", "_request",
        "_settle_function",
    )  # fmt: skip

    def __init__(
        self,
        environment: HttpEnvironment,
        admission: RequestAdmission,
        request: HttpRequest,
        reply_seconds: float,
        settle: SettleFunction | None = None,
    ) -> None:
        self._environment = environment
        self._admission = admission
        self._request = request
        self._reply_seconds = reply_seconds
        self._settle_function = settle
        self._grant: RequestGrant | None = None
        self._is_sent = False
        self._deadline: Deadline | None = None

    async def run(self) -> RequestResult:
        await self._admit()
        try:
            reply = await self._send()
        except HttpError as error:
            delivery = self._delivery_after(error)
            await self._close(status_without_reply(error), delivery)
            return RequestResult(None, None, error, delivery)
        except BaseException as error:
            await self._close(None, self._delivery_after(error))
            raise
        status = self._status(reply)
        try:
            self._settle(reply, status)
        finally:  # a call that cannot be settled is charged in full
            await self._close(status, Delivery.ANSWERED)
        return RequestResult(reply, status, None, Delivery.ANSWERED)

    async def _admit(self) -> None:
        """Take a grant that is valid now."""
        for _ in range(GRANTS_MAX):
            if self._grant is None:
                # Most replies are complete by then; one that arrives slowly may take longer.
                self._grant = await self._admission.before(CONNECT_SECONDS + self._request.timeout_seconds)
            if self._grant.is_valid():
                return
            await self._close(None, Delivery.NOT_SENT)
        raise TransientError(f"the permits of a request expired {GRANTS_MAX} times before it could be sent")

    def _settle(self, reply: HttpReply, status: RateLimitStatus) -> None:
        if self._settle_function is None or reply.status_code >= 400 or status.throttled or self._grant is None:
            return
        self._admission.settle(self._grant, amounts_used(self._settle_function, reply))

    async def _close(self, status: RateLimitStatus | None, delivery: Delivery) -> None:
        if (grant := self._grant) is not None:
            self._grant = None
            await self._admission.after(grant, status, delivery)

    async def _send(self) -> HttpReply:
        try:
            # One timer for both: connecting has a deadline of its own, so the reply gets its time in any case.
            with self._environment.deadlines.after(CONNECT_SECONDS + self._reply_seconds) as deadline:
                self._deadline = deadline
                return await self._environment.transport.send(self._request, self._about_to_send)
        except TimeoutError as error:
            if isinstance(error, HttpError) or not deadline.is_expired:
                raise
            where = f"{self._request.method} {self._request.host}"
            raise ReplyTimeout(f"{where}: the whole reply took longer than {self._reply_seconds:g} s") from error

    async def _about_to_send(self) -> None:
        if self._grant is None or not self._grant.is_valid():
            # Waiting for a permit does not count against the provider's time.
            assert self._deadline is not None
            self._deadline.stop()
            await self._close(None, Delivery.NOT_SENT)
            await self._admit()
            self._deadline.restart(self._reply_seconds)
        self._is_sent = True

    def _delivery_after(self, error: BaseException) -> Delivery:
        is_unsent = not self._is_sent or isinstance(error, ConnectFailed)
        return Delivery.NOT_SENT if is_unsent else Delivery.UNKNOWN

    def _status(self, reply: HttpReply) -> RateLimitStatus:
        body = ""
        if reply.status_code >= 400:
            body = reply.content[: rate_limit_headers.BODY_MAX].decode("utf-8", "replace")
        return rate_limit_headers.parse_rate_limits(
            reply.status_code, reply.headers.pairs, body, self._environment.clock.wall_us()
        )


def status_without_reply(error: HttpError) -> RateLimitStatus | None:
    """What an error says about the provider. None: nothing."""
    is_fault = isinstance(error, ConnectFailed | ReplyTimeout | ReplyLost) and not isinstance(error, ProxyRefused)
    return rate_limit_headers.NO_REPLY if is_fault else None


def amounts_used(settle: SettleFunction, reply: HttpReply) -> Mapping[str, Any]:
    """What the function of the caller says about a reply. Errors name it, because the reply itself is fine."""
    try:
        amounts = settle(reply)
    except Exception as error:
        raise BadValue(
            "settle", f"the function failed on the reply: {type(error).__name__}: {error}; the call was charged in full"
        ) from error
    if not isinstance(amounts, Mapping):
        raise BadValue(
            "settle",
            f"must return amounts by unit, such as {{'usd': 0.004, 'tokens': 1200}}, or {{}} to charge the estimate "
            f"(returned {amounts!r})",
        )
    return amounts


def may_retry(result: RequestResult, method: str, may_repeat: bool) -> bool:
    """Whether the request is safe to repeat and repeating it could help."""
    if result.error is not None:
        if result.delivery is Delivery.NOT_SENT:
            is_refused = isinstance(result.error, ProxyRefused)
            return may_repeat and isinstance(result.error, ConnectFailed) and not is_refused
        # A provider may ignore idempotency keys, so after a lost reply only idempotent methods are repeated. A
        # timeout is not repeated, because the next try would take as long.
        return may_repeat and method in IDEMPOTENT and isinstance(result.error, ReplyLost)
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
