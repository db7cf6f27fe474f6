"""exchange ─► admit ─► [run handler: call the provider] ─► settle

One call to a provider: a permit of each of the job's limits, then a hold on each of its budgets, then the request, all
while the permit is valid. If the ledger is so slow that a permit could expire meanwhile, the hold comes first.
Afterwards the hold is settled with the actual cost, or in full if the handler does not say; and what the provider
reports about its limits goes to the whole fleet.

If a limit or a budget asks for a long wait, or if the limiter or the ledger cannot be reached for that long, the
attempt ends and the job waits in its lane. That restarts the handler, so it happens only before the first call: a job
that has called since its last checkpoint waits in place, with its lease renewed, its timeout stopped and its slot lent
to other jobs. No call is repeated because of a limit. Costs that could not be booked are booked later.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from leaseway.domain.budgets.budget import HoldBooked, HoldDenied, HoldGranted, HoldUsed
from leaseway.domain.errors import LeaseLost, TransientError
from leaseway.domain.ids import SECOND_US
from leaseway.domain.limits.rate_limit_headers import NO_REPLY, RateLimitStatus
from leaseway.domain.limits.sliding_log import NOTHING_USED
from leaseway.domain.outcome import Deferred
from leaseway.domain.requirements import Requirements
from leaseway.ports.ledger import HoldRequest, SettleHoldRequest
from leaseway.ports.provider_requests import Delivery, RequestGrant
from leaseway.worker.calls.call_needs import CallNeeds, CallOptions, call_needs, denial, job_needs, with_estimates
from leaseway.worker.calls.grant import CallGrant, enclosing_call, settle_amounts
from leaseway.worker.calls.in_place import InPlace, Refusal, wait_seconds
from leaseway.worker.calls.key_pool import KeyChoice
from leaseway.worker.environment import Environment, pause, retry_delay_seconds
from leaseway.worker.ledger_client import HoldIds, JobHold, UnsettledHolds, emit_crossed, no_cost
from leaseway.worker.limiter_client import LimiterClient
from leaseway.worker.permit_queue import NO_PERMIT, Permit
from leaseway.worker.settle import Attempt, Stop

MARGIN_SECONDS = 15.0
"""How long after the deadline of its call a hold that is not settled is captured."""
JOB_HOLD_SECONDS = 3_600.0
"""After this time, or the timeout of the job, a hold for a whole job is captured. It is corrected when the job ends."""
LEDGER_SECONDS_MAX = 10.0
"""How long a handler waits for a ledger that cannot be reached."""
SETTLE_TRIES_MAX = 2
"""A handler settles its hold this many times; if the ledger cannot be reached, the worker goes on."""


class ProviderCalls:
    """The calls of one attempt. It admits the requests of `ctx.http`, too."""

    def __init__(
        self,
        attempt: Attempt,
        requirements: Requirements,
        arguments: Mapping[str, Any],
        limiter: LimiterClient,
        environment: Environment,
        unsettled: UnsettledHolds,
    ) -> None:
        self._attempt = attempt
        self._requirements, self._arguments = requirements, arguments
        self._needs = job_needs(requirements, arguments, attempt.lease)
        self._limiter = limiter
        self._environment = environment
        self._unsettled = unsettled
        self._owner = str(attempt.lease.fence)
        self.keys = KeyChoice(self.needs_with, limiter, environment)
        self._made_ids: HoldIds | None = None
        self._job_hold = JobHold() if requirements.holds_per_job else None
        self.open_grants: list[CallGrant] = []
        """Of calls inside `async with ctx.call()`."""

    # Calls without limits and budgets need neither of these.

    @property
    def _place(self) -> InPlace:
        return InPlace(self._attempt, self._environment.clock, self._limiter, self._unsettled)

    @property
    def _ids(self) -> HoldIds:
        if self._made_ids is None:
            self._made_ids = HoldIds(self._attempt.lease)
        return self._made_ids

    def _take_booked(self) -> str | None:
        return None if self._made_ids is None else self._made_ids.take_booked()

    # -- for ctx.http -----------------------------------------------------------------------------------------------

    async def before(self, seconds: float) -> "CallGrant":
        """A request inside `async with ctx.call()` belongs to that call; every other request is a call of its own."""
        if not self.open_grants and not self._needs.is_metered:
            return self._open_unmetered(seconds, self._needs, is_sent=True)
        self._attempt.refuse_if_ended("http")
        grant = enclosing_call(self.open_grants)
        if grant is not None and not grant.is_sent:
            with self._attempt.waiting():
                await self.refresh(grant)
        else:  # a second request of a call is one more call, under the same limits
            grant = await self.open(seconds, None if grant is None else grant.needs)
        grant.is_sent = True
        return grant

    async def after(self, request_grant: RequestGrant, status: RateLimitStatus | None, delivery: Delivery) -> None:
        grant = cast(CallGrant, request_grant)
        if status is None and delivery is Delivery.UNKNOWN and self._attempt.is_out_of_time:
            status = NO_REPLY
        if status is not None:
            await self.notify(grant, status)
        if delivery is Delivery.NOT_SENT:
            self._attempt.uncount_call(grant.take_number())
        if self.open_grants and grant in self.open_grants:
            grant.is_sent = delivery is not Delivery.NOT_SENT
        else:
            grant.is_free |= delivery is Delivery.NOT_SENT
            await self.close(grant, is_cut_off=delivery is Delivery.UNKNOWN)

    def settle(self, request_grant: RequestGrant, amounts: Mapping[str, Any]) -> None:
        """What a call cost and used, by unit."""
        grant = cast(CallGrant, request_grant)
        grant.refuse_settled()
        grant.settle(settle_amounts(amounts, grant.needs.units, self._limiter.metered.units(grant.needs.limits)))

    # -- one call ---------------------------------------------------------------------------------------------------

    def needs_with(self, options: CallOptions) -> CallNeeds:
        """What a call with these options needs."""
        return call_needs(self._needs, self._requirements, self._arguments, self._attempt.lease.tenant, options)

    async def open(self, seconds: float, needs: CallNeeds | None = None) -> "CallGrant":
        """Wait for the permit and the hold of one call, which takes at most these seconds. The request must be sent at
        once."""
        needs = self._needs if needs is None else needs
        if not needs.is_metered:
            return self._open_unmetered(seconds, needs)
        with self._attempt.waiting():
            try:
                grant = await self._open_or_wait(seconds, needs)
            except asyncio.CancelledError:
                self._release_booked()
                raise
        grant.number = self._attempt.count_call()
        return grant

    async def _open_or_wait(self, seconds: float, needs: CallNeeds) -> "CallGrant":
        while True:  # until the call may be made, or the job is stopped
            seen = self._place.changes()
            try:
                return await self._open(seconds, needs)
            except Deferred as deferred:
                seconds_left = wait_seconds(deferred, self._environment.clock.wall_us())
                if not await self.wait_in_place(str(deferred), seconds_left, by_limit=deferred.by_limit, seen=seen):
                    raise

    def _open_unmetered(self, seconds: float, needs: CallNeeds, *, is_sent: bool = False) -> "CallGrant":
        """A call without limits and budgets waits for nothing."""
        self._attempt.refuse_if_ended("http" if is_sent else "call")
        now = self._environment.clock.monotonic()
        self._refuse_if_lost(now)
        grant = CallGrant(self._may_send, needs, NO_PERMIT, None)
        grant.is_sent, grant.seconds, grant.until = is_sent, seconds, now + seconds
        grant.number = self._attempt.count_call()
        return grant

    def _release_booked(self) -> None:
        """A call is given up, because the job was cancelled or its handler does not wait any longer. Otherwise the next
        delivery of the job takes the hold over."""
        if self._attempt.stop in (None, Stop.CANCELLED):
            self._not_sent(self._take_booked(), self._needs)

    async def wait_in_place(self, why: str, seconds: float, *, by_limit: bool, seen: int | None = None) -> bool:
        """`seen`: the changes of definitions that were known when the call was refused; further ones end the wait."""
        if not self._attempt.calls or not self._attempt.enter_place():
            return False
        enclosing = enclosing_call(self.open_grants)
        limits = (self._needs if enclosing is None else enclosing.needs).limits if by_limit else None
        return await self._place.wait(Refusal(why, seconds, limits, seen))

    async def _open(self, seconds: float, needs: CallNeeds) -> "CallGrant":
        self._attempt.refuse_if_ended("call")
        needs = with_estimates(needs, partial(self._limiter.metered.learnt.estimate, self._attempt.lease.kind))
        is_hold_first = self._outlasts_permits(needs)
        permit = NO_PERMIT if is_hold_first else await self._permit(seconds, needs)
        try:
            hold = await self._hold_for_call(seconds, needs) if needs.lines else None
        except BaseException:
            # The job keeps its place under the tenant's concurrency limit until it ends.
            await self._limiter.give_back(permit.without(self._attempt.tenant_permit).granted, 1)
            raise
        grant = CallGrant(self._may_send, needs, permit, hold)
        grant.seconds = seconds
        try:
            if is_hold_first:
                grant.permit = await self._permit(seconds, needs)
            await self.refresh(grant)
        except BaseException:
            grant.is_free = True
            await self.close(grant)
            raise
        grant.until = self._environment.clock.monotonic() + seconds
        return grant

    def _outlasts_permits(self, needs: CallNeeds) -> bool:
        """Whether a permit could expire while the ledger places a hold. Every call would waste a permit, and if the
        next one is far away, no call would ever be made. Otherwise the hold comes last, because it keeps money from
        other jobs."""
        if not needs.lines:
            return False
        return 2 * self._unsettled.hold_seconds >= self._limiter.permit_seconds(needs.limits)

    async def refresh(self, grant: "CallGrant") -> None:
        """Return when the request may be sent at once. An expired permit counts as used; take another one."""
        while True:  # until a permit is valid; `take` bounds the wait
            self._attempt.refuse_if_ended("call")
            self._refuse_if_lost(self._environment.clock.monotonic())
            if not grant.needs.limits or grant.is_valid():
                return
            await self._end_calls(grant.permit, grant.needs)
            grant.permit = NO_PERMIT
            grant.permit = await self._limiter.take(grant.needs.limits, call_seconds=grant.seconds)

    def _may_send(self, permit: Permit) -> bool:
        attempt = self._attempt
        may_send = not attempt.has_ended and not attempt.is_lost(self._environment.clock.monotonic())
        return may_send and (permit is NO_PERMIT or self._limiter.is_valid(permit))

    def _refuse_if_lost(self, now: float) -> None:
        if self._attempt.is_lost(now):
            raise LeaseLost(f"job {self._attempt.lease.id}: the lease is lost; the request was not sent")

    async def close(self, grant: "CallGrant", *, is_cut_off: bool = False) -> None:
        """The call is over. Its cost is booked even if the lease of the job is lost, because the money is spent.
        `is_cut_off`: no reply was received, so the provider may still be working on it."""
        was_closed, grant.is_closed = grant.is_closed, True
        if was_closed or not grant.needs.is_metered:
            return
        actuals, used, needs = grant.actuals, grant.used, grant.needs
        if needs.stated and used is not None:
            self._limiter.metered.learnt.note_all(self._attempt.lease.kind, needs.learnt, used)
        if grant.is_free and not grant.is_settled:
            actuals, used = no_cost(needs.lines), NOTHING_USED
        try:
            if is_cut_off:
                seconds = grant.until - self._environment.clock.monotonic()
                self._limiter.end_calls_later(needs.own(grant.permit.granted.asks), seconds, used)
            else:
                await self._limiter.end_calls(needs.own(grant.permit.granted.asks), used=used)
        finally:
            if self._job_hold is not None and needs.has_job_lines:
                self._job_hold.end_call(needs.budgets, actuals)
            elif grant.hold is not None:
                await self._settle(grant.hold, actuals)

    def finish(self, *, keeps_booked: bool) -> None:
        """The attempt is over: settle the hold of the whole job, and release what is booked, unless the job waits."""
        while not keeps_booked and (booked := self._take_booked()) is not None:
            self._not_sent(booked, self._needs)
        if (hold := self._job_hold) is not None and hold.id is not None:
            self._unsettled.add(hold.id, self._owner, hold.costs())

    async def _settle(self, hold: str, actuals: Mapping[str, int]) -> None:
        try:
            await self._settle_with_retries(hold, actuals)
        except asyncio.CancelledError:
            # The ledger may have received it. Settling twice books once.
            self._unsettled.add(hold, self._owner, actuals)
            raise

    async def _settle_with_retries(self, hold: str, actuals: Mapping[str, int]) -> None:
        for failures in range(1, SETTLE_TRIES_MAX + 1):
            try:
                crossed = await self._unsettled.ledger.settle(SettleHoldRequest(hold, dict(actuals), self._owner))
                return emit_crossed(self._environment, crossed)
            except TransientError:
                if failures < SETTLE_TRIES_MAX:
                    await pause(self._environment, failures)
        self._unsettled.add(hold, self._owner, actuals)

    async def notify(self, grant: "CallGrant", status: RateLimitStatus) -> None:
        if status.is_unauthorized and grant.needs.key is not None:
            grant.is_key_refused, status = True, grant.needs.key.leave(self._environment)
        grant.is_free, grant.is_reported = status.throttled, True
        if status.throttled:
            self._attempt.uncount_call(grant.take_number())
        if grant.permit is not NO_PERMIT:
            await self._limiter.notify(grant.permit, grant.needs.limits, status)

    async def report_end(self, grant: "CallGrant", error: BaseException | None) -> None:
        """How a call of another client than `ctx.http` has ended."""
        if (status := grant.status_at_end(error, is_out_of_time=self._attempt.is_out_of_time)) is not None:
            await self.notify(grant, status)

    # -- permits ----------------------------------------------------------------------------------------------------

    async def _end_calls(self, permit: Permit, needs: CallNeeds) -> None:
        """Free the places under the limits of a call; nothing was sent. The place under the tenant's limit belongs to
        the job."""
        await self._limiter.end_calls(needs.own(permit.granted.asks), used=NOTHING_USED)

    async def _permit(self, seconds: float, needs: CallNeeds) -> Permit:
        """The permit that admitted the job, if this is its first call and the permit is still valid."""
        if not needs.has_job_limits:
            await self._limiter.declare_new(needs.new_limits)
            return await self._limiter.take(needs.limits, call_seconds=seconds) if needs.limits else NO_PERMIT
        admitted, self._attempt.permit = self._attempt.permit, None
        if admitted is not None:
            if self._limiter.is_valid(admitted) and set(needs.limits) <= set(admitted.granted.asks):
                return admitted
            # The permit counts as used, but it gives up its places.
            await self._end_calls(admitted, needs)
        if not needs.limits:
            return NO_PERMIT
        return await self._limiter.take(needs.limits, call_seconds=seconds)

    # -- holds ------------------------------------------------------------------------------------------------------

    async def _hold_for_call(self, seconds: float, needs: CallNeeds) -> str:
        if self._job_hold is None or not needs.has_job_lines:
            return await self._hold(seconds, needs)
        async with self._job_hold.lock:  # of several first calls at once, one places the hold
            if self._job_hold.id is None:
                self._job_hold.id = await self._hold(JOB_HOLD_SECONDS, needs)
            self._job_hold.calls += 1
            return self._job_hold.id

    async def _hold(self, seconds: float, needs: CallNeeds) -> str:
        begun = self._environment.clock.monotonic()
        try:
            return await self._place_hold(seconds, needs)
        finally:
            self._unsettled.hold_seconds = self._environment.clock.monotonic() - begun

    async def _place_hold(self, seconds: float, needs: CallNeeds) -> str:
        """Reserve the highest cost of the call, and record that the call is dispatched."""
        failures, ttl_us = 0, self._ttl_us(seconds)
        until = self._environment.clock.monotonic() + LEDGER_SECONDS_MAX
        id_ = None
        while True:  # `_wait_for_ledger` bounds the time, and `HoldIds` the number of ids
            try:
                await self._unsettled.ledger.declare(needs.new_budgets)
                id_ = id_ or await self._take_id(needs)
                answer = await self._unsettled.ledger.hold(HoldRequest(id_, needs.lines, ttl_us, self._owner, True))
            except TransientError as error:  # the id makes it safe to repeat
                failures += 1
                await self._wait_for_ledger(id_, needs, failures, until, error)
                continue
            except asyncio.CancelledError:
                self._not_sent(id_, needs)
                raise
            match answer:
                case HoldGranted():
                    emit_crossed(self._environment, answer.crossed)
                    return id_
                case HoldUsed():  # by an earlier delivery, which had reserved it
                    id_ = None
                case HoldBooked(until=until, budget=budget):
                    self._keep_booked(id_, needs)
                    if self._attempt.has_ended:  # in a task that the handler did not wait for
                        self.finish(keeps_booked=False)
                    raise Deferred(f"budget {budget}: used up until its next window", run_at=until)
                case HoldDenied():
                    if needs.has_job_lines:
                        self._ids.put_back(id_)
                    raise denial(answer, needs)

    async def _take_id(self, needs: CallNeeds) -> str:
        return await self._ids.take(self._environment.ledger.reads) if needs.has_job_lines else self._ids.take_own()

    def _keep_booked(self, id_: str, needs: CallNeeds) -> None:
        """A later call takes the hold over, if it costs the same."""
        if needs.has_job_lines:
            self._ids.put_back(id_, is_booked=True)
        else:
            self._not_sent(id_, needs)

    def _ttl_us(self, seconds: float) -> int:
        """A call ends with its attempt at the latest."""
        timeout_us, wanted_us = self._attempt.lease.timeout_us, int(seconds * SECOND_US)
        return min(wanted_us, timeout_us or wanted_us) + int(MARGIN_SECONDS * SECOND_US)

    def _not_sent(self, hold: str | None, needs: CallNeeds) -> None:
        """The hold may exist, because its reply may be lost, and no call is made under it. Its id is not used again: a
        settlement that is on its way would free the hold of another call."""
        if hold is not None:
            self._unsettled.add(hold, self._owner, no_cost(needs.lines))

    async def _wait_for_ledger(
        self, hold: str | None, needs: CallNeeds, failures: int, until: float, error: TransientError
    ) -> None:
        """A handler that waits keeps its slot, which other jobs could use. After a while the job goes back to its
        lane."""
        if failures == 1:
            self._environment.events.emit("ledger_unavailable", job=self._attempt.lease.id, error=error)
        left = until - self._environment.clock.monotonic()
        seconds = retry_delay_seconds(failures, self._environment.chance.random())
        if left <= 0:
            self._not_sent(hold, needs)
            raise Deferred("the ledger cannot be reached", delay_us=int(seconds * SECOND_US))
        await self._environment.clock.sleep(min(seconds, left))
