"""A submitter of the campaign: `python -m chaos.submitter ORDERS`. Submits in every available way, until SIGTERM."""

import asyncio
import itertools
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from chaos import sabotage
from chaos.history import Acknowledged, Cancelled, Cancelling, Heard, Journal, Loaded, Refused, Submitting, Unknown
from chaos.jobs import Jobs, Planned, any_job
from chaos.worker import Orders
from leaseway import Submitted, TransientError, UnknownOutcome
from leaseway.domain.ids import JobId
from leaseway.wiring import store_at
from leaseway.worker.submit import Bound

PATIENCE = 3
"""Submitters of single jobs go on while the backlog is less than this many times the bulk submitters' threshold."""


SIGN_OF_LIFE_SECONDS = 0.5
"""How often single jobs are submitted into a large backlog. A submitter that only waits for room could not be told from
one that has not recovered from a fault."""


class Submitter:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._journal = Journal(Path(orders.folder), orders.name)
        self._app = Jobs(orders.url, orders.lease_seconds, self._journal, orders.name).app
        self._plain_app = Jobs(orders.url, orders.lease_seconds, self._journal, orders.name).app
        self._calls = itertools.count(1)
        self._labels = itertools.count(1)
        self._backlog = 0
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._is_over.set)
        store_at(self._orders.url)  # loads the driver
        self._journal.write(Loaded())
        ways: list[Callable[[random.Random], Awaitable[None]]]
        ways = [self._one, self._bulk, self._keyed, self._cancelled, self._plain]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            for way in ways:
                group.create_task(self._again_and_again(way, 1 if way == self._bulk else PATIENCE))

    async def _again_and_again(self, way: Callable[[random.Random], Awaitable[None]], patience: int) -> None:
        chance = random.Random(f"{self._orders.seed}:{way.__name__}")
        while not self._is_over.is_set():
            has_room = self._backlog < patience * self._orders.backlog
            if has_room or way == self._one:
                await way(chance)
            await asyncio.sleep(chance.uniform(0.01, 0.1) if has_room else SIGN_OF_LIFE_SECONDS)

    async def _watch(self) -> None:
        """The backlog decides how much is submitted: enough to keep all workers busy, not more than can finish."""
        while not self._is_over.is_set():
            try:
                lanes = await (await self._app.store()).reads.lanes()
                self._backlog = sum(lane.ready for lane in lanes)
            except TransientError as error:
                self._journal.write(Heard(name="no_backlog", facts={"error": str(error)}))
            await asyncio.sleep(0.1)

    # -- ways to submit ---------------------------------------------------------------------------------------------

    async def _one(self, chance: random.Random) -> None:
        await self._send([self._job(chance)])

    async def _bulk(self, chance: random.Random) -> None:
        await self._send([self._job(chance) for _ in range(chance.randint(5, 40))])

    async def _keyed(self, chance: random.Random) -> None:
        """Repeated until it is acknowledged, and sometimes once more: the key must name the same job every time."""
        label = self._label()
        key, job = f"key-{label}", self._job(chance)
        repeats = chance.choice([0, 0, 1])
        while repeats >= 0 and not self._is_over.is_set():
            if await self._send([job], key, [label]):
                repeats -= 1
            else:
                await asyncio.sleep(chance.uniform(0.05, 0.3))

    async def _cancelled(self, chance: random.Random) -> None:
        seconds = self._orders.lease_seconds
        jobs = [Planned("long", {"seconds": seconds}, {}), Planned("quick", {"seconds": 0.1}, {"delay": 2})]
        answer = await self._send([chance.choice(jobs)])
        if not answer:
            return
        await asyncio.sleep(chance.uniform(0, 0.5))
        self._journal.write(Cancelling(job=answer[0]))
        try:
            said = await (await self._app.store()).operations.cancel(JobId(answer[0]))
        except TransientError:
            return  # the outcome is unknown, and both results are correct
        self._journal.write(Cancelled(job=answer[0], answer=said.value))

    async def _plain(self, chance: random.Random) -> None:
        """From code without an event loop, which uses a path of its own into the store."""
        await self._send([self._job(chance)], submit=self._submit_in_thread)

    async def _submit_in_thread(self, jobs: Sequence[Bound]) -> list[Submitted]:
        return [await asyncio.to_thread(self._plain_app.submit_sync, job) for job in jobs]

    # -- one call ---------------------------------------------------------------------------------------------------

    async def _send(
        self,
        jobs: Sequence[Planned],
        key: str | None = None,
        labels: list[str] | None = None,
        submit: Callable[[Sequence[Bound]], Awaitable[list[Submitted]]] | None = None,
    ) -> list[str]:
        """Submit, and record the call and its reply; returns the ids of the jobs, empty if it did not succeed."""
        call = f"{self._orders.name}:{next(self._calls)}"
        labels = labels or [self._label() for _ in jobs]
        bound = [job.bound(self._app, label, key=key) for job, label in zip(jobs, labels, strict=True)]
        self._journal.write(Submitting(call=call, labels=labels, kinds=[job.kind for job in jobs], key=key))
        try:
            answers = await (submit or self._submit)(bound)
        except UnknownOutcome as error:
            self._journal.write(Unknown(call=call, error=str(error)))
        except TransientError as error:
            self._journal.write(Refused(call=call, error=str(error)))
        else:
            ids = [str(answer.id) for answer in answers]
            self._journal.write(Acknowledged(call=call, jobs=ids))
            return ids
        return []

    async def _submit(self, jobs: Sequence[Bound]) -> list[Submitted]:
        if len(jobs) == 1:
            return [await self._app.submit(jobs[0])]
        return await self._app.submit_many(jobs)

    def _job(self, chance: random.Random) -> Planned:
        return any_job(chance, self._orders.lease_seconds)

    def _label(self) -> str:
        return f"{self._orders.name}-{next(self._labels)}"


async def main(orders: Orders) -> None:
    sabotage.apply(os.environ.get(sabotage.SABOTAGE))
    await Submitter(orders).run()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Orders)))
