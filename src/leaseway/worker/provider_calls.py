"""exchange ─► admit ─► [run handler: call the provider] ─► settle

One call to a provider: a permit of each of the job's limits, then a hold on each of its budgets, then the request, all
while the permit is valid. Afterwards the hold is settled with the actual cost, or in full if the handler does not say;
and what the provider reports about its limits goes to the whole fleet.

If a limit or a budget asks for a longer wait than a handler should make, the attempt ends and the job waits in its
lane.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, cast

from leaseway.domain.budgets.budget import (
    IMPOSSIBLE,
    PAUSED,
    Charge,
    Crossed,
    HoldBooked,
    HoldDenied,
    HoldGranted,
    HoldUsed,
    OverPolicy,
    parse_cost_micros,
)
from leaseway.domain.budgets.holds import RAISED_US
from leaseway.domain.errors import BadValue, LeasewayError, TransientError, UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus, parse_rate_limits
from leaseway.domain.outcome import Deferred, Fail
from leaseway.domain.requirements import Requirements, parse_needs
from leaseway.worker.attempt import Attempt
from leaseway.worker.environment import Environment, pause
from leaseway.worker.limiter_client import NO_PERMIT, LimiterClient, Permit
from leaseway.worker.provider_http import Delivery, RequestGrant

HOLD_US = 600 * SECOND_US
"""A hold that is not settled by then is charged in full."""
CALLS_MAX = 1_000_000
SETTLE_TRIES_MAX = 5


class ProviderCalls:
    """The calls of one attempt. It admits the requests of `ctx.http`, too."""

    def __init__(
        self,
        attempt: Attempt,
        requirements: Requirements,
        arguments: Mapping[str, Any],
        limiter: LimiterClient,
        environment: Environment,
    ) -> None:
        self._attempt = attempt
        self._needs = parse_needs(attempt.lease.needs)
        amounts = requirements.amounts(arguments) if self._needs.budgets else {}
        self._lines = tuple((charge, charge_amount(charge, amounts)) for charge in self._needs.budgets)
        self._units = {budget.name: budget.unit for budget in requirements.budgets}
        fails = {budget.name for budget in requirements.budgets if budget.definition.over is OverPolicy.FAIL}
        self._failing = {charge.name for charge in self._needs.budgets if charge.budget in fails}
        self._limiter = limiter
        self._environment = environment
        self._number = 0
        self.open_calls: list[ProviderCall] = []
        """Calls inside `async with ctx.call()`."""

    def call(self) -> "ProviderCall":
        return ProviderCall(self)

    # -- for ctx.http -----------------------------------------------------------------------------------------------

    async def before(self) -> "CallGrant":
        """A request inside `async with ctx.call()` belongs to that call; every other request is a call of its own."""
        for call in reversed(self.open_calls):
            if call.grant is not None and not call.grant.is_sent:
                await self.refresh(call.grant)
                call.grant.is_sent = True
                return call.grant
        return await self.open(is_sent=True)

    async def after(self, request_grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        grant = cast(CallGrant, request_grant)
        if status is not None:
            await self.notify(grant, status)
        if any(call.grant is grant for call in self.open_calls):
            grant.is_sent = delivery is not Delivery.NOT_SENT
        else:
            await self.close(grant, no_cost(self._lines) if delivery is Delivery.NOT_SENT else {})

    # -- one call ---------------------------------------------------------------------------------------------------

    async def open(self, *, is_sent: bool = False) -> "CallGrant":
        """Wait for the permit and the hold of one call. The request must be sent at once."""
        permit = await self._permit()
        try:
            hold = await self._hold() if self._lines else None
        except BaseException:
            # The job keeps its place under the tenant's concurrency limit until it ends.
            await self._limiter.give_back(permit.without(self._attempt.tenant_permit).granted, 1)
            raise
        grant = CallGrant(self._limiter, permit, hold, is_sent)
        try:
            await self.refresh(grant)
        except BaseException:
            await self.close(grant, no_cost(self._lines))
            raise
        return grant

    async def refresh(self, grant: "CallGrant") -> None:
        """An expired permit counts as used. Take another one."""
        while self._needs.limits and not grant.is_valid():
            await self._end_calls(grant.permit)
            grant.permit = NO_PERMIT
            grant.permit = await self._limiter.take(self._needs.limits)

    async def close(self, grant: "CallGrant", actuals: Mapping[str, int]) -> None:
        """The call is over. Its cost is booked even if the lease of the job is lost, because the money is spent."""
        if grant.is_closed:
            return
        grant.is_closed = True
        try:
            await self._end_calls(grant.permit)
        finally:
            if grant.hold is not None:
                await self._settle(grant.hold, actuals)

    async def _settle(self, hold: str, actuals: Mapping[str, int]) -> None:
        try:
            await self._settle_with_retries(hold, actuals)
        except asyncio.CancelledError:
            # The ledger may have received it. Settling twice books once.
            with contextlib.suppress(LeasewayError):
                await self._environment.ledger.settle(hold, actuals)
            raise

    async def _settle_with_retries(self, hold: str, actuals: Mapping[str, int]) -> None:
        for failures in range(1, SETTLE_TRIES_MAX + 1):
            try:
                self._emit_crossed(await self._environment.ledger.settle(hold, actuals))
                return
            except TransientError:
                await pause(self._environment, failures)
        # The hold is captured in full at its deadline: too much rather than too little.
        self._environment.events.emit("hold_unsettled", job=self._attempt.lease.id, hold=hold)

    async def notify(self, grant: "CallGrant", status: RateLimitStatus) -> None:
        await self._limiter.notify(grant.permit, self._needs.limits, status)

    def costs(self, amounts: Mapping[str, Any]) -> dict[str, int]:
        """The actual cost of a call, given by unit, as the ledger expects it."""
        known = set(self._units.values())
        for unit in amounts:
            if unit not in known:
                expected = ", ".join(sorted(known)) or "none"
                raise BadValue(unit, f"is not a unit of this job's budgets; its units: {expected}")
        units = {charge.name: self._units.get(charge.budget, "") for charge, _ in self._lines}
        return {name: parse_cost_micros(unit, amounts[unit]) for name, unit in units.items() if unit in amounts}

    # -- permits ----------------------------------------------------------------------------------------------------

    async def _end_calls(self, permit: Permit) -> None:
        """Free the places under the job's limits. The place under the tenant's limit belongs to the job."""
        await self._limiter.end_calls(tuple(each for each in permit.granted.asks if each in self._needs.limits))

    async def _permit(self) -> Permit:
        """The permit that admitted the job, if this is its first call and the permit is still valid."""
        admitted, self._attempt.permit = self._attempt.permit, None
        if admitted is not None:
            if self._limiter.is_valid(admitted) and self._covers_limits(admitted):
                return admitted
            # The permit counts as used, but it gives up its places.
            await self._end_calls(admitted)
        return await self._limiter.take(self._needs.limits) if self._needs.limits else NO_PERMIT

    def _covers_limits(self, permit: Permit) -> bool:
        return set(self._needs.limits) <= set(permit.granted.asks)

    # -- holds ------------------------------------------------------------------------------------------------------

    async def _hold(self) -> str:
        """Reserve the highest cost of the call, and record that the call is dispatched."""
        lease, failures = self._attempt.lease, 0
        while self._number < CALLS_MAX:
            id_ = f"{lease.id}:{lease.attempts}:{self._number + 1}"
            try:
                answer = await self._environment.ledger.hold(
                    id_, self._lines, HOLD_US, owner=str(lease.fence), dispatch=True
                )
            except TransientError:  # the id makes it safe to repeat
                failures += 1
                await pause(self._environment, failures)
                continue
            except asyncio.CancelledError:
                await self._not_sent(id_)
                raise
            # A hold that was booked or denied is requested again under the same id, so that it is reserved only once.
            self._number += isinstance(answer, HoldGranted | HoldUsed)
            match answer:
                case HoldGranted():
                    self._emit_crossed(answer.crossed)
                    return id_
                case HoldUsed():  # by an earlier delivery of this attempt
                    pass
                case HoldBooked(until=until, budget=budget):
                    raise Deferred(f"budget {budget}: used up until its next window", run_at=until)
                case HoldDenied():
                    raise self._denial(answer)
        raise UsageError(f"job {lease.id}: more than {CALLS_MAX:,} calls in one attempt")

    async def _not_sent(self, hold: str) -> None:
        """The hold may exist. If it does, the call cost nothing."""
        with contextlib.suppress(LeasewayError):
            await self._environment.ledger.settle(hold, no_cost(self._lines))

    def _denial(self, denied: HoldDenied) -> Exception:
        """Defer the job until a window begins or the budget may have been raised; or fail it, if the budget says so."""
        text = f"budget {denied.budget}: {denied.why}"
        fails = denied.budget in self._failing and denied.why != PAUSED
        if denied.why == IMPOSSIBLE or fails:
            return Fail(text, code="over_budget")
        return Deferred(text, run_at=denied.until, delay_us=RAISED_US if denied.until is None else 0)

    def _emit_crossed(self, crossed: Crossed) -> None:
        for budget, percent in crossed:
            self._environment.events.emit("budget_reached", budget=budget, percent=percent)


class CallGrant:
    """What one call holds while it is in flight: its permit and its hold."""

    __slots__ = ("_limiter", "hold", "is_closed", "is_sent", "permit")

    def __init__(self, limiter: LimiterClient, permit: Permit, hold: str | None, is_sent: bool) -> None:
        self._limiter = limiter
        self.permit = permit
        self.hold = hold
        self.is_sent = is_sent
        self.is_closed = False

    def is_valid(self) -> bool:
        """Whether the request may still be sent."""
        return self._limiter.is_valid(self.permit)


class ProviderCall:
    """`async with ctx.call() as call:` around one request, made with any client."""

    def __init__(self, calls: ProviderCalls) -> None:
        self._calls = calls
        self._actuals: dict[str, int] = {}
        self.grant: CallGrant | None = None

    async def __aenter__(self) -> "ProviderCall":
        self._actuals = {}
        self.grant = await self._calls.open()
        self._calls.open_calls.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.grant is not None
        self._calls.open_calls.remove(self)
        await self._calls.close(self.grant, self._actuals)

    def settle(self, **amounts: Any) -> None:
        """Set what the call cost, by unit: `call.settle(usd=0.004)`. Without it the whole estimate is charged."""
        self._actuals = self._calls.costs(amounts)

    async def report(self, status: int, headers: Mapping[str, str], body: str = "") -> None:
        """Report the provider's reply, if you do not use `ctx.http`. A status of 429 pauses the limit for the whole
        fleet."""
        assert self.grant is not None
        await self._calls.notify(self.grant, parse_rate_limits(status, headers.items(), body))


def no_cost(lines: Any) -> dict[str, int]:
    return {charge.name: 0 for charge, _ in lines}


def charge_amount(charge: Charge, amounts: Mapping[str, int]) -> int:
    if charge.budget not in amounts:
        # A cost of 0 would let the job spend without limit.
        raise UsageError(f"the job was submitted with budget {charge.name}, which its code no longer declares")
    return amounts[charge.budget]
