"""exchange ─► admit ─► [run handler: call the provider] ─► settle: `ctx.call()`, as a handler uses it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from leaseway.domain.errors import BadValue, UsageError
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus, parse_rate_limits, throttled_error
from leaseway.domain.validators import check_int
from leaseway.worker.calls.call_needs import CallNeeds
from leaseway.worker.calls.grant import CURRENT_CALL, CallGrant
from leaseway.worker.calls.key_pool import NO_POOL

if TYPE_CHECKING:
    from leaseway.worker.provider_calls import ProviderCalls

T = TypeVar("T")

CUT_OFF = (asyncio.CancelledError, TimeoutError)
"""Errors after which a provider may still be working on a call."""
ASYNC_WITH = "ctx.call: an async function writes `async with ctx.call() as call:`"

FindNeeds = Callable[[], Awaitable[CallNeeds]]


class ProviderCall:
    """`async with ctx.call() as call:` around one request, made with any client."""

    def __init__(self, calls: "ProviderCalls", seconds: float, needs: CallNeeds | FindNeeds | None = None) -> None:
        self._calls = calls
        self._seconds = seconds
        self._needs = needs
        self._outer: CallGrant | None = None
        self.grant: CallGrant | None = None

    async def __aenter__(self) -> "ProviderCall":
        await self._begin()
        self._surround()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        await self._end(error)

    if not TYPE_CHECKING:  # type checkers report these mistakes, because they see no such methods

        def __enter__(self) -> None:
            raise UsageError(ASYNC_WITH)

        def __exit__(self, *_: object) -> None:
            """Never called."""

        def __await__(self) -> None:
            raise UsageError(ASYNC_WITH)

    def _surround(self) -> None:
        """From here on, requests of this task or thread belong to the call."""
        self._outer = CURRENT_CALL.get()
        CURRENT_CALL.set(self.grant)

    def _release(self) -> None:
        CURRENT_CALL.set(self._outer)

    async def _begin(self) -> None:
        needs = await self._needs() if callable(self._needs) else self._needs
        self.grant = await self._calls.open(self._seconds, needs)
        self._calls.open_grants.append(self.grant)

    async def _end(self, error: BaseException | None) -> None:
        assert self.grant is not None
        self._calls.open_grants.remove(self.grant)
        await self._calls.report_end(self.grant, error)
        await self._calls.close(self.grant, is_cut_off=isinstance(error, CUT_OFF))
        if self.grant.is_key_refused and isinstance(error, Exception):
            raise self.grant.needs.key_refused() from error

    @property
    def key(self) -> str:
        """The secret of the key that the call has taken from its pool."""
        if self.grant is None or (key := self.grant.needs.key) is None:
            raise UsageError(NO_POOL)
        return key.pool.secret(key.label)

    def _required_grant(self, verb: str) -> CallGrant:
        if self.grant is None:
            raise UsageError(f"call.{verb}: the call has not begun; use it inside `with ctx.call()`")
        return self.grant

    def settle(self, **amounts: Any) -> None:
        """Set what the call cost and used, once and by unit: `call.settle(usd=0.004, tokens=1_200)`. It corrects
        budgets and limits of these units; for every other one the whole estimate is charged. `input_tokens` and
        `output_tokens` add up to `tokens`."""
        self._calls.settle(self._required_grant("settle"), amounts)

    async def report(self, status: int, headers: Mapping[str, str], body: str = "") -> None:
        """Report the provider's reply, if you do not use `ctx.http`. Call it before anything else that depends on the
        reply. A status of 429 closes the limit for the whole fleet and raises `Throttled`: the job waits in its lane
        and keeps its attempt. Without `settle`, such a call costs nothing. A status of 5xx is a failure for the circuit
        breakers of the limits."""
        grant = self._required_grant("report")
        grant.refuse_closed("report")
        told = parse_report(status, headers, body)
        await self._calls.notify(grant, told)
        if grant.is_key_refused:
            raise grant.needs.key_refused()
        if told.throttled:
            raise throttled_error(status, told)


def parse_report(status: int, headers: Mapping[str, str], body: str) -> RateLimitStatus:
    """What a handler passes on of a reply. Clients have many types of headers."""
    check_int("call.report: status", status, 100, 999)
    if not hasattr(headers, "items"):
        raise BadValue("call.report: headers", f"must be the headers of the reply, by name (is {headers!r})")
    if not isinstance(body, str):
        raise BadValue("call.report: body", f"must be the text of the reply (is {type(body).__name__})")
    return parse_rate_limits(status, headers.items(), body)


WaitFor = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine in an event loop and waits for its result in a thread."""


def wait_in_thread(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


class SyncProviderCall:
    """`with ctx.call() as call:` in a plain function."""

    def __init__(
        self,
        call: ProviderCall,
        wait_for: WaitFor,
        refuse_if_ended: Callable[[], None],
    ) -> None:
        self._call = call
        self._refuse_if_ended = refuse_if_ended
        self._wait_for = wait_for
        self.settle = call.settle

    def __enter__(self) -> "SyncProviderCall":
        self._refuse_if_ended()
        self._wait_for(self._call._begin())
        self._call._surround()  # in this thread, because `begin` runs in a task of the event loop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call._release()
        self._wait_for(self._call._end(error))

    @property
    def key(self) -> str:
        """The secret of the key that the call has taken from its pool."""
        return self._call.key

    def report(self, status: int, headers: Mapping[str, str], body: str = "") -> None:
        self._wait_for(self._call.report(status, headers, body))
