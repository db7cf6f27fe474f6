"""Any order of begins, pages, notes, repeats and late pages: the table contains what the accepted pages wrote.
Hypothesis generates the history of two shards that meet the same rows, some of which are deleted, and of the run's
budget. The oracle knows only what was accepted.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace
from tests.imports.sql_sink_fixtures import TABLE, SqlitePlace, empty_postgres

from leaseway.imports.domain.page import Row, WriteCounts
from leaseway.imports.domain.run_state import ShardRow, ShardState
from leaseway.imports.sinks.port import PageWrite, Sink
from leaseway.imports.sinks.sqlite.sink import SqliteSink
from leaseway.testing.clock import FakeClock
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.sink_contract.fixtures import COLUMNS, HIGH, LOW, RUN, bad, page, row, tombstone

pytestmark = pytest.mark.timeout(300)

shards = st.sampled_from([LOW.key, HIGH.key])
makes = st.sampled_from([row, row, tombstone])
some_rows = st.lists(
    st.builds(lambda make, number, version: make(number, version), makes, st.integers(1, 5), st.integers(0, 3)),
    max_size=4,
    unique_by=lambda one: one.external_id,
)
BUDGET = 12
OPEN = (ShardState.WAITING, ShardState.RUNNING)
ends = st.sampled_from([ShardState.RUNNING] * 8 + [ShardState.PARKED, ShardState.DONE])


class Life(RuleBasedStateMachine):
    sink: Sink
    place: Any

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.accepted: list[tuple[PageWrite, WriteCounts]] = []
        self.sent: list[PageWrite] = []
        self.stored: dict[str, Row] = {}
        self.reactions: Counter[str] = Counter()
        self.spent = 0

    async def opened(self) -> None:
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.runner.run(self.opened())
        self.runner.run(self.sink.runs.start(replace(RUN, requests_max=BUDGET), [LOW, HIGH]))

    def teardown(self) -> None:
        self.runner.run(self.sink.close())
        self.runner.close()

    @rule(shard=shards, fence=st.integers(1, 4))
    def begin(self, shard: str, fence: int) -> None:
        last = max((write.fence for write, _ in self.accepted if write.shard == shard), default=0)
        begun = self.runner.run(self.sink.shards.begin(RUN.id, shard, fence))
        assert begun is None or begun.fence == fence >= last

    @rule(
        shard=shards,
        fence=st.integers(1, 4),
        rows=some_rows,
        bad_count=st.integers(0, 2),
        state=ends,
        step=st.integers(0, 2),
    )
    def turn(self, shard: str, fence: int, rows: list[Row], bad_count: int, state: ShardState, step: int) -> None:
        """A page from the shard's cursor, or one page ahead or behind."""
        now = self.now_of(shard)
        before = (now.pages or None) if step < 2 else now.pages + 1
        write = page(rows, before, now.pages + 1, fence, state=state, bad=[bad(number) for number in range(bad_count)])
        may = now.fence <= fence and now.state in OPEN and step < 2
        self.send(replace(write, shard=shard), may)

    @rule(shard=shards, fence=st.integers(1, 4), count=st.integers(1, 3))
    def note(self, shard: str, fence: int, count: int) -> None:
        now = self.now_of(shard)
        may = now.fence <= fence and now.state in OPEN
        assert self.runner.run(self.sink.shards.note(RUN.id, shard, fence, {"empty_page": count}, "why")) == may
        self.reactions[shard] += count if may else 0

    @rule(requests=st.integers(0, 5))
    def spend(self, requests: int) -> None:
        may = self.spent + requests <= BUDGET
        assert self.runner.run(self.sink.runs.spend(RUN.id, requests)) == may
        self.spent += requests if may else 0

    @rule(which=st.integers(0, 5))
    def send_again(self, which: int) -> None:
        """A page that was sent before, accepted or not, finds another cursor than it expects."""
        if self.sent:
            write = self.sent[-1 - which % len(self.sent)]
            if any(write is one for one, _ in self.accepted):
                self.send(write, may=False)

    def now_of(self, shard: str) -> ShardRow:
        (now,) = [one for one in self.runner.run(self.sink.shards.find_all(RUN.id)) if one.shard.key == shard]
        return now

    def send(self, write: PageWrite, may: bool) -> None:
        answer = self.runner.run(self.sink.shards.write(write))
        assert (answer is not None) == may
        self.sent.append(write)
        if answer is not None:
            assert answer == self.taken(write)
            self.accepted.append((write, answer))

    def taken(self, write: PageWrite) -> WriteCounts:
        """Apply the page to the oracle's own table."""
        counts = {"inserted": 0, "updated": 0, "unchanged": 0, "stale": 0}
        for one in write.rows:
            known = self.stored.get(one.external_id)
            if known is None:
                counts["inserted"] += 1
            elif one.stamp < known.stamp:
                counts["stale"] += 1
                continue
            else:
                field = "stamp" if one.is_deleted else "content_hash"  # a tombstone has no content to compare
                is_same = one.is_deleted == known.is_deleted and getattr(one, field) == getattr(known, field)
                counts["unchanged" if is_same else "updated"] += 1
            self.stored[one.external_id] = one
        return WriteCounts(**counts, quarantined=len(write.bad))

    @invariant()
    def counters_say_what_was_accepted(self) -> None:
        for now in self.runner.run(self.sink.shards.find_all(RUN.id)):
            mine = [(write, counts) for write, counts in self.accepted if write.shard == now.shard.key]
            assert now.pages == len(mine)
            for name in ("rows", "inserted", "updated", "unchanged", "stale", "quarantined"):
                assert getattr(now, name) == sum(getattr(counts, name) for _, counts in mine), name
            assert now.guards.get("empty_page", 0) == self.reactions[now.shard.key]
        (run,) = self.runner.run(self.sink.runs.find_all())
        assert run.requests == self.spent

    @invariant()
    def the_table_is_what_the_accepted_pages_made(self) -> None:
        table = self.runner.run(self.place.rows())
        marks = {False: None, True: "flagged"}
        assert {key: (one["stamp"], one["deleted_reason"]) for key, one in table.items()} == {
            key: (one.stamp, marks[one.is_deleted]) for key, one in self.stored.items()
        }
        living = {key: one.content_hash for key, one in self.stored.items() if not one.is_deleted}
        assert {key: table[key]["content_hash"] for key in living} == living
        assert self.runner.run(self.sink.rows.count()) == sum(not one.is_deleted for one in self.stored.values())
        kept = sum(len(write.bad) for write, _ in self.accepted)
        assert len(self.runner.run(self.sink.quarantine.find_all(limit=10_000))) == kept


class Sqlite(Life):
    async def opened(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.place = SqlitePlace(Path(self.folder) / "places.db")
        self.sink = SqliteSink(self.place.path, TABLE, COLUMNS, self.clock.now_us, inline=True)
        await self.sink.open()

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


class Postgres(Life):
    url: str

    async def opened(self) -> None:
        self.place = await empty_postgres(self.url)
        self.sink = self.place.sink(self.clock.now_us)
        await self.sink.open()


@pytest.fixture(scope="module", autouse=True)
def _server(server: PostgresServer) -> None:
    Postgres.url = server.url


LIVES = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,  # the same histories in every run: a red build means a change, not chance
    suppress_health_check=[HealthCheck.too_slow],
)
TestSqlite = Sqlite.TestCase
TestSqlite.settings = LIVES
TestPostgres = Postgres.TestCase
TestPostgres.settings = settings(LIVES, max_examples=10)
