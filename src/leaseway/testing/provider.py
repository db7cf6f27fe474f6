"""A metered API on this machine, for tests: it counts requests and refuses them as providers do.

    async with provider(limits=["20 per 2 s"]) as it:
        …                                        # call it.url
        assert it.most_in_any_window(2) <= 20

Its limits hold in every window, by a log of arrivals per key (`Authorization` or `X-Api-Key`). Requests beyond them are
answered with 429, Retry-After and RateLimit. With `answer`, `delay`, `cut`, `garble` and `hang` a test decides what
happens to the next requests, in this order; after that the provider behaves as usual.
"""

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from leaseway.domain.errors import BadValue
from leaseway.domain.limits.limit import Rate, parse_rate

HOST = "127.0.0.1"
HEAD_END = b"\r\n\r\n"
HEAD_BYTES_MAX = 65_536
BODY_BYTES_MAX = 64 * 1_048_576
ARRIVALS_MAX = 1_000_000
SECOND_NS = 1_000_000_000


class Arrival(NamedTuple):
    """One request, as the provider received it."""

    at_ns: int
    """On the machine's monotonic clock, when all of it had arrived."""
    method: str
    path: str
    key: str
    idempotency_key: str
    status: int
    """The status of the reply; 0 if there was none, because the connection was cut or left hanging."""
    headers: Mapping[str, str]

    @property
    def is_accepted(self) -> bool:
        """Executed, whether or not the caller received the reply."""
        return self.status < 400


class Act(NamedTuple):
    """What to do with one request instead of the usual."""

    reply: bytes | None = None
    """None: as usual."""
    status: int = 0
    delay_seconds: float = 0
    reads: bool = True
    cuts: bool = False


USUAL = Act()


class Answer(NamedTuple):
    """The provider's reply to a request within its limits."""

    status: int = HTTPStatus.OK
    body: bytes = b""
    headers: Mapping[str, str] = {}
    delay_seconds: float = 0
    sent_bytes_max: int | None = None
    """Bytes of the body to send before the connection is cut; None sends all of it."""


class Provider:
    """The requests that arrived, and what happens to the next ones."""

    def __init__(self, rates: Sequence[Rate]) -> None:
        self.url = ""
        self.arrivals: list[Arrival] = []
        self.connections = 0
        """How many connections were made."""
        self._open: set[ProviderConnection] = set()
        self._rates = rates
        self._accepted_ns: dict[str, list[int]] = {}
        self._acts: deque[Act] = deque()
        self._arrival = asyncio.Event()

    # -- requests that arrived --

    @property
    def refused(self) -> int:
        """The number of 429 replies."""
        return sum(arrival.status == HTTPStatus.TOO_MANY_REQUESTS for arrival in self.arrivals)

    @property
    def duplicates(self) -> int:
        """Requests that were accepted although one with the same idempotency key had been accepted before."""
        keys = Counter(arrival.idempotency_key for arrival in self.arrivals if arrival.is_accepted)
        del keys[""]
        return sum(keys.values()) - len(keys)

    def most_in_any_window(self, window_seconds: float, key: str | None = None) -> int:
        """The maximum number of requests that arrived within this time, refused or not."""
        times_ns = [arrival.at_ns for arrival in self.arrivals if key in (None, arrival.key)]
        return most_within(times_ns, round(window_seconds * SECOND_NS))

    async def has_seen(self, count: int) -> None:
        """Return when this many requests have arrived."""
        while len(self.arrivals) < count:
            self._arrival.clear()
            await self._arrival.wait()

    async def has_no_connection(self) -> None:
        """Return when all connections are closed."""
        while self._open:
            self._arrival.clear()
            await self._arrival.wait()

    # -- the next requests --

    def answer(
        self, status: int, headers: Mapping[str, str] | None = None, body: str | bytes = b"", times: int = 1
    ) -> None:
        """Send these replies to the next requests, whatever the limits say."""
        text = body.encode() if isinstance(body, str) else body
        self._next(Act(render_reply(status, headers or {}, text), status), times)

    def delay(self, seconds: float, times: int = 1) -> None:
        """Answer as usual, but later."""
        self._next(Act(delay_seconds=seconds), times)

    def cut(self, *, after_reading: bool, times: int = 1) -> None:
        """Cut the connection: before the request counts, or after it was executed and instead of the reply."""
        self._next(Act(b"", reads=after_reading, cuts=True), times)

    def garble(self, raw: bytes, times: int = 1, *, cuts: bool = True) -> None:
        """Send exactly these bytes, and end the connection."""
        self._next(Act(raw, cuts=cuts), times)

    def hang(self, times: int = 1) -> None:
        """Read the request, and never answer."""
        self._next(Act(b""), times)

    def _next(self, act: Act, times: int) -> None:
        self._acts.extend([act] * times)

    # -- the server --

    def opened(self, connection: "ProviderConnection") -> None:
        self.connections += 1
        self._open.add(connection)

    def closed(self, connection: "ProviderConnection") -> None:
        self._open.discard(connection)
        self._arrival.set()

    def cut_all(self) -> None:
        for connection in list(self._open):
            connection.cut()

    def act(self) -> Act:
        return self._acts.popleft() if self._acts else USUAL

    def arrived(self, act: Act, request: "ReceivedRequest") -> Act:
        """Count the request, and decide on the reply."""
        now_ns = time.monotonic_ns()
        if act.reply is not None:
            self._record(now_ns, request, act.status)
            return act
        accepted_ns = self._accepted_ns.setdefault(request.key, [])
        wait_ns = self._wait_ns(accepted_ns, now_ns)
        if wait_ns <= 0:
            accepted_ns.append(now_ns)
            answer = self.usual(request)
        else:
            retry_after = {"Retry-After": str(-(-wait_ns // SECOND_NS))}
            answer = Answer(HTTPStatus.TOO_MANY_REQUESTS, echo_body(request), retry_after)
        self._record(now_ns, request, answer.status)
        headers = {**answer.headers, **dict(self._headers(accepted_ns, now_ns))}
        return build_act(answer._replace(headers=headers), act.delay_seconds, has_body=request.method != "HEAD")

    def usual(self, request: "ReceivedRequest") -> Answer:
        """The reply without limits or faults; this one echoes the request."""
        return Answer(body=echo_body(request))

    def _record(self, now_ns: int, request: "ReceivedRequest", status: int) -> None:
        if len(self.arrivals) >= ARRIVALS_MAX:
            raise MemoryError(f"the provider has seen {ARRIVALS_MAX:,} requests, and keeps no more")
        self.arrivals.append(
            Arrival(
                now_ns,
                request.method,
                request.path,
                request.key,
                request.idempotency_key,
                int(status),
                request.headers,
            )
        )
        self._arrival.set()

    def _wait_ns(self, accepted_ns: Sequence[int], now_ns: int) -> int:
        """Seconds until every window has room; None if they have it now."""
        waits_ns = [0]
        for rate in self._rates:
            if len(accepted_ns) >= rate.count:
                waits_ns.append(accepted_ns[-rate.count] + rate.window_us * 1_000 - now_ns)
        return max(waits_ns)

    def _headers(self, accepted_ns: Sequence[int], now_ns: int) -> Iterable[tuple[str, str]]:
        states = [rate_state(rate, accepted_ns, now_ns) for rate in self._rates]
        if states:
            yield "RateLimit", ", ".join(f'"{name}";r={left};t={reset}' for name, left, reset in states)
            policies = (
                f'"{rate_name(rate)}";q={rate.count};w={-(-rate.window_us // 1_000_000)}' for rate in self._rates
            )
            yield "RateLimit-Policy", ", ".join(policies)


def most_within(times_ns: Iterable[int], window_ns: int) -> int:
    """The maximum number of these times in any window of this length. Two times exactly that far apart are not in one
    window.
    """
    ordered_ns = sorted(times_ns)
    most, oldest = 0, 0
    for newest, at_ns in enumerate(ordered_ns):
        while ordered_ns[oldest] <= at_ns - window_ns:
            oldest += 1
        most = max(most, newest - oldest + 1)
    return most


def rate_state(rate: Rate, accepted_ns: Sequence[int], now_ns: int) -> tuple[str, int, int]:
    """A rate's name, its remaining requests, and the seconds until there are more."""
    window_ns = rate.window_us * 1_000
    recent_ns = [at_ns for at_ns in accepted_ns[-rate.count :] if at_ns > now_ns - window_ns]
    reset_ns = recent_ns[0] + window_ns - now_ns if recent_ns else 0
    return rate_name(rate), rate.count - len(recent_ns), -(-reset_ns // SECOND_NS)


def rate_name(rate: Rate) -> str:
    return f"{rate.window_us // 1_000}ms"


def echo_body(request: "ReceivedRequest") -> bytes:
    body = {"path": request.path, "idempotency_key": request.idempotency_key, "body": request.body}
    return json.dumps(body).encode()


def build_act(answer: Answer, delay_seconds: float = 0, has_body: bool = True) -> Act:
    reply = render_reply(answer.status, answer.headers, answer.body, has_body)
    delay_seconds += answer.delay_seconds
    if answer.sent_bytes_max is None:
        return Act(reply, answer.status, delay_seconds)
    missing = max(len(answer.body) - answer.sent_bytes_max, 0)
    return Act(reply[: len(reply) - missing], answer.status, delay_seconds, cuts=True)


def render_reply(status: int, headers: Mapping[str, str], body: bytes, has_body: bool = True) -> bytes:
    reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    given = {name.lower() for name in headers}
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
    if "content-type" not in given:
        lines.append("Content-Type: application/json")
    if "content-length" not in given:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + (body if has_body else b"")


AnyProvider = TypeVar("AnyProvider", bound=Provider)


class ReceivedRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    body: str = ""

    @property
    def key(self) -> str:
        return self.headers.get("authorization") or self.headers.get("x-api-key", "")

    @property
    def idempotency_key(self) -> str:
        return self.headers.get("idempotency-key", "")

    @property
    def length(self) -> int:
        text = self.headers.get("content-length", "0")
        return min(int(text), BODY_BYTES_MAX) if text.isdecimal() else 0


class ProviderConnection(asyncio.Protocol):
    """One keep-alive connection: heads and bodies in, replies out. Bodies have a length; chunked bodies are not
    supported.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._buffer = bytearray()
        self._pending: tuple[Act, ReceivedRequest] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._provider.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._provider.closed(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._step():  # ends: each step shortens the buffer
            pass
        if self._pending is None and len(self._buffer) > HEAD_BYTES_MAX:
            self.cut()

    def _step(self) -> bool:
        """Take one head or one body from the buffer. False: it does not hold a complete one."""
        if self._pending is None:
            head, end, rest = self._buffer.partition(HEAD_END)
            if not end:
                return False
            self._buffer = rest
            act = self._provider.act()
            if not act.reads:
                self.cut()
                return False
            self._pending = act, parse_request(head.decode("latin-1"))
        act, request = self._pending
        if len(self._buffer) < request.length:
            return False
        body = self._buffer[: request.length].decode("utf-8", "replace")
        del self._buffer[: request.length]
        self._pending = None
        self._answer(act, request._replace(body=body))
        return bool(self._buffer)

    def _answer(self, act: Act, request: ReceivedRequest) -> None:
        act = self._provider.arrived(act, request)
        reply = act.reply or b""
        if act.delay_seconds:
            asyncio.get_running_loop().call_later(act.delay_seconds, self._send, reply, act.cuts)
        else:
            self._send(reply, act.cuts)

    def _send(self, reply: bytes, cuts: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(reply)
        if cuts and reply:
            self._transport.close()
        elif cuts:
            self.cut()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def parse_request(head: str) -> ReceivedRequest:
    line, *lines = head.split("\r\n")
    method, path, *_ = [*line.split(" "), "", ""]
    pairs = (line.partition(":") for line in lines)
    return ReceivedRequest(method, path, {name.strip().lower(): value.strip() for name, _, value in pairs})


@asynccontextmanager
async def provider(limits: Sequence[str] = ()) -> AsyncIterator[Provider]:
    """A provider with these limits, each like "20 per 2 s", for the duration of the block."""
    if isinstance(limits, str):
        raise BadValue("limits", f"must be a list of rates: limits=[{limits!r}]")
    async with serving(Provider([parse_rate("limits", limit) for limit in limits])) as it:
        yield it


@asynccontextmanager
async def serving(it: AnyProvider, port: int = 0) -> AsyncIterator[AnyProvider]:
    server = await asyncio.get_running_loop().create_server(lambda: ProviderConnection(it), HOST, port)
    it.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield it
    finally:
        server.close()
        it.cut_all()
        await server.wait_closed()
