"""The API that imports read: the fake API's own table, rules and faults, in virtual time and over a faulty link.

Its table is the oracle. It changes while it is read, and every version of a row is recorded: an import may bring any
version that is not older than its start, and nothing else.

An empty page may be wrong, but not for longer than the source's lag: the same request after that time gets the true
answer. Pages in a wrong order can be recognised. A source with other errors cannot be read by any client.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from itertools import pairwise
from random import Random
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from leaseway.domain.http import ConnectFailed, HttpReply, HttpRequest, ReplyLost, ReplyTimeout
from leaseway.domain.ids import SECOND_US, Instant
from leaseway.domain.limits.limit import LimitDefinition, wire_delay_us
from leaseway.ports.provider_requests import AboutToSend
from leaseway.simulation.process import HERE, Process
from leaseway.simulation.promises import Promises
from leaseway.simulation.world import START_US, SimulatedWorld
from leaseway.testing.fake_open_charge_map import API_KEY, FakeApi, Faults, Poi
from leaseway.testing.fake_open_charge_map import ocm as rules
from leaseway.testing.provider import Answer, ReceivedRequest

WORK_SECONDS = (0.005, 0.08)
BACK_SECONDS_MAX = 0.02
WAY_SECONDS_MAX = 0.05
"""For requests without a limit."""
EMPTY_SHARE_OF_LAG = 0.9
ABSENT_SECONDS_MAX = 0.45
ROWS_MIN = 20
UNKNOWN_COUNTRY = 9_999
"""A country id that the API does not know; it answers with all countries."""
TOO_MANY = 429

ATTEMPT: ContextVar[tuple[str, int]] = ContextVar("ATTEMPT", default=("", 0))
"""Job and fence of the handler that sends the request."""


class Manners(Struct, frozen=True, kw_only=True):
    """How the API behaves in this world: probabilities per request, unless the name says otherwise."""

    errors: float = 0.0
    refuses: float = 0.0
    empties: float = 0.0
    html: float = 0.0
    cut: float = 0.0
    """The connection ends in the middle of the body, and the client notices."""
    halved: float = 0.0
    """Half a body arrives, without an error."""
    silent: float = 0.0
    unreachable: float = 0.0
    reordered_every: float = 0.0
    """Mean seconds between two spans in which the replica answers; the same for the following fields."""
    unfiltered_every: float = 0.0
    absent_every: float = 0.0
    changes_every: float = 0.0
    inserts: int = 0
    """Rows that each change touches; and those whose country it changes."""
    moves: int = 2
    revoked_every: float = 0.0
    """The API key is no longer valid, until the operator corrects it."""
    lag_seconds: float = 0.0


GENTLE = Manners()


class OddFakeApi(FakeApi):
    """With an order that is always recognisable as wrong where it is wrong, and a country that the API does not
    know.
    """

    def _pois(self, query: Mapping[str, str]) -> Answer:
        faults = self._faults
        asked = rules.asked(query, faults)
        if asked.countries and UNKNOWN_COUNTRY in asked.countries:
            asked = replace(asked, countries=None)
        rows = rules.found(self.table, asked, faults)
        if faults.reordered and is_ascending(rows):
            rows.reverse()
        return Answer(body=rules.listing(self.table, rows, query, faults, self._now()))


def is_ascending(rows: list[Poi]) -> bool:
    return all(low.id < high.id for low, high in pairwise(rows))


class Api:
    def __init__(
        self, universe: SimulatedWorld, manners: Manners, pois: list[Poi], limit: LimitDefinition | None
    ) -> None:
        self.universe = universe
        self.manners = manners if universe.is_faulty else GENTLE
        self._lag_seconds = manners.lag_seconds
        self._chance = universe.streams.of("api")
        self._limit = limit
        self._later_us = universe.now_us() - START_US
        self.fake = OddFakeApi(pois, keys=[API_KEY], now=self.now_us)
        self.fake.faults = Faults(lag_seconds=self._lag_seconds)
        self.at_start = self.fake.table.readable()
        self.versions: dict[int, set[tuple[Instant, str | None]]] = {}
        """Timestamp and comment of every version that was ever readable."""
        self.gone_at_start: set[int] = set()
        self.excused: set[int] = set()
        """Rows that were invisible for a moment, or moved behind every reader. Their timestamps tell."""
        for poi in pois:
            self.remember(poi)
        self.arrivals: deque[float] = deque()
        self.requests = 0
        self.on_arrival: Callable[[Process, tuple[str, int]], None] = lambda process, who: None
        """Called before a request is answered."""
        self._lies_until: dict[str, float] = {}
        self._until = {"reordered": 0.0, "unfiltered": 0.0}
        self.is_revoked = False
        self._hidden: set[int] = set()
        """Each row is invisible at most once: a row that is invisible at every read cannot be told from one that is
        gone.
        """

    @property
    def books(self) -> Promises:
        return self.universe.books

    def now_us(self) -> Instant:
        """Its own clock, which is never set."""
        return START_US + self._later_us + int(self.universe.loop.time() * SECOND_US)

    def remember(self, poi: Poi) -> None:
        if poi.is_readable:
            self.versions.setdefault(poi.id, set()).add((poi.modified, poi.comment))

    def begin_again(self) -> None:
        """A second run begins: no row is excused any more."""
        self.excused.clear()
        self.at_start = self.fake.table.readable()
        self.gone_at_start = self.versions.keys() - self.at_start.keys()

    # -- changes ---------------------------------------------------------------------------------------------------

    async def rage(self) -> None:
        """Runs until cancelled."""
        manners, streams = self.manners, self.universe.streams
        async with asyncio.TaskGroup() as group:
            for purpose, every, strike in (
                ("reordered", manners.reordered_every, self._reorder),
                ("unfiltered", manners.unfiltered_every, self._unfilter),
                ("absent", manners.absent_every, self._hide),
                ("changes", manners.changes_every, self._change),
                ("revoked", manners.revoked_every, self._revoke),
            ):
                if every:
                    group.create_task(self._keep_striking(streams.of(f"api {purpose}"), every, strike))

    async def _keep_striking(self, chance: Random, every: float, strike: Any) -> None:
        while True:  # until cancelled
            await asyncio.sleep(chance.expovariate(1 / every))
            strike(chance)

    def _reorder(self, chance: Random) -> None:
        self._until["reordered"] = self.universe.loop.time() + chance.uniform(0.2, 2.5)
        self.universe.note("api", "sorts by date")

    def _unfilter(self, chance: Random) -> None:
        self._until["unfiltered"] = self.universe.loop.time() + chance.uniform(0.2, 1.5)
        self.universe.note("api", "ignores filters")

    def _hide(self, chance: Random) -> None:
        """The replica deletes changed rows, and inserts them again."""
        table = self.fake.table
        seen = sorted(table.truth.keys() - self._hidden)
        chosen = chance.sample(seen, min(5, len(seen)))
        self._hidden.update(chosen)
        table.update(chosen)
        table.refresh(chosen, chance.uniform(0.1, ABSENT_SECONDS_MAX))
        self._touched(chosen)
        self.excused.update(chosen)
        self.books.reach("rows were absent for a moment")
        self.universe.note("api", f"hides {sorted(chosen)}")

    def _change(self, chance: Random) -> None:
        table = self.fake.table
        known = sorted(table.truth)
        updated, moved = (
            chance.sample(known, min(8, len(known))),
            chance.sample(known, min(self.manners.moves, len(known))),
        )
        table.update(updated)
        self._touched(updated)
        for number in moved:
            table.put(replace(table.truth[number], country=chance.choice(COUNTRIES)))
        table.update(moved)
        fresh = table.insert(self.manners.inserts)
        gone = chance.sample(known, 1) if chance.random() < 0.3 and len(known) > ROWS_MIN else []
        self._touched([*moved, *fresh])
        self.excused.update(moved)
        table.delete(gone)
        self.excused.update(gone)
        self.books.reach("rows were changed while they were read")
        self.universe.note("api", f"changes {updated} {moved} {fresh} {gone}")

    def _touched(self, ids: list[int]) -> None:
        for number in ids:
            self.remember(self.fake.table.truth[number])

    def _revoke(self, chance: Random) -> None:
        self.is_revoked = True
        self.fake._keys = frozenset()
        self.universe.note("api", "does not know our key any more")

    def mend_key(self) -> None:
        if self.is_revoked:
            self.is_revoked = False
            self.fake._keys = frozenset({API_KEY})
            self.universe.note("api", "knows our key again")

    def calm(self) -> None:
        self.manners = GENTLE
        self._until = dict.fromkeys(self._until, 0.0)
        self._lies_until.clear()
        self.mend_key()

    # -- a request --------------------------------------------------------------------------------------------------

    async def answer(self, request: ReceivedRequest, read_seconds: float) -> Answer:
        """Send the request now, and wait for the reply; a reply that is too late is a timeout."""
        process = HERE.get()
        reply: asyncio.Future[Answer] = process.loop.create_future()
        if not process.is_dead:
            if self._chance.random() < self.manners.unreachable:
                self.books.reach("the API could not be reached")
                raise ConnectFailed("nobody listens")
            who = ATTEMPT.get()
            self.universe.loop.call_later(self._way_seconds(), self._arrive, process, request, who, reply)
        try:
            async with asyncio.timeout(read_seconds):
                return await reply
        except TimeoutError as error:
            raise ReplyTimeout("nothing came") from error

    def _way_seconds(self) -> float:
        """The network's half of the delay; often its minimum or maximum, because bounds break there."""
        most = WAY_SECONDS_MAX
        if self._limit is not None:
            most = min(wire_delay_us(self._limit, rate) for rate in self._limit.rates) / 2 / SECOND_US
        return self._chance.choice((0.0, most, self._chance.uniform(0, most)))

    def _arrive(
        self, process: Process, request: ReceivedRequest, who: tuple[str, int], reply: asyncio.Future[Answer]
    ) -> None:
        self._count(process, who)
        answer, is_heard = self._answered(request)
        self.universe.note("api", f"{process.name} {brief(request)} -> {answer.status}, {len(answer.body)} bytes")
        if is_heard:
            seconds = self._chance.uniform(*WORK_SECONDS) + self._chance.uniform(0, BACK_SECONDS_MAX)
            self.universe.loop.call_later(seconds, process.loop.call_soon_threadsafe, end, reply, answer)

    def _answered(self, request: ReceivedRequest) -> tuple[Answer, bool]:
        """The reply, and whether it will arrive."""
        fault, manners = "" if self.is_revoked else self._drawn(), self.manners
        if fault == "refuses":
            self.books.reach("the API refused a request for a while")
            return Answer(TOO_MANY, headers={"Retry-After": str(self._chance.choice((1, 1, 8)))}), True
        now = self.universe.loop.time()
        self.fake.faults = Faults(
            lag_seconds=manners.lag_seconds,
            error_every=int(fault == "errors"),
            error_status=self._chance.choice((500, 502, 503)),
            html_every=int(fault == "html"),
            empty_every=int(self._lies(fault, request, now)),
            reordered=now < self._until["reordered"],
            ignores_filters=now < self._until["unfiltered"],
        )
        answer = self.fake.usual(request)
        if fault == "cut":
            answer = answer._replace(sent_bytes_max=len(answer.body) // 2)
        if fault == "halved":
            answer = answer._replace(body=answer.body[: len(answer.body) // 2])
        return answer, fault != "silent"

    def _drawn(self) -> str:
        draw = self._chance.random()
        for fault in ("errors", "refuses", "empties", "html", "cut", "halved", "silent"):
            draw -= getattr(self.manners, fault)
            if draw < 0:
                return fault
        return ""

    def _lies(self, fault: str, request: ReceivedRequest, now: float) -> bool:
        """Whether an empty page is sent. For one request this begins once, and ends before the lag is over."""
        question = question_of(request)
        if fault == "empties" and question not in self._lies_until:
            seconds = self._chance.uniform(0, EMPTY_SHARE_OF_LAG) * self.manners.lag_seconds
            self._lies_until[question] = now + seconds
            self.books.reach("an empty page was a lie")
            return True
        return now < self._lies_until.get(question, -1.0)

    def _count(self, process: Process, who: tuple[str, int]) -> None:
        """L1: no window has more arrivals than the limit allows."""
        self.requests += 1
        self.on_arrival(process, who)
        if self._limit is None:
            return
        now = self.universe.loop.time()
        self.arrivals.append(now)
        for rate in self._limit.rates:
            since = now - rate.window_us / SECOND_US
            count = sum(at > since + 1e-6 for at in self.arrivals)
            if count > rate.count:
                self.universe.judge.accuse([f"L1 {process.name}: {count} arrivals at the API, which has {rate}"])
        while self.arrivals and self.arrivals[0] < now - 60:
            self.arrivals.popleft()


COUNTRIES = (1, 2, 80, 87, 161, 210)


def end(reply: asyncio.Future[Answer], answer: Answer) -> None:
    if not reply.done():
        reply.set_result(answer)


def question_of(request: ReceivedRequest) -> str:
    """The same for a page and for the request that confirms its end."""
    return "&".join(sorted(part for part in request.path.split("&") if not part.startswith("maxresults=")))


def brief(request: ReceivedRequest) -> str:
    parts = [part for part in request.path.partition("?")[2].split("&") if part.split("=")[0] in SHOWN]
    return " ".join(parts)


SHOWN = ("greaterthanid", "maxresults", "countryid", "modifiedsince")


class Cable:
    """The transport of a worker's real HTTP client."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def send(self, request: HttpRequest, about_to_send: AboutToSend) -> HttpReply:
        await about_to_send()
        parts = urlsplit(request.url)
        received = ReceivedRequest("GET", f"{parts.path}?{parts.query}", dict(request.headers))
        answer = await self._api.answer(received, request.timeout_seconds)
        if answer.sent_bytes_max is not None:
            self._api.books.reach("a reply ended in the middle")
            raise ReplyLost("the connection was closed in the middle of the body")
        return HttpReply(answer.status, headers=answer.headers, content=answer.body, request=request)

    async def close(self) -> None: ...
