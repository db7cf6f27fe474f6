"""Calls of `FakeContext`: without a worker, and recorded."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from leaseway.domain.errors import UsageError
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus, throttled_error
from leaseway.domain.requirements import Requirements
from leaseway.ports.provider_requests import Delivery, RequestGrant
from leaseway.testing.recorded_call import RecordedCall
from leaseway.worker.calls.key_pool import NO_POOL, KeyPool
from leaseway.worker.calls.provider_call import ProviderCall, parse_report

if TYPE_CHECKING:
    from leaseway.testing.context import Recorder

CURRENT: ContextVar[RecordedCall] = ContextVar("leaseway_recorded_call")
"""The call whose request is being sent."""


class FakeCall(ProviderCall):
    """`async with ctx.call() as call:` without a worker."""

    def __init__(
        self, recorder: "Recorder", seconds: float, requirements: Requirements | None, pool: KeyPool | None = None
    ) -> None:
        self._recorder = recorder
        self._pool = pool
        self._seconds = seconds
        self._requirements = requirements
        self.record = RecordedCall({}, seconds)
        self.has_request = False
        """A request of `ctx.http` belongs to this call."""

    async def __aenter__(self) -> "FakeCall":
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end(None)

    async def _begin(self) -> None:
        self._recorder._attempt.refuse_if_ended("call")
        self.record = self._recorder._begin_call(self._seconds, self._requirements)
        self._recorder._open.append(self)
        self.has_request = False

    async def _end(self, error: BaseException | None) -> None:
        self._recorder._open.remove(self)

    def _refuse_unless_open(self, verb: str) -> None:
        """As a call in a worker does."""
        if self not in self._recorder._open:
            raise UsageError(f"call.{verb}: the call has not begun, or has ended; use it inside `with ctx.call()`")

    def _surround(self) -> None:
        """Requests find their call by its record."""

    def _release(self) -> None:
        """Nothing was set."""

    @property
    def key(self) -> str:
        """The first key of the pool."""
        if self._pool is None:
            raise UsageError(NO_POOL)
        return self._pool.secrets[0]

    def settle(self, **amounts: Any) -> None:
        self._refuse_unless_open("settle")
        self.record.settle(amounts, self._requirements)

    async def report(self, status: int, headers: Mapping[str, str], body: str = "") -> None:
        self._refuse_unless_open("report")
        told = parse_report(status, headers, body)
        self.record.status = status
        self._recorder._end_request(self.record, told)
        if told.throttled:
            raise throttled_error(status, told)


class FakeGrant:
    def __init__(self, record: RecordedCall, call: FakeCall | None) -> None:
        self.record = record
        self.call = call

    def is_valid(self) -> bool:
        return True


class FakeAdmission:
    """Admits every request at once, and records it."""

    def __init__(self, recorder: "Recorder") -> None:
        self._recorder = recorder

    async def before(self, seconds: float) -> FakeGrant:
        """A request inside `ctx.call()` belongs to that call."""
        self._recorder._attempt.refuse_if_ended("http")
        call = next((each for each in reversed(self._recorder._open) if not each.has_request), None)
        if call is not None:
            call.has_request = True
        record = self._recorder._begin_call(seconds) if call is None else call.record
        CURRENT.set(record)
        return FakeGrant(record, call)

    async def after(self, grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        assert isinstance(grant, FakeGrant)
        if grant.call is not None:
            grant.call.has_request = delivery is not Delivery.NOT_SENT
        elif delivery is Delivery.NOT_SENT:
            grant.record.is_sent = False
        self._recorder._end_request(grant.record, status)

    def settle(self, grant: RequestGrant, amounts: Mapping[str, Any]) -> None:
        assert isinstance(grant, FakeGrant)
        grant.record.settle(amounts, grant.call._requirements if grant.call else self._recorder._requirements)

    async def wait_in_place(self, why: str, seconds: float, *, by_limit: bool) -> bool:
        """As in a worker, a job that has made a call since its last checkpoint waits, which takes no time here."""
        return bool(self._recorder._attempt.calls) and self._recorder._attempt.stop is None
