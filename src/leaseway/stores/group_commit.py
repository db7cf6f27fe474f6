"""Group commit: calls that arrive while their event loop writes a transaction share the next one.

A transaction costs several round trips and a flush of the journal, however many calls it contains. The transactions of
one process would also conflict with each other where they change the same documents, and MongoDB aborts the later one
instead of letting it wait. A call that finds nothing under way is served at once. Otherwise it queues; when the
transaction under way ends, the first call in the queue serves the whole queue. Each call has its own answer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from leaseway.domain.errors import LeasewayError, UnknownOutcome

BATCH_MAX = 100

C = TypeVar("C")
A = TypeVar("A")

Serve = Callable[[Sequence[C]], Awaitable[Sequence[A | Exception]]]
"""Returns the answers in the order of the calls. An exception that it raises is the answer of all of them."""


class GroupCommit(Generic[C, A]):
    """The queues of all event loops."""

    def __init__(self, serve: Serve[C, A]) -> None:
        self._serve = serve
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, CallQueue[C, A]] = WeakKeyDictionary()

    async def call(self, call: C) -> A:
        loop = asyncio.get_running_loop()
        queue = self._loops.get(loop)
        if queue is None:
            queue = self._loops[loop] = CallQueue(self._serve)
        return await queue.call(call)


class ServingTurn(NamedTuple, Generic[C, A]):
    """This caller serves the queue now: these calls as well as its own."""

    others: "list[QueuedCall[C, A]]"


class CallAnswer(NamedTuple, Generic[A]):
    value: A


class QueuedCall(NamedTuple, Generic[C, A]):
    call: C
    end: "asyncio.Future[ServingTurn[C, A] | CallAnswer[A]]"


class CallQueue(Generic[C, A]):
    """The calls of one event loop."""

    def __init__(self, serve: Serve[C, A]) -> None:
        self._serve = serve
        self._is_busy = False
        self._queue: deque[QueuedCall[C, A]] = deque()

    async def call(self, call: C) -> A:
        others: list[QueuedCall[C, A]] = []
        if self._is_busy:
            end = await self._wait(call)
            if not isinstance(end, ServingTurn):
                return end.value
            others = end.others
        self._is_busy = True
        try:
            own, *answers = await self._serve([call, *(each.call for each in others)])
            for each, answer in zip(others, answers, strict=True):
                resolve(each, answer)
        except BaseException as error:
            for each in others:
                resolve(each, copy_error(error))
            raise
        finally:
            self._start_next()
        if isinstance(own, Exception):
            raise own
        return own

    async def _wait(self, call: C) -> ServingTurn[C, A] | CallAnswer[A]:
        queued = QueuedCall[C, A](call, asyncio.get_running_loop().create_future())
        self._queue.append(queued)
        try:
            return await queued.end
        except asyncio.CancelledError:
            # A cancelled caller's call is not served. If its turn came at the same moment, pass the turn on.
            end = queued.end
            if not end.cancelled() and end.exception() is None and isinstance(turn := end.result(), ServingTurn):
                self._queue.extendleft(reversed(turn.others))
                self._start_next()
            raise

    def _start_next(self) -> None:
        waiting = [each for each in self._queue if not each.end.done()]
        self._queue = deque(waiting[BATCH_MAX:])
        self._is_busy = bool(waiting)
        if waiting:
            waiting[0].end.set_result(ServingTurn(waiting[1:BATCH_MAX]))


def resolve(queued: QueuedCall[C, A], answer: A | Exception) -> None:
    if queued.end.done():
        return  # its caller was cancelled; the call may have had its effect
    if isinstance(answer, Exception):
        queued.end.set_exception(answer)
    else:
        queued.end.set_result(CallAnswer(answer))


def copy_error(error: BaseException) -> Exception:
    """One exception object per caller: raising an exception changes its traceback and context."""
    if isinstance(error, LeasewayError):
        try:
            return copy(error)
        except TypeError:  # its constructor takes more than the message
            pass
    return UnknownOutcome("the caller that served this call together with others was cancelled; it may be repeated")
