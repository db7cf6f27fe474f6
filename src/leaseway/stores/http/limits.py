"""Limits of a service, reached over HTTP."""

from collections.abc import Sequence

from leaseway.domain.ids import Instant
from leaseway.domain.limits.buckets import Granted, Notice, Verdict
from leaseway.domain.limits.level import Level
from leaseway.domain.limits.limit import LimitDefinition, PermitRequest, check_limit, size_limit
from leaseway.domain.limits.validation import (
    check_acquire,
    check_ended,
    check_in_flight,
    check_notice,
    check_requests,
    check_unused,
)
from leaseway.ports.limiter import LimitDefinitions
from leaseway.stores.http import messages, protocol
from leaseway.stores.http.client import ServiceClient


class HttpLimitDefinitions:
    def __init__(self, line: ServiceClient) -> None:
        self._line = line

    async def declare(self, definitions: Sequence[LimitDefinition]) -> None:
        for definition in definitions:
            size_limit(check_limit(definition))
        await self._line.ask(protocol.DECLARE_LIMITS, messages.DeclareLimitsRequest(tuple(definitions)))

    async def change(self, definition: LimitDefinition, *, expected: int | None = None) -> int:
        size_limit(check_limit(definition))
        return (await self._line.ask(protocol.CHANGE_LIMIT, messages.ChangeLimitRequest(definition, expected))).value

    async def all(self) -> list[tuple[LimitDefinition, int]]:
        return (await self._line.ask(protocol.LIMITS, messages.EmptyRequest())).value

    async def forget(self, name: str) -> bool:
        return (await self._line.ask(protocol.FORGET_LIMIT, messages.NameRequest(name))).value


class HttpLimiter:
    def __init__(self, line: ServiceClient) -> None:
        self.line = line
        self.definitions: LimitDefinitions = HttpLimitDefinitions(line)

    async def open(self) -> None:
        """Do nothing: the service has opened its own limiter."""

    async def close(self) -> None:
        await self.line.close()

    async def acquire(
        self, asks: Sequence[PermitRequest], *, least: int = 1, most: int = 1, holder: str = "", in_flight_us: int = 0
    ) -> Verdict:
        check_acquire(asks, least, most, in_flight_us)
        return (
            await self.line.ask(
                protocol.ACQUIRE, messages.AcquireRequest(tuple(asks), least, most, holder, in_flight_us)
            )
        ).verdict

    async def return_unused(self, granted: Granted, unused: int) -> None:
        check_unused(granted, unused)
        await self.line.ask(protocol.RETURN_UNUSED, messages.ReturnUnusedRequest(granted, unused))

    async def end_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, used: Sequence[int] = ()) -> None:
        check_ended(asks, holder, count, used)
        await self.line.ask(protocol.END_CALLS, messages.EndCallsRequest(tuple(asks), holder, count, tuple(used)))

    async def renew_calls(self, asks: Sequence[PermitRequest], holder: str, count: int, in_flight_us: int) -> None:
        check_in_flight(asks, holder, count, in_flight_us)
        await self.line.ask(protocol.RENEW_CALLS, messages.RenewCallsRequest(tuple(asks), holder, count, in_flight_us))

    async def observe(self, notice: Notice) -> None:
        check_notice(notice)
        await self.line.ask(protocol.OBSERVE, messages.ObserveRequest(notice))

    async def levels(self, asks: Sequence[PermitRequest]) -> tuple[Instant, list[Level]]:
        check_requests(asks)
        said = await self.line.ask(protocol.LEVELS, messages.LevelsRequest(tuple(asks)))
        return said.now, list(said.levels)
