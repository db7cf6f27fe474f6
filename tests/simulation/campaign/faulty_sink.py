"""The sink as a simulated process sees it, over a faulty link; and the real sink's file behind it.

A call or its reply may be lost; a call may take seconds; it may be refused, or break off within its transaction; and it
may be executed after its caller was told that the outcome is unknown.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from leaseway.domain.errors import LeasewayError, StoreBusy, StoreFull, UnknownOutcome
from leaseway.simulation.faulty_link import end
from leaseway.simulation.process import HERE, Process

if TYPE_CHECKING:
    from tests.simulation.campaign.sink_oracles import Shelf

LATENCY_SECONDS_MAX = 0.15
SLOW_SECONDS = (0.3, 6.0)
LATE_SECONDS = (0.1, 1.5)
FUSE_STATEMENTS = (0, 8)
FUSE_STATEMENTS_OF_PARENTS = (5, 7)
"""After this many statements the disk is full: where children are written, near the end."""
LIFECYCLE = frozenset({"open", "close"})
PARTS = ("runs", "shards", "quarantine", "sweeps", "rows")


@dataclass(slots=True)
class Letter:
    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reply: asyncio.Future[Any]
    fault: str


class SinkWay:
    """The link from one process to the sink."""

    def __init__(self, shelf: "Shelf", process: Process) -> None:
        self._shelf = shelf
        self._universe = shelf.universe
        self._process = process
        self._chance = shelf.universe.streams.of(f"sink {process.name}")

    async def call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        reply: asyncio.Future[Any] = self._process.loop.create_future()
        if not self._process.is_dead:
            letter = Letter(verb, args, kwargs, reply, self._draw_fault(verb, args))
            if letter.fault == "late":
                # The caller gets the error at once; its call is still executed.
                self._tell(letter, UnknownOutcome("the connection broke"), "a call of the sink came late")
                self._later(self._chance.uniform(*LATE_SECONDS), self._execute, letter)
            else:
                self._later(self._way_seconds(letter, "slow"), self._arrive, letter)
        return await reply

    def _draw_fault(self, verb: str, args: tuple[Any, ...]) -> str:
        """Page writes get most of the slow and disk-full faults, and pages that split a shard are rare."""
        share = 2.0 if has_children(verb, args) else 1.0 if verb == "shards.write" else 0.1
        faults, draw = self._shelf.faults, self._chance.random()
        for fault, chance in (
            ("busy", faults.busy),
            ("full", faults.full * share),
            ("request lost", faults.request_lost),
            ("reply lost", faults.reply_lost / 2),
            ("late", faults.reply_lost / 2),
            ("slow", faults.stall * share),
            ("reply slow", faults.stall * share),
        ):
            draw -= chance
            if draw < 0:
                return fault
        return ""

    def _way_seconds(self, letter: Letter, slow: str) -> float:
        if letter.fault == slow:
            self._universe.books.reach("a call of the sink was slow")
            return self._chance.uniform(*SLOW_SECONDS)
        return min(self._chance.expovariate(1 / self._shelf.faults.latency_seconds), LATENCY_SECONDS_MAX)

    def _later(self, seconds: float, step: Callable[..., Any], *args: Any) -> None:
        self._universe.loop.call_later(seconds, step, *args)

    def _arrive(self, letter: Letter) -> None:
        if (self._process.is_dead or letter.reply.cancelled()) and self._chance.random() < 0.5:
            return
        if self._process.loop.is_frozen and not self._process.is_dead and self._chance.random() < 0.5:
            # The writer thread is frozen together with its process. A remote database would go on: the other branch
            # covers that.
            self._process.when_thawed(partial(self._arrive, letter))
        elif letter.fault == "request lost":
            self._tell(letter, UnknownOutcome("the request was lost"), "a request to the sink was lost")
        elif letter.fault == "busy":
            self._tell(letter, StoreBusy("somebody else is writing"), "the sink was busy")
        else:
            self._execute(letter)

    def _execute(self, letter: Letter) -> None:
        answer: Any
        fuse = self._chance.randint(*statements_in(letter)) if letter.fault == "full" else None
        try:
            answer = self._shelf.execute(self._process, letter.verb, letter.args, letter.kwargs, fuse)
        except StoreFull as error:
            return self._tell(letter, error, "the sink was full in the middle of a transaction")
        except LeasewayError as error:
            answer = error
        if letter.fault == "reply lost":
            self._tell(letter, UnknownOutcome("the reply was lost"), "a reply of the sink was lost")
        elif letter.fault != "late":
            self._send_back(letter, answer)
        return None

    def _tell(self, letter: Letter, error: Exception, what: str) -> None:
        self._universe.books.reach(what)
        self._universe.note(self._process.name, f"sink {letter.verb}: {what}")
        self._send_back(letter, error)

    def _send_back(self, letter: Letter, answer: Any) -> None:
        seconds = self._way_seconds(letter, "reply slow")
        self._later(seconds, self._process.loop.call_soon_threadsafe, end, letter.reply, answer)


def statements_in(letter: Letter) -> tuple[int, int]:
    return FUSE_STATEMENTS_OF_PARENTS if has_children(letter.verb, letter.args) else FUSE_STATEMENTS


def has_children(verb: str, args: tuple[Any, ...]) -> bool:
    return verb == "shards.write" and bool(args[0].children)


class FaultyPart:
    """One small port of the sink, for whichever process calls it."""

    def __init__(self, sink: "FaultySink", name: str) -> None:
        self._sink, self._name = sink, name

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return partial(self._sink.link().call, f"{self._name}.{verb}")


class FaultySink:
    """The whole port of a sink, for whichever process calls it."""

    row_map = None

    def __init__(self, shelf: "Shelf") -> None:
        self._shelf = shelf
        self._links: dict[Process, SinkWay] = {}
        self.runs, self.shards, self.quarantine, self.sweeps, self.rows = (FaultyPart(self, name) for name in PARTS)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in LIFECYCLE:
            raise AttributeError(verb)
        return partial(self.link().call, verb)

    def link(self) -> SinkWay:
        process = HERE.get()
        if process not in self._links:
            self._links[process] = SinkWay(self._shelf, process)
        return self._links[process]
