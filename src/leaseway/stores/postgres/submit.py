"""Group commit for single-job submissions.

A commit costs one disk flush however many jobs it contains. While
WRITERS_MAX writers of an event loop are busy with a lane, further submissions to that lane queue up; when a writer
finishes, the first one in the queue writes the whole queue in one transaction. A submission that finds a free writer
is written immediately, so batching never adds latency to an idle system. Each caller is answered after its own job is
durable. Lanes are independent, because an open transaction of a caller may hold a lane's lock and block every
submission to it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import NamedTuple
from weakref import WeakKeyDictionary

from leaseway.domain.errors import LeasewayError, TerminalError, UnknownOutcome, UsageError
from leaseway.domain.job import NewJob

WRITERS_MAX = 2
BATCH_MAX = 50

Write = Callable[[Sequence[NewJob]], Awaitable[object]]
Lane = tuple[str, str, str]


class SubmitCoalescer:
    """The queues of all event loops and lanes."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Lane, LaneQueue]] = WeakKeyDictionary()

    async def submit(self, job: NewJob) -> None:
        lanes = self._loops.setdefault(asyncio.get_running_loop(), {})
        lane = job.queue, job.tenant, job.needs
        queue = lanes.get(lane)
        if queue is None:
            queue = lanes[lane] = LaneQueue(self._write)
        try:
            await queue.submit(job)
        finally:
            if queue.is_idle and lanes.get(lane) is queue:
                del lanes[lane]


class QueuedJob(NamedTuple):
    job: NewJob
    turn: "asyncio.Future[list[QueuedJob] | None]"
    """None: another caller has stored the job. A list: this caller writes now, for these jobs as well as its own."""


class LaneQueue:
    """The submissions of one event loop to one lane."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._writers = 0
        self._queue: deque[QueuedJob] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._writers and not self._queue

    async def submit(self, job: NewJob) -> None:
        others: list[QueuedJob] | None = []
        if self._writers < WRITERS_MAX:
            self._writers += 1
        else:
            others = await self._wait(job)
        if others is None:
            return
        try:
            await self._write_all(job, others)
        except BaseException as error:
            for each in others:
                answer(each, error)
            raise
        finally:
            self._start_next_writer()

    async def _write_all(self, job: NewJob, others: list[QueuedJob]) -> None:
        try:
            await self._write([job, *(each.job for each in others)])
        except (UsageError, TerminalError):
            if not others:
                raise
            # One of the jobs is invalid. Writing each alone shows which one, and stores the others.
            await self._write_each(others)
            await self._write([job])
        for each in others:
            answer(each)

    async def _write_each(self, queued: list[QueuedJob]) -> None:
        for each in queued:
            try:
                await self._write([each.job])
            except LeasewayError as error:
                answer(each, error)
            else:
                answer(each)

    async def _wait(self, job: NewJob) -> list[QueuedJob] | None:
        queued = QueuedJob(job, asyncio.get_running_loop().create_future())
        self._queue.append(queued)
        try:
            return await queued.turn
        except asyncio.CancelledError:
            # A cancelled caller's job is not written. If its turn came at the same moment, pass the turn on.
            turn = queued.turn
            if not turn.cancelled() and turn.exception() is None and (others := turn.result()) is not None:
                self._queue.extendleft(reversed(others))
                self._start_next_writer()
            raise

    def _start_next_writer(self) -> None:
        self._writers -= 1
        waiting = [each for each in (self._queue.popleft() for _ in range(len(self._queue))) if not each.turn.done()]
        self._queue.extend(waiting[BATCH_MAX:])
        if waiting:
            self._writers += 1
            waiting[0].turn.set_result(waiting[1:BATCH_MAX])


def answer(queued: QueuedJob, error: BaseException | None = None) -> None:
    if queued.turn.done():
        return  # it was answered before, or its caller was cancelled; the job may be stored nevertheless
    if error is None:
        queued.turn.set_result(None)
    else:
        queued.turn.set_exception(copy_error(error))


def copy_error(error: BaseException) -> Exception:
    """One exception object per caller: raising an exception changes its traceback and context."""
    if isinstance(error, LeasewayError):
        try:
            return copy(error)
        except TypeError:  # its constructor takes more than the message
            pass
    return UnknownOutcome("the caller that wrote this job together with others was cancelled; the call may be repeated")
