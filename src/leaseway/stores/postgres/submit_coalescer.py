"""Lone submissions that come together are written together.

A commit waits for the disk, and one serves all that are in it. So who comes while enough others of his loop are writing
to the same lane waits, and when one of those is done, the first who waits writes for all of them. Who comes alone is
written at once: nobody waits for company. Each is answered after his own job is stored.

Lanes do not wait for each other: somebody's open transaction may have made a lane, and hold up all who submit to it.
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
TOGETHER_MAX = 50

Write = Callable[[Sequence[NewJob]], Awaitable[object]]
Lane = tuple[str, str, str]


class Gathered:
    """Those who submit, by event loop and lane."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Lane, Together]] = WeakKeyDictionary()

    async def submit(self, job: NewJob) -> None:
        lanes = self._loops.setdefault(asyncio.get_running_loop(), {})
        lane = job.queue, job.tenant, job.needs
        together = lanes.get(lane)
        if together is None:
            together = lanes[lane] = Together(self._write)
        try:
            await together.submit(job)
        finally:
            if together.is_idle and lanes.get(lane) is together:
                del lanes[lane]


class Waiting(NamedTuple):
    job: NewJob
    turn: "asyncio.Future[list[Waiting] | None]"
    """None: somebody has stored it. Otherwise it is his turn to write, for these as well."""


class Together:
    """Those of one lane."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._writers = 0
        self._waiting: deque[Waiting] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._writers and not self._waiting

    async def submit(self, job: NewJob) -> None:
        others: list[Waiting] | None = []
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
                tell(each, error)
            raise
        finally:
            self._pass_on()

    async def _write_all(self, job: NewJob, others: list[Waiting]) -> None:
        try:
            await self._write([job, *(each.job for each in others)])
        except (UsageError, TerminalError):
            if not others:
                raise
            # Somebody's job is refused for good: his alone, and which one it is shows when each is written by itself.
            await self._write_each(others)
            await self._write([job])
        for each in others:
            tell(each)

    async def _write_each(self, waiting: list[Waiting]) -> None:
        for each in waiting:
            try:
                await self._write([each.job])
            except LeasewayError as error:
                tell(each, error)
            else:
                tell(each)

    async def _wait(self, job: NewJob) -> list[Waiting] | None:
        waiting = Waiting(job, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            # Who gives up is passed over, and his job is not written. If his turn came in this very moment, it is the
            # next one's.
            turn = waiting.turn
            if not turn.cancelled() and turn.exception() is None and (others := turn.result()) is not None:
                self._waiting.extendleft(reversed(others))
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        self._writers -= 1
        here = [each for each in (self._waiting.popleft() for _ in range(len(self._waiting))) if not each.turn.done()]
        self._waiting.extend(here[TOGETHER_MAX:])
        if here:
            self._writers += 1
            here[0].turn.set_result(here[1:TOGETHER_MAX])


def tell(waiting: Waiting, error: BaseException | None = None) -> None:
    if waiting.turn.done():
        return  # he has heard before, or has given up; then his job may be stored all the same
    if error is None:
        waiting.turn.set_result(None)
    else:
        waiting.turn.set_exception(his_own(error))


def his_own(error: BaseException) -> Exception:
    """An error for each of them: who raises one writes his way into it."""
    if isinstance(error, LeasewayError):
        try:
            return copy(error)
        except TypeError:  # one that is made of more than its message
            pass
    return UnknownOutcome("who wrote this job together with others gave up; the call may be repeated")
