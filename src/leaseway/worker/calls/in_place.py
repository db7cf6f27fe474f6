"""exchange ─► admit ─► [run handler: wait for a limit or a budget] ─► settle: a job that waits in its worker.

The lease is renewed meanwhile, the timeout of the job is stopped, and its slot is lent to other jobs.
"""

from typing import TYPE_CHECKING, NamedTuple

from leaseway.domain.ids import SECOND_US
from leaseway.domain.outcome import Deferred
from leaseway.ports.clock import Clock
from leaseway.worker.environment import housekeeping
from leaseway.worker.permit_queue import PermitRequests
from leaseway.worker.settle import Attempt

if TYPE_CHECKING:
    from leaseway.worker.ledger_client import UnsettledHolds
    from leaseway.worker.limiter_client import LimiterClient

RECHECK_SECONDS = 60.0
"""A job that waits in place asks again after this time: other calls may have cost less than was held for them. If its
limit or budget is changed, it asks at once."""
WAIT_SECONDS_MIN = 1.0
STOP_CHECK_SECONDS = 1.0
"""How soon a job that waits in place in a thread notices that it is to stop."""


class Refusal(NamedTuple):
    """Why a call may not be made yet."""

    why: str
    seconds: float
    limits: PermitRequests | None
    """None: a budget refused it."""
    seen: int | None = None
    """The changes of definitions that were known when the call was refused; further ones end the wait."""


class InPlace(NamedTuple):
    attempt: Attempt
    clock: Clock
    limiter: "LimiterClient"
    unsettled: "UnsettledHolds"

    def changes(self) -> int:
        """How often definitions of limits and budgets were seen to change."""
        return self.limiter.watch.changes + self.unsettled.watch.changes

    async def wait(self, refusal: Refusal) -> bool:
        """Whether the call may be tried again. False: the job is to stop."""
        attempt, clock = self.attempt, self.clock
        until = clock.monotonic() + min(refusal.seconds, RECHECK_SECONDS)
        places = self.limiter.waiting_in_place(refusal.limits or ())
        with attempt.waiting(), attempt.waiting_in_place(refusal.why), places, housekeeping():
            attempt.waits_until = clock.monotonic() + refusal.seconds
            while attempt.stop is None and ((left := until - clock.monotonic()) > 0 or not attempt.may_leave_place()):
                await clock.sleep(min(left, STOP_CHECK_SECONDS) if left > 0 else STOP_CHECK_SECONDS / 4)
                if left > 0 and await self._has_changed(refusal):
                    until = clock.monotonic()
        return attempt.stop is None

    async def _has_changed(self, refusal: Refusal) -> bool:
        """Whether a limit or a budget was changed, so that the call may be granted now."""
        if refusal.seen is None:
            return False
        await (self.unsettled.watch if refusal.limits is None else self.limiter.watch).look()
        if self.changes() == refusal.seen:
            return False
        self.limiter.forget_definitions()
        return True


def wait_seconds(deferred: Deferred, wall_us: int) -> float:
    """The clocks of worker and store may differ, which changes only when the job asks again."""
    wait_us = deferred.delay_us if deferred.run_at is None else deferred.run_at - wall_us
    return max(wait_us / SECOND_US, WAIT_SECONDS_MIN)
