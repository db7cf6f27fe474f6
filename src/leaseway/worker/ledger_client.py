"""admit ─► [hold] ─► run handler: call the provider ─► [settle the hold]: what a worker tells the ledger.

LedgerClient     holds and settlements of all calls of a worker, several in one transaction
UnsettledHolds   settlements that the ledger has not acknowledged
JobHold          what the calls of an attempt cost, if one hold pays for all of them
HoldIds          the ids of the holds of one delivery
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from leaseway.domain.budgets.budget import BudgetDefinition, Crossed, HoldAnswer
from leaseway.domain.budgets.holds import Lines
from leaseway.domain.budgets.rebooking import hold_id, hold_prefix
from leaseway.domain.errors import LeasewayError, TransientError, UnknownOutcome, UsageError
from leaseway.domain.job import Lease
from leaseway.ports.ledger import POST_MAX, BudgetReads, HoldRequest, Ledger, SettleHoldRequest
from leaseway.ports.telemetry import Events
from leaseway.worker.definitions import DefinitionWatch
from leaseway.worker.environment import Environment, pause

UNSETTLED_MAX = 10_000
CALLS_MAX = 1_000_000
"""In one attempt. The numbers after it are of holds with charges of their own."""


class PendingOrder(NamedTuple):
    request: HoldRequest | SettleHoldRequest
    answer: asyncio.Future[Any]


class LedgerClient:
    """Holds and settles for all calls of a worker.

    Each of them is a durable change of the same few balances, which one transaction can make for many calls at once.
    While a transaction is under way, further requests wait, and the next transaction takes all of them. A request that
    finds none under way is sent at once, so that batching never delays a single call. Each caller is answered for
    itself; what a batch cannot answer is repeated by itself.
    """

    def __init__(self, ledger: Ledger, events: Events) -> None:
        self._ledger = ledger
        self._events = events
        self._declared: dict[str, BudgetDefinition] = {}
        self._waiting: list[PendingOrder] = []
        self._sending: asyncio.Task[None] | None = None

    async def declare(self, definitions: Sequence[BudgetDefinition]) -> None:
        """Store budgets that only single calls name, each once."""
        new = [each for each in definitions if self._declared.get(each.name) != each]
        if new:
            await self._ledger.definitions.declare(new)
            self._declared.update({each.name: each for each in new})

    async def hold(self, request: HoldRequest) -> HoldAnswer:
        answer: HoldAnswer | None = await self._post(request)
        if answer is not None:
            return answer
        return await self._ledger.hold(
            request.id, request.lines, request.ttl_us, owner=request.owner, dispatch=request.dispatch
        )

    async def settle(self, request: SettleHoldRequest) -> Crossed:
        crossed: Crossed | None = await self._post(request)
        if crossed is not None:
            return crossed
        return await self._ledger.settle(request.id, request.actuals, owner=request.owner)

    async def _post(self, request: HoldRequest | SettleHoldRequest) -> Any:
        loop = asyncio.get_running_loop()
        order = PendingOrder(request, loop.create_future())
        self._waiting.append(order)
        if self._sending is None:
            # A task of its own: a caller that is cancelled must not take the requests of the others with it.
            self._sending = loop.create_task(self._send_all())
        try:
            return await order.answer
        except asyncio.CancelledError:
            if order in self._waiting:
                self._waiting.remove(order)  # it is not placed later, when no call would settle it
            raise

    async def _send_all(self) -> None:
        try:
            while self._waiting:  # each turn takes all that wait
                batch, self._waiting = self._waiting[:POST_MAX], self._waiting[POST_MAX:]
                answer(batch, await self._answers([order.request for order in batch]))
        except asyncio.CancelledError:
            left, self._waiting = [*batch, *self._waiting], []
            answer(left, itertools.repeat(UnknownOutcome("the worker was stopped")))
            raise
        finally:
            self._sending = None

    async def _answers(self, requests: Sequence[HoldRequest | SettleHoldRequest]) -> Iterable[Any]:
        holds = [each for each in requests if isinstance(each, HoldRequest)]
        settlements = [each for each in requests if isinstance(each, SettleHoldRequest)]
        try:
            posted = await self._ledger.post(holds, settlements)
        except TransientError as error:
            return itertools.repeat(error)
        except LeasewayError as error:  # each request finds out by itself whether it is the wrong one
            self._events.emit("ledger_batch_failed", error=error)
            return itertools.repeat(None)
        except Exception as error:  # noqa: BLE001 - a defect; the callers must not wait forever
            return itertools.repeat(error)
        held, settled = iter(posted.holds), iter(posted.settlements)
        return [next(held if isinstance(each, HoldRequest) else settled) for each in requests]

    async def close(self) -> None:
        """The worker stops: no call waits for an answer any more."""
        if (sending := self._sending) is not None:
            sending.cancel()
            await asyncio.wait([sending])


def answer(batch: Iterable[PendingOrder], answers: Iterable[Any]) -> None:
    for order, each in zip(batch, answers, strict=False):
        if order.answer.done():  # its caller was cancelled
            continue
        if isinstance(each, Exception):
            order.answer.set_exception(each)
        else:
            order.answer.set_result(each)


class UnsettledHolds:
    """Settlements that the ledger has not acknowledged. The worker repeats them beside the jobs, so that no handler
    waits for a ledger that cannot be reached, and an outage strands no money. A settlement that is repeated books once.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.ledger = LedgerClient(environment.ledger, environment.events)
        self.watch = DefinitionWatch(environment.ledger.definitions, environment.clock)
        self._settlements: dict[str, tuple[str, Mapping[str, int]]] = {}
        """By hold: its owner and what the call cost."""
        self._wanted = asyncio.Event()
        self.hold_seconds = 0.0
        """How long the ledger took for the last hold of this worker."""

    def __len__(self) -> int:
        return len(self._settlements)

    def add(self, hold: str, owner: str, actuals: Mapping[str, int]) -> None:
        if len(self._settlements) >= UNSETTLED_MAX:
            self._give_up(next(iter(self._settlements)))
        self._settlements[hold] = (owner, actuals)
        self._wanted.set()

    async def run(self) -> None:
        failures = 0
        while True:  # until it is cancelled
            await self._wanted.wait()
            failures = 0 if await self._settle_all() else failures + 1
            if failures:
                await pause(self._environment, failures)

    async def leave(self, seconds: float) -> None:
        """The worker stops: try everything once more. Holds that are left are captured in full at their deadline: too
        much rather than too little."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settle_all()
        for hold in list(self._settlements):
            self._give_up(hold)
        await self.ledger.close()

    async def _settle_all(self) -> bool:
        """False: the ledger cannot be reached."""
        for hold, (owner, actuals) in list(self._settlements.items()):
            try:
                crossed = await self.ledger.settle(SettleHoldRequest(hold, dict(actuals), owner))
                emit_crossed(self._environment, crossed)
            except TransientError as error:
                self._environment.events.emit("ledger_unavailable", unsettled=len(self), error=error)
                return False
            except LeasewayError:
                pass  # the hold was never placed
            self._settlements.pop(hold, None)
        if not self._settlements:
            self._wanted.clear()
        return True

    def _give_up(self, hold: str) -> None:
        del self._settlements[hold]
        self._environment.events.emit("hold_unsettled", hold=hold)


class JobHold:
    """One hold for all calls of an attempt, and what they have cost."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.lock = asyncio.Lock()
        self.calls = 0
        """Calls that have not ended."""
        self._spent: Counter[str] = Counter()
        self._unknown: set[str] = set()

    def end_call(self, budgets: Sequence[str], actuals: Mapping[str, int]) -> None:
        self.calls -= 1
        self._spent.update(actuals)
        self._unknown |= set(budgets) - actuals.keys()

    def costs(self) -> dict[str, int]:
        """What to settle. Every budget is charged in full if a call is still under way, and a budget if a call did not
        say what it cost."""
        return {} if self.calls else {name: cost for name, cost in self._spent.items() if name not in self._unknown}


def no_cost(lines: Lines) -> dict[str, int]:
    return {charge.name: 0 for charge, _ in lines}


def emit_crossed(environment: Environment, crossed: Crossed) -> None:
    for budget, percent in crossed:
        environment.events.emit("budget_reached", budget=budget, percent=percent)


class HoldIds:
    """The ids of the holds of one delivery. Each call has its own, also if several are made at once.

    An id contains the fence, so no delivery meets the ids of earlier ones. Only what an earlier delivery has reserved
    and not used is taken over: a job that waits for a later window of its budget reserves there, and ends its attempt.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._number = self._own_number = 0
        self._free: list[str] | None = None if lease.fence > 1 else []
        """Reserved or denied before; None: the ledger was not asked yet."""
        self._booked: set[str] = set()
        """Those of them that wait for a later window."""

    async def take(self, ledger: BudgetReads) -> str:
        if self._free is None:
            reserved = await ledger.reserved(hold_prefix(self._lease.tenant, self._lease.id))
            # Another call of this handler may have asked meanwhile.
            self._free = list(filter(has_job_lines, reserved)) if self._free is None else self._free
        if self._free:
            id_ = self._free.pop(0)
            self._booked.discard(id_)
            return id_
        if self._number == CALLS_MAX:
            raise UsageError(f"job {self._lease.id}: more than {CALLS_MAX:,} calls in one attempt")
        self._number += 1
        return hold_id(self._lease.tenant, self._lease.id, self._lease.fence, self._number)

    def take_own(self) -> str:
        """For a call with charges of its own. No other call and no other delivery takes the id over."""
        self._own_number += 1
        return hold_id(self._lease.tenant, self._lease.id, self._lease.fence, CALLS_MAX + self._own_number)

    def put_back(self, id_: str, *, is_booked: bool = False) -> None:
        """The hold was denied or booked for later. The next call asks again under this id, so that it is reserved only
        once."""
        self._free = [*(self._free or ()), id_]
        if is_booked:
            self._booked.add(id_)

    def take_booked(self) -> str | None:
        """A hold that waits for a later window, whichever: all calls of a job cost the same."""
        if not self._booked:
            return None
        id_ = self._booked.pop()
        self._free = [each for each in self._free or () if each != id_]
        return id_


def has_job_lines(id_: str) -> bool:
    number = id_.rpartition(":")[2]
    return not number.isdecimal() or int(number) <= CALLS_MAX
