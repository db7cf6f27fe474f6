"""exchange ─► admit ─► [run handler: call the provider] ─► settle

One call: a token of each of the job's limits, then a hold on each of its budgets, then the request, all within the
moment for which the token is good. Afterwards the hold is settled with what the call has cost, or in full if nobody
says; and what the provider said about its limits is told to everybody.

Whatever says "later" and means longer than a handler should wait ends the attempt: the job waits in its lane.
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
from leaseway.domain.budgets.ledger import RAISED_US
from leaseway.domain.errors import BadValue, LeasewayError, TransientError, UsageError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits import rate_limit_headers
from leaseway.domain.limits.rate_limit_headers import RateLimitStatus
from leaseway.domain.outcome import Deferred, Fail
from leaseway.domain.requirements import Requirements, parse_needs
from leaseway.domain.worker_pacing import retry_delay_seconds
from leaseway.worker.attempt import Attempt
from leaseway.worker.environment import Environment
from leaseway.worker.limiter_client import NO_PERMIT, LimiterClient, Permit
from leaseway.worker.provider_http import Delivery, RequestGrant

HOLD_US = 600 * SECOND_US
"""A call that nobody has settled by then was made, as far as the budget is concerned."""
CALLS_MAX = 1_000_000
SETTLE_TRIES_MAX = 5


class ProviderCalls:
    """The calls of one attempt. It is the gatekeeper of `ctx.http`, too."""

    def __init__(
        self,
        running: Attempt,
        demands: Requirements,
        arguments: Mapping[str, Any],
        tokens: LimiterClient,
        world: Environment,
    ) -> None:
        self._running = running
        self._needs = parse_needs(running.lease.needs)
        amounts = demands.amounts(arguments) if self._needs.budgets else {}
        self._lines = tuple((charge, charge_amount(charge, amounts)) for charge in self._needs.budgets)
        self._units = {budget.name: budget.unit for budget in demands.budgets}
        fails = {budget.name for budget in demands.budgets if budget.definition.over is OverPolicy.FAIL}
        self._failing = {charge.name for charge in self._needs.budgets if charge.budget in fails}
        self._tokens = tokens
        self._world = world
        self._number = 0
        self._open: list[ProviderCall] = []

    def call(self) -> "ProviderCall":
        return ProviderCall(self)

    # -- for ctx.http -----------------------------------------------------------------------------------------------

    async def before(self) -> "CallGrant":
        """A request inside `async with ctx.call()` is that call; every other one is a call of its own."""
        for call in reversed(self._open):
            if call.ticket is not None and not call.ticket.is_sent:
                await self.freshen(call.ticket)
                call.ticket.is_sent = True
                return call.ticket
        return await self.open(is_sent=True)

    async def after(self, pass_: RequestGrant, said: RateLimitStatus | None, fate: Delivery) -> None:
        ticket = cast(CallGrant, pass_)
        if said is not None:
            await self.hear(ticket, said)
        if any(call.ticket is ticket for call in self._open):
            ticket.is_sent = fate is not Delivery.NOT_SENT
        else:
            await self.close(ticket, nothing(self._lines) if fate is Delivery.NOT_SENT else {})

    # -- one call ---------------------------------------------------------------------------------------------------

    async def open(self, *, is_sent: bool = False) -> "CallGrant":
        """Wait for all that one call needs. The request must leave at once."""
        token = await self._token()
        try:
            hold = await self._hold() if self._lines else None
        except BaseException:
            # The job keeps its tenant's seat until it ends.
            await self._tokens.give_back(token.without(self._running.seat).granted, 1)
            raise
        ticket = CallGrant(self._tokens, token, hold, is_sent)
        try:
            await self.freshen(ticket)
        except BaseException:
            await self.close(ticket, nothing(self._lines))
            raise
        return ticket

    async def freshen(self, ticket: "CallGrant") -> None:
        """A token that has grown old is used up, and another one is taken."""
        while self._needs.limits and not ticket.check():
            await self._leave(ticket)
            ticket.token = NO_PERMIT
            ticket.token = await self._tokens.take(self._needs.limits)

    async def close(self, ticket: "CallGrant", actuals: Mapping[str, int]) -> None:
        """The call is over. What it has cost is a fact: it is booked, though our lease may be lost."""
        if ticket.is_closed:
            return
        ticket.is_closed = True
        try:
            await self._leave(ticket)
        finally:
            if ticket.hold is not None:
                await self._settle(ticket.hold, actuals)

    async def _settle(self, hold: str, actuals: Mapping[str, int]) -> None:
        try:
            await self._settle_soon(hold, actuals)
        except asyncio.CancelledError:
            # Nobody knows whether it was heard. Once more: it is booked once.
            with contextlib.suppress(LeasewayError):
                await self._world.ledger.settle(hold, actuals)
            raise

    async def _settle_soon(self, hold: str, actuals: Mapping[str, int]) -> None:
        for failures in range(1, SETTLE_TRIES_MAX + 1):
            try:
                self._tell_of(await self._world.ledger.settle(hold, actuals))
                return
            except TransientError:
                await self._world.clock.sleep(retry_delay_seconds(failures, self._world.chance.random()))
        # It will be captured in full when its time is over: too much rather than too little.
        self._world.events.emit("hold_unsettled", job=self._running.lease.id, hold=hold)

    async def hear(self, ticket: "CallGrant", heard: RateLimitStatus) -> None:
        await self._tokens.hear(ticket.token, self._needs.limits, heard)

    def costs(self, amounts: Mapping[str, Any]) -> dict[str, int]:
        """What the user says a call has cost, by its unit, as the ledger wants it."""
        known = set(self._units.values())
        for unit in amounts:
            if unit not in known:
                raise BadValue(
                    unit, f"is no unit of this job's budgets; there are {', '.join(sorted(known)) or 'none'}"
                )
        units = {charge.name: self._units.get(charge.budget, "") for charge, _ in self._lines}
        return {name: parse_cost_micros(unit, amounts[unit]) for name, unit in units.items() if unit in amounts}

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _leave(self, ticket: "CallGrant") -> None:
        await self._leave_limits(ticket.token)

    async def _leave_limits(self, token: Permit) -> None:
        """The seats of the limits. That of the tenant is the job's."""
        await self._tokens.leave(tuple(ask for ask in token.granted.asks if ask in self._needs.limits))

    async def _token(self) -> Permit:
        """The one that admitted the job, if this is its first call and it is still good."""
        admitted, self._running.token = self._running.token, None
        if admitted is not None:
            if self._tokens.is_good(admitted) and self._is_enough(admitted):
                return admitted
            # It is used up, but nobody needs to sit on its seats.
            await self._leave_limits(admitted)
        return await self._tokens.take(self._needs.limits) if self._needs.limits else NO_PERMIT

    def _is_enough(self, token: Permit) -> bool:
        return set(self._needs.limits) <= set(token.granted.asks)

    async def _hold(self) -> str:
        """Reserve what the call may cost at most, and say that it leaves now."""
        lease, failures = self._running.lease, 0
        while self._number < CALLS_MAX:
            id_ = f"{lease.id}:{lease.attempts}:{self._number + 1}"
            try:
                answer = await self._world.ledger.hold(id_, self._lines, HOLD_US, owner=str(lease.fence), dispatch=True)
            except TransientError:  # the same again: ids make every step repeatable
                failures += 1
                await self._world.clock.sleep(retry_delay_seconds(failures, self._world.chance.random()))
                continue
            except asyncio.CancelledError:
                await self._not_sent(id_)
                raise
            # Whoever is told "later" and asks again asks for the same: he has his place there only once.
            self._number += isinstance(answer, HoldGranted | HoldUsed)
            match answer:
                case HoldGranted():
                    self._tell_of(answer.crossed)
                    return id_
                case HoldUsed():  # by an earlier delivery of this attempt
                    pass
                case HoldBooked(until=until, budget=budget):
                    raise Deferred(f"budget {budget}: used up until its next window", run_at=until)
                case HoldDenied():
                    raise self._denial(answer)
        raise UsageError(f"job {lease.id}: more than {CALLS_MAX:,} calls in one attempt")

    async def _not_sent(self, hold: str) -> None:
        """Nobody knows whether it is held; if it is, it costs nothing."""
        with contextlib.suppress(LeasewayError):
            await self._world.ledger.settle(hold, nothing(self._lines))

    def _denial(self, denied: HoldDenied) -> Exception:
        """Later, when a window begins or somebody has raised the limit; or never, if the user wants it so."""
        text = f"budget {denied.budget}: {denied.why}"
        fails = denied.budget in self._failing and denied.why != PAUSED
        if denied.why == IMPOSSIBLE or fails:
            return Fail(text, code="over_budget")
        return Deferred(text, run_at=denied.until, delay_us=RAISED_US if denied.until is None else 0)

    def _tell_of(self, crossed: Crossed) -> None:
        for budget, percent in crossed:
            self._world.events.emit("budget_reached", budget=budget, percent=percent)


class CallGrant:
    """What one call holds while it is under way."""

    __slots__ = ("_tokens", "hold", "is_closed", "is_sent", "token")

    def __init__(self, tokens: LimiterClient, token: Permit, hold: str | None, is_sent: bool) -> None:
        self._tokens = tokens
        self.token = token
        self.hold = hold
        self.is_sent = is_sent
        self.is_closed = False

    def check(self) -> bool:
        """May the request still leave?"""
        return self._tokens.is_good(self.token)


class ProviderCall:
    """`async with ctx.call() as call:` around one request of any client."""

    def __init__(self, calls: ProviderCalls) -> None:
        self._calls = calls
        self._actuals: dict[str, int] = {}
        self.ticket: CallGrant | None = None

    async def __aenter__(self) -> "ProviderCall":
        self._actuals = {}
        self.ticket = await self._calls.open()
        self._calls._open.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.ticket is not None
        self._calls._open.remove(self)
        await self._calls.close(self.ticket, self._actuals)

    def settle(self, **amounts: Any) -> None:
        """What the call has cost, by unit: settle(usd=0.004). Without it the whole estimate is charged."""
        self._actuals = self._calls.costs(amounts)

    async def report(self, status: int, headers: Mapping[str, str], body: str = "") -> None:
        """What the provider answered, for clients that are not `ctx.http`: a 429 closes the limit for everybody."""
        assert self.ticket is not None
        await self._calls.hear(self.ticket, rate_limit_headers.parse_rate_limits(status, headers.items(), body))


def nothing(lines: Any) -> dict[str, int]:
    return {charge.name: 0 for charge, _ in lines}


def charge_amount(charge: Charge, amounts: Mapping[str, int]) -> int:
    if charge.budget not in amounts:
        # For nothing it would go on for ever.
        raise UsageError(f"the job was submitted with budget {charge.name}, of which its code says nothing any more")
    return amounts[charge.budget]
