"""admit (lane, limits, budget) ─► [request leaves] ─► what the reply says ─► limits

`ctx.http`: every request that leaves, a repeated one too, is admitted by the job's limits and its budget, and what the
provider says in its reply reaches the whole fleet. A request that may safely be repeated is, within bounds; a wait that
is too long to sleep through is raised as `Throttled`, and the job is given back.

The tokens are looked at again when the connection stands and before the first byte leaves: making a connection may take
longer than they live.
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
"""Between two pieces of a reply."""
REPLY_SECONDS = 300.0
"""For the whole of it, unless the caller is ready to wait longer: a server that drips never reaches the one above."""
TIMEOUT_SECONDS_MAX = 86_400
REPLY_BYTES_MAX = 256 * 1_048_576
"""Unpacked: a reply of a megabyte may become gigabytes."""

TRIES_MAX = 3
PASSES_MAX = 10
"""So often are tokens taken anew that grew too old on their way to the wire."""
PAUSE_FIRST_US = SECOND_US // 2
PAUSE_US_MAX = 8 * SECOND_US
PATIENCE_US = 5 * SECOND_US
"""A longer wait is the store's to keep, not a handler's."""

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
KEYED = frozenset({"POST", "PATCH"})
PASSING = frozenset({429, 502, 503, 504})
TOO_MANY = 429
KEY_HEADER = "Idempotency-Key"

ABOUT_TO_SEND = "send_request_headers.started"
"""How the client's trace names the moment before the first byte."""


class Delivery(Enum):
    """What became of a request for which a pass was taken."""

    NOT_SENT = "nothing left: the provider knows nothing of it"
    ANSWERED = "a whole reply came"
    UNKNOWN = "it left, and no whole reply came: the provider may have done it"


class RequestGrant(Protocol):
    """The leave to send one request."""

    def check(self) -> bool:
        """May it still leave now? False: its tokens are too old, and must be taken anew."""
        ...


class RequestAdmission(Protocol):
    """The job's limits and its budget. Every pass that `before` gives comes back to `after`, exactly once."""

    async def before(self) -> RequestGrant:
        """Wait until one request may leave."""
        ...

    async def after(self, pass_: RequestGrant, said: RateLimitStatus | None, fate: Delivery) -> None:
        """What became of it; None: there was no reply. Must not raise because a store is away: the reply counts."""
        ...


class SharedClient:
    """The one client of a worker process and its event loop: opened by the first request, closed with the worker."""

    def __init__(self, transport: "httpx2.AsyncBaseTransport | None" = None) -> None:
        self._transport = transport
        self._client: httpx2.AsyncClient | None = None

    def client(self) -> "httpx2.AsyncClient":
        if self._client is None:
            # Late, as the client itself: most commands never call anybody.
            from http.cookiejar import CookieJar, DefaultCookiePolicy

            httpx2 = library()
            self._client = httpx2.AsyncClient(
                transport=self._transport,
                # Each redirect would be a request that nobody admitted.
                follow_redirects=False,
                # One client serves all tenants: what a provider tells one must not be sent for another.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                # How many requests are under way is for limits and the worker's slots to say.
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
    """Under which name the provider expects idempotency keys. None: it knows none."""


USUAL = HttpSettings()


class HttpEnvironment(NamedTuple):
    """What one worker's requests have in common."""

    wire: SharedClient
    clock: Clock
    chance: Chance


class Http:
    """What `ctx.http` is. Replies of every status are returned: `raise_for_status` is yours to call."""

    def __init__(
        self,
        world: HttpEnvironment,
        gatekeeper: RequestAdmission,
        call_key: Callable[[str], str],
        settings: HttpSettings = USUAL,
    ) -> None:
        self._world = world
        self._gatekeeper = gatekeeper
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
        """Send it, when limits and budget allow.

        `timeout`: how long the provider may be silent. `retry`: whether a repetition is safe; None: by the method, or
        because the request carries an idempotency key. `step` names the request within its job, for that key: without
        it, equal requests are told apart by their order.
        """
        if content is not None and not isinstance(content, str | bytes):
            raise BadValue("content", f"must be text or bytes, which can be sent again (is {type(content).__name__})")
        read_seconds = READ_SECONDS if timeout is None else timeout_seconds(timeout)
        request = self._world.wire.client().build_request(
            method.upper(), url, params=params, headers=headers, json=json, content=content, data=data
        )
        request.extensions["timeout"] = {"connect": CONNECT_SECONDS, "read": read_seconds, "write": read_seconds}
        has_key = self._give_key(request, step)
        may_repeat = retry if retry is not None else has_key or request.method in IDEMPOTENT
        return await self._until_answered(request, max(read_seconds, REPLY_SECONDS), may_repeat)

    def _give_key(self, request: "httpx2.Request", step: str | None) -> bool:
        """The same in every attempt, and another for every other request. A key of the caller's own is kept."""
        name = self._settings.key_header
        if name is None or request.method not in KEYED:
            return False
        if name not in request.headers:
            request.headers[name] = self._call_key(self._step_of(request) if step is None else step)
        return True

    def _step_of(self, request: "httpx2.Request") -> str:
        parts = f"{request.method} {request.url}\n".encode() + request.content
        digest = hashlib.sha256(parts).hexdigest()[:16]
        self._seen[digest] += 1
        return f"{digest}-{self._seen[digest]}"

    async def _until_answered(
        self, request: "httpx2.Request", reply_seconds: float, may_repeat: bool
    ) -> "httpx2.Response":
        for tries in range(1, TRIES_MAX + 1):
            trip = RequestAttempt(self._world, self._gatekeeper, request, reply_seconds)
            result = await trip.go()
            is_last = tries == TRIES_MAX
            self._refuse_to_wait(result, may_repeat, is_last)
            if is_last or not may_go_again(result, request.method, may_repeat):
                break
            await self._world.clock.sleep(pause_us(result.said, tries, self._world.chance.random()) / SECOND_US)
        if result.error is not None:
            raise result.error
        assert result.reply is not None
        return result.reply

    def _refuse_to_wait(self, result: "RequestResult", may_repeat: bool, is_last: bool) -> None:
        """Give the job back for a wait that is too long, or for one refusal too many."""
        said, reply = result.said, result.reply
        if said is None or reply is None or not said.throttled or not may_repeat:
            return
        wait_us = said.retry_after_us or 0
        # A 503 may be a fault as well as a refusal: after the last try it is the caller's, or it would wait forever.
        if wait_us > self._settings.patience_us or (is_last and reply.status_code == TOO_MANY):
            where = f"{reply.request.method} {reply.request.url.host}"
            wait = f"asks us to wait {wait_us / SECOND_US:g} s" if wait_us else "asks us to wait"
            raise Throttled(f"{where}: status {reply.status_code}, the provider {wait}", said.retry_after_us)


class SyncHttp:
    """The same for functions that run in a thread."""

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
    """Of one try: a reply and what it said, or an error."""

    reply: "httpx2.Response | None"
    said: RateLimitStatus | None
    error: Exception | None
    fate: Delivery


class RequestAttempt:
    """One request on its way, with its pass."""

    def __init__(
        self, world: HttpEnvironment, gatekeeper: RequestAdmission, request: "httpx2.Request", reply_seconds: float
    ) -> None:
        self._world = world
        self._gatekeeper = gatekeeper
        self._request = request
        self._reply_seconds = reply_seconds
        self._pass: RequestGrant | None = None
        self._has_left: bool | None = None
        """None: the client has told us nothing yet."""
        self._deadline = asyncio.timeout(None)

    async def go(self) -> RequestResult:
        httpx2 = library()
        await self._admit()
        try:
            reply = await self._send()
        except httpx2.HTTPError as error:
            fate = self._fate_of(error)
            await self._close(None, fate)
            return RequestResult(None, None, error, fate)
        except BaseException as error:
            await self._close(None, self._fate_of(error))
            raise
        said = self._said(reply)
        await self._close(said, Delivery.ANSWERED)
        return RequestResult(reply, said, None, Delivery.ANSWERED)

    async def _admit(self) -> None:
        """Take a pass that is good now."""
        for _ in range(PASSES_MAX):
            if self._pass is None:
                self._pass = await self._gatekeeper.before()
            if self._pass.check():
                return
            await self._close(None, Delivery.NOT_SENT)
        raise TransientError(f"{PASSES_MAX} times the tokens for a request were too old before it could leave")

    async def _close(self, said: RateLimitStatus | None, fate: Delivery) -> None:
        if (pass_ := self._pass) is not None:
            self._pass = None
            await self._gatekeeper.after(pass_, said, fate)

    async def _send(self) -> "httpx2.Response":
        self._request.extensions["trace"] = self._trace
        client = self._world.wire.client()
        try:
            async with self._deadline:
                self._rearm(CONNECT_SECONDS + self._reply_seconds)
                return await whole(await client.send(self._request, stream=True))
        except TimeoutError as error:
            if not self._deadline.expired():
                raise
            message = f"the whole reply took longer than {self._reply_seconds:g} s"
            raise library().ReadTimeout(message, request=self._request) from error

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        self._has_left = self._has_left or False
        # A proxy is asked for its connection first; that request is not ours.
        if event.endswith(ABOUT_TO_SEND) and info["request"].method != b"CONNECT":
            # However long tokens take, they are not the provider's time.
            self._deadline.reschedule(None)
            await self._admit()
            self._rearm(self._reply_seconds)
            self._has_left = True

    def _rearm(self, seconds: float) -> None:
        self._deadline.reschedule(asyncio.get_running_loop().time() + seconds)

    def _fate_of(self, error: BaseException) -> Delivery:
        if self._has_left is not None:
            return Delivery.UNKNOWN if self._has_left else Delivery.NOT_SENT
        return Delivery.NOT_SENT if isinstance(error, before_sending()) else Delivery.UNKNOWN

    def _said(self, reply: "httpx2.Response") -> RateLimitStatus:
        body = ""
        if reply.status_code >= 400:
            body = reply.content[: rate_limit_headers.BODY_MAX].decode("utf-8", "replace")
        return rate_limit_headers.parse_rate_limits(
            reply.status_code, reply.headers.multi_items(), body, self._world.clock.wall_us()
        )


async def whole(reply: "httpx2.Response") -> "httpx2.Response":
    """With its body, as far as a process can bear it."""
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async for part in reply.aiter_bytes():
            size_bytes += len(part)
            if size_bytes > REPLY_BYTES_MAX:
                where = f"{reply.request.method} {reply.request.url.host}"
                raise TooLarge(f"{where} sends more than {REPLY_BYTES_MAX:,} bytes")
            parts.append(part)
    finally:
        await reply.aclose()
    reply._content = b"".join(parts)  # as the client's own `aread` does, which knows no bound
    return reply


def may_go_again(result: RequestResult, method: str, may_repeat: bool) -> bool:
    """Whether the same request may be sent once more, and whether that could help."""
    if result.error is not None:
        if result.fate is Delivery.NOT_SENT:
            return may_repeat and isinstance(result.error, connection_errors())
        # Whether a provider heeds our key is not known, so a lost reply is repeated by the method only. A deadline that
        # passed is not: the next try would take as long.
        return may_repeat and method in IDEMPOTENT and isinstance(result.error, broken_connections())
    assert result.reply is not None
    assert result.said is not None
    passes = result.reply.status_code in PASSING or result.said.throttled
    return may_repeat and passes and not result.said.is_final


def pause_us(said: RateLimitStatus | None, tries: int, chance: float) -> int:
    """What the provider asks for, and then a time by chance: who was refused together does not return together."""
    longest_us = min(PAUSE_FIRST_US << (tries - 1), PAUSE_US_MAX)
    asked_us = 0 if said is None else said.retry_after_us or 0
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
