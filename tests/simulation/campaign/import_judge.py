"""The provider's table as the oracle of an import, and the bounds on a run's requests.

C1  a shard that is done has every row that the source had at the start and still has
C2  no row exists that never was in the source
C3  no row is older than at the start
C4  each row was inserted once, and counted once
C5  after an incremental run, the sink equals the source's table
C6  after a second full run, rows that were gone before it are marked as deleted
E1  a shard fails only because of a fault: with so many attempts, a defect would stay hidden otherwise
F1  a process that knows that the run has failed, or that the API key is refused, sends no request
F2  a run never sends more requests than its budget allows
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from tests.simulation.campaign.import_operator import Operator
from tests.simulation.campaign.sink_oracles import Contents, Place, Shelf
from tests.simulation.campaign.source_api import Api

from leaseway.domain.errors import StoreBusy, StoreFull, TransientError, UnknownOutcome
from leaseway.imports.domain.run_state import RunMode, ShardState
from leaseway.imports.run.page_writes import DoubtfulPage
from leaseway.imports.sources.port import HeavyPage
from leaseway.imports.sources.status_mapping import WrongBody
from leaseway.simulation.process import Process
from leaseway.simulation.promises import Commit
from leaseway.simulation.world import SimulatedWorld

EXPECTED = frozenset(
    {
        *(error.__name__ for error in (UnknownOutcome, StoreBusy, StoreFull, TransientError)),
        *(error.__name__ for error in (HeavyPage, WrongBody, DoubtfulPage)),
        *("ConnectFailed", "ReplyLost", "ReplyTimeout"),
        *("refused", "run_failed", "run_budget", "parked", "partial", "failed"),
    }
)
"""Codes of failures."""


class TableJudge:
    def __init__(self, universe: SimulatedWorld, api: Api, shelf: Shelf, operator: Operator) -> None:
        self._universe = universe
        self._api = api
        self._shelf = shelf
        self._operator = operator
        self._refused: Counter[tuple[str, int]] = Counter()
        """Requests with an API key that the API does not accept, by job and fence."""
        shelf.on_write = self._wrong_in_shard
        shelf.is_alive = lambda key: int(key) in api.fake.table.readable()
        api.on_arrival = self._saw_request

    # -- during the run --------------------------------------------------------------------------------------------

    def sent(self, verb: str, call: Any) -> None:
        """Calls to the job store are not checked here."""

    def saw(self, commit: Commit) -> None:
        """E1, at an exchange with the job store."""
        for settlement in commit.accepted:
            failure = settlement.failure
            if failure is not None and failure.code not in EXPECTED:
                self._accuse(f"E1 job {settlement.id} fails: {failure.code}: {failure.message}")

    def _saw_request(self, process: Process, who: tuple[str, int]) -> None:
        """F1, F2. A process that does not know of a failure yet learns it from the reply."""
        if who in self._shelf.told:
            self._accuse(f"F1 attempt {who} asks though it has read that the run has failed")
        if self._api.is_revoked:
            self._refused[who] += 1
            # A process that was frozen meanwhile may have given up on the reply.
            if self._refused[who] > 1 + process.was_paused:
                self._accuse(f"F1 attempt {who} asks again with a key that was refused")
        most = self._operator.requests_max
        if most is not None and self._api.requests > most:
            self._accuse(f"F2 {self._api.requests} requests, and the run has a budget of {most}")

    def _wrong_in_shard(self, place: Place, contents: Contents) -> Iterator[str]:
        """C1, after each page."""
        if place.state == ShardState.DONE:
            missing = self._missing(contents, msgspec.json.decode(place.predicate))
            if missing:
                yield f"C1 a shard is done, and {missing} are missing"

    def _missing(self, contents: Contents, predicate: Mapping[str, Any]) -> list[int]:
        low, high = predicate.get("id", (None, None))
        countries = {str(each) for each in predicate.get("country", ())}
        wanted = [
            poi.id
            for poi in self._api.fake.table.truth.values()
            if (low is None or poi.id >= low)
            and (high is None or poi.id < high)
            and (not countries or str(poi.country) in countries)
        ]
        due = self._api.at_start.keys() - self._api.excused
        return sorted(number for number in wanted if number in due and str(number) not in contents.rows)

    # -- at the end ------------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        contents = self._shelf.refresh()
        self._universe.judge.accuse([*self._wrong_rows(contents), *wrong_sums(contents), *self._wrong_table(contents)])

    def _wrong_rows(self, contents: Contents) -> Iterator[str]:
        """C2, C3."""
        for key, row in contents.rows.items():
            if (row.stamp, comment_of(row.document)) not in self._api.versions.get(int(key), set()):
                yield f"C2 row {key} was never so in the source"
            if row.stamp < self._api.at_start.get(int(key), 0) and int(key) not in self._api.excused:
                yield f"C3 row {key} is older than when the run began"

    def _wrong_table(self, contents: Contents) -> Iterator[str]:
        """C1, C5."""
        if missing := self._missing(contents, {}):
            yield f"C1 the run is {self._operator.state}, and {missing} are missing"
        truth = self._api.fake.table.truth
        for key, row in contents.rows.items():
            poi = truth.get(int(key))
            if (
                self._operator.mode is RunMode.INCREMENTAL
                and poi is not None
                and comment_of(row.document) != poi.comment
            ):
                yield f"C5 row {key} is not as it is in the source"
            if self._operator.mode is RunMode.FULL and int(key) in self._api.gone_at_start and row.deleted_at is None:
                yield f"C6 row {key} is gone in the source, and the sink does not say so"

    def _accuse(self, wrong: str) -> None:
        self._universe.judge.accuse([wrong])


def comment_of(document: str) -> str | None:
    """Every change of a row has its own value."""
    comment: str | None = msgspec.json.decode(document).get("GeneralComments")
    return comment


def wrong_sums(contents: Contents) -> Iterator[str]:
    """C4."""
    places = contents.shards.values()
    inserted = sum(place.inserted for place in places)
    if inserted != len(contents.rows):
        yield f"C4 {inserted} rows were counted as inserted, and {len(contents.rows)} are there"
    for place in places:
        if place.rows != place.inserted + place.updated + place.unchanged + place.stale:
            yield f"C4 a shard counts {place}"
