"""Official SDKs under the job's limits and budgets: `AsyncOpenAI(http_client=leaseway_client(ctx))`.

    SDK ─► [httpx client ─► transport] ─► ctx.http ─► admit (limits, budget) ─► request ─► settle with the usage

Every request goes through `ctx.http`, which takes permits and holds, reads the headers of the reply and retries. An
SDK must not retry as well: replies carry `x-should-retry: false`, which the SDKs obey, and a request that an SDK
repeats after a lost connection is not sent. Errors that give the job back to its lane pass an SDK as `Interruption`,
because some SDKs catch every `Exception` and repeat the request.

A reply is complete before the SDK gets its first byte, also with `stream=True`.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.http import ConnectFailed, HttpError, HttpReply, ReplyTimeout
from leaseway.domain.limits.token_usage import Usage, read_usage
from leaseway.domain.outcome import Interruption
from leaseway.worker.calls.grant import ReportedUse
from leaseway.worker.context import Context, HandlerContext, SyncContext
from leaseway.worker.provider_http import REPLY_SECONDS

if TYPE_CHECKING:
    import httpx2

CostFunction = Callable[[Usage], float | Mapping[str, float]]
"""What a call with this usage cost: in US dollars, or by unit."""
LIBRARIES = ("httpx2", "httpx")
NOT_PASSED_ON = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
"""Headers of a request that describe the connection, which is not the SDK's."""
DECODED = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers of a reply that describe its body on the wire, which is decoded by now."""
RETRY_COUNT = "x-stainless-retry-count"
"""The SDKs of OpenAI and Anthropic number their tries with it."""
FAILED_MAX = 1_000


@overload
def leaseway_client(ctx: Context, *, cost: CostFunction | None = None) -> "httpx2.AsyncClient": ...
@overload
def leaseway_client(ctx: SyncContext, *, cost: CostFunction | None = None) -> "httpx2.Client": ...
@overload
def leaseway_client(ctx: HandlerContext, *, cost: CostFunction | None = None, library: str) -> Any: ...


def leaseway_client(ctx: HandlerContext, *, cost: CostFunction | None = None, library: str = "httpx2") -> Any:
    """An HTTP client for an official SDK, whose requests run under the limits and budgets of the job:

        client = AsyncOpenAI(http_client=leaseway_client(ctx), max_retries=0)

    An async function gets a client for the async SDK, a plain function one for the plain SDK. The usage in a reply
    settles limits and budgets in tokens. `cost`: a function of the `Usage` that returns what the call cost, in US
    dollars or by unit; without it, the job's whole estimate is charged. `library`: "httpx" for SDKs that are built on
    httpx instead of httpx2.
    """
    if library not in LIBRARIES:
        raise BadValue("library", f"must be one of {', '.join(LIBRARIES)} (is {library!r})")
    httpx = load_library(library)
    requests = SdkRequests(ctx, cost, httpx)
    return requests.async_client() if isinstance(ctx, Context) else requests.sync_client()


def load_library(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        extra = "pip install 'leaseway[http]'" if name == "httpx2" else "pip install httpx"
        raise UsageError(f"leaseway_client needs {name}: {extra}") from error


class SdkRequests:
    """What the clients of both kinds of context share. `httpx`: the library of the SDK."""

    def __init__(self, ctx: HandlerContext, cost: CostFunction | None, httpx: ModuleType) -> None:
        self._ctx = ctx
        self._cost = cost
        self._httpx = httpx
        self._failed: OrderedDict[bytes, Exception] = OrderedDict()
        """Errors of requests that an SDK may repeat, by what was sent."""

    def async_client(self) -> Any:
        requests, httpx = self, self._httpx

        class LeasewayTransport(httpx.AsyncBaseTransport):  # type: ignore[name-defined, misc]
            async def handle_async_request(self, request: Any) -> Any:
                await request.aread()
                requests.refuse_repeated(request)
                try:
                    reply = await requests._ctx.http.request(**requests.options(request))
                except Exception as error:
                    raise requests.translate(request, error) from error
                return requests.response(request, reply)

        return httpx.AsyncClient(transport=LeasewayTransport())

    def sync_client(self) -> Any:
        requests, httpx = self, self._httpx

        class LeasewaySyncTransport(httpx.BaseTransport):  # type: ignore[name-defined, misc]
            def handle_request(self, request: Any) -> Any:
                request.read()
                requests.refuse_repeated(request)
                try:
                    reply: Any = requests._ctx.http.request(**requests.options(request))
                except Exception as error:
                    raise requests.translate(request, error) from error
                return requests.response(request, reply)

        return httpx.Client(transport=LeasewaySyncTransport())

    # -- requests ---------------------------------------------------------------------------------------------------

    def options(self, request: Any) -> dict[str, Any]:
        return {
            "method": request.method,
            "url": str(request.url),
            "headers": {name: text for name, text in request.headers.items() if name.lower() not in NOT_PASSED_ON},
            "content": request.content or None,
            "timeout": request.extensions.get("timeout", {}).get("read") or REPLY_SECONDS,
            "settle": self.settle,
        }

    def settle(self, reply: HttpReply) -> Mapping[str, Any]:
        usage = read_usage(reply.content, reply.headers.get("content-type", ""))
        if usage is None:
            return {}
        amounts = ReportedUse(
            tokens=usage.total_tokens, input_tokens=usage.all_input_tokens, output_tokens=usage.output_tokens
        )
        if self._cost is not None:
            cost = self._cost(usage)
            amounts.update(cost if isinstance(cost, Mapping) else {"usd": cost})
        return amounts

    # -- replies and errors -----------------------------------------------------------------------------------------

    def response(self, request: Any, reply: HttpReply) -> Any:
        headers = [(name, text) for name, text in reply.headers.pairs if name.lower() not in DECODED]
        return self._httpx.Response(
            reply.status_code,
            headers=[*headers, ("x-should-retry", "false")],
            content=reply.content,
            request=request,
        )

    def translate(self, request: Any, error: Exception) -> BaseException:
        """What an SDK expects of its client; everything else is none of its business."""
        if not isinstance(error, HttpError):
            return Interruption(error)
        kind = "ReadError"
        if isinstance(error, ConnectFailed):
            kind = "ConnectError"
        elif isinstance(error, ReplyTimeout):
            kind = "ReadTimeout"
        known: Exception = getattr(self._httpx, kind)(str(error), request=request)
        self._failed[digest(request)] = known
        if len(self._failed) > FAILED_MAX:
            self._failed.popitem(last=False)
        return known

    def refuse_repeated(self, request: Any) -> None:
        """A repeated request fails as the first one did. `ctx.http` has retried it if that was safe."""
        if request.headers.get(RETRY_COUNT, "0") != "0" and (known := self._failed.get(digest(request))) is not None:
            raise known


def digest(request: Any) -> bytes:
    return sha256(f"{request.method} {request.url}\n".encode() + request.content).digest()
