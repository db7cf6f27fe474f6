"""Lone submissions that come together are written together.

A commit waits for the disk, and one serves all that are in it. So who comes while enough others of his loop are writing
waits, and when one of those is done, the first who waits writes for all of them. Who comes alone is written at once:
nobody waits for company. Each is answered after his own job is stored.

More than one may write at a time: a write that is stuck, behind a lane that somebody's open transaction has made, does
not hold up everybody else.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import NamedTuple

from leaseway.domain.errors import LeasewayError, UnknownOutcome
from leaseway.domain.job import NewJob

WRITERS_MAX = 2
TOGETHER_MAX = 100

Write = Callable[[Sequence[NewJob]], Awaitable[object]]


class Waiting(NamedTuple):
    job: NewJob
    turn: "asyncio.Future[list[Waiting] | None]"
    """None: somebody has stored it. Otherwise it is his turn to write, for these as well."""


class Together:
    """Of one event loop."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._writers = 0
        self._waiting: deque[Waiting] = deque()

    async def submit(self, job: NewJob) -> None:
        others: list[Waiting] | None = []
        if self._writers < WRITERS_MAX:
            self._writers += 1
        else:
            others = await self._wait(job)
        if others is None:
            return
        try:
            await self._write([job, *(each.job for each in others)])
        except BaseException as error:
            for each in others:
                tell(each, error)
            raise
        finally:
            self._pass_on()
        for each in others:
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
    """An error of his own for everybody: who raises one writes his way into it."""
    if waiting.turn.done():
        return  # he has given up; his job may be stored all the same
    if error is None:
        waiting.turn.set_result(None)
    elif isinstance(error, LeasewayError):
        waiting.turn.set_exception(copy(error))
    else:
        waiting.turn.set_exception(UnknownOutcome("who wrote this job with others gave up; the call may be repeated"))
