"""exchange ─► admit ─► [run handler: call the provider] ─► settle: what one call holds while it is in flight."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from leaseway.domain.errors import UsageError
from leaseway.domain.limits.rate_limit_headers import NO_REPLY, NOTHING_REPORTED, RateLimitStatus
from leaseway.worker.calls.call_needs import CallNeeds
from leaseway.worker.calls.settlement import Settled
from leaseway.worker.permit_queue import Permit


class CallGrant:
    """What one call holds while it is in flight: its permit and its hold."""

    __slots__ = (
        "_may_send", "actuals", "hold", "is_closed", "is_free", "is_key_refused", "is_reported", "is_sent",
        "is_settled", "needs", "number", "permit", "seconds", "until", "used",
    )  # fmt: skip

    def __init__(self, may_send: Callable[[Permit], bool], needs: CallNeeds, permit: Permit, hold: str | None) -> None:
        self.until = float("-inf")
        """When the call ends at the latest, on the worker's clock."""
        self._may_send = may_send
        self.needs = needs
        self.permit = permit
        self.hold = hold
        self.is_sent = False
        self.is_closed = False
        self.is_free = False
        """Nothing was sent, or the provider has throttled the call. It costs nothing, unless the handler says
        otherwise."""
        self.is_reported = False
        """The limiter was told how the call has ended."""
        self.is_key_refused = False
        """The key of a pool with which the call was made is not valid."""
        self.is_settled = False
        self.actuals: Mapping[str, int] = {}
        """What the call cost, by budget, if the handler says so."""
        self.used: Mapping[str, int] | None = None
        """What the call used of limits that are settled, by name, if the handler says so."""
        self.seconds = 0.0
        """How long the call may take."""
        self.number = 0
        """Of the call, in its attempt."""

    def take_number(self) -> int:
        """The number of the call, once."""
        number, self.number = self.number, 0
        return number

    def settle(self, settled: Settled) -> None:
        self.is_settled, self.actuals, self.used = True, settled.costs, settled.used

    def refuse_settled(self) -> None:
        if self.is_closed:
            raise UsageError("call.settle: the call has ended; settle it inside `with ctx.call()`")
        if self.is_settled:
            raise UsageError("call.settle: the call is settled already; settle it once, with all units together")

    def status_at_end(self, error: BaseException | None, *, is_out_of_time: bool) -> RateLimitStatus | None:
        """What the end of a call of another client than `ctx.http` says about its provider, unless the handler has
        reported it. Other errors may be those of the handler."""
        if self.is_reported or self.is_sent or not self.permit.granted.circuits:
            return None
        if is_out_of_time or isinstance(error, TimeoutError | ConnectionError):
            return NO_REPLY
        return NOTHING_REPORTED if error is None else None

    def is_valid(self) -> bool:
        """Whether the request may still be sent: its permit is valid, and the job's lease is not lost."""
        return self._may_send(self.permit)


CURRENT_CALL: ContextVar[CallGrant | None] = ContextVar("leaseway_call", default=None)
"""The block of `ctx.call()` that surrounds what runs now. Calls to two providers may be in flight at once."""


def enclosing_call(open_grants: Sequence[CallGrant]) -> CallGrant | None:
    """The call that a request belongs to. A thread that the handler starts by itself does not know its block, which
    matters only if the call has limits or budgets of its own."""
    current = CURRENT_CALL.get()
    if current in open_grants:
        return current
    return next((each for each in reversed(open_grants) if not each.is_sent and each.needs.is_of_job), None)
