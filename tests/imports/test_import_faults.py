"""Imports under attack: lost replies, late workers, wrong keys, changed specs, signals. Nothing is lost, and every
problem is reported.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from msgspec.structs import replace
from tests.imports.apps import import_app
from tests.processes import child_processes, is_alive, kill_session
from tests.signals import accept_interrupts
from tests.sqlite_files import open_sqlite

from leaseway.domain.errors import LeaseLost, TransientError, UnknownOutcome
from leaseway.domain.outcome import Fail
from leaseway.imports.domain.guards import Ceilings, find_disorder, halve_page_limit, hash_ids
from leaseway.imports.domain.page import Page
from leaseway.imports.domain.partition import Shard, make_shard
from leaseway.imports.domain.run_state import RunRow, RunState, ShardRow, ShardState
from leaseway.imports.run.assembly import ImportParts, load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.import_shard import ShardResult, ShardTask, import_shard
from leaseway.imports.run.shard_jobs import submit_open_shards
from leaseway.imports.run.start import start_planned
from leaseway.system import SystemClock, wall_clock_us
from leaseway.testing.fake_open_charge_map import Listing, fake_api
from leaseway.worker.context import Context

FILE = """
version = 1
[source]
name = "{name}"
file = "{file}"
[resource]
key = "{key}"
[resource.on_bad_row]
max_ratio = 0.01
[sink]
url = "sqlite:///{folder}/data.db"
table = "things"
"""

TIMEOUT_SECONDS = 20


class FencedContext(NamedTuple):
    """The part of a worker that a shard's job sees."""

    fence: int
    http: Any = None

    def progress(self, *words: Any) -> None:
        """Progress is not shown."""

    def saving_calls(self) -> AbstractContextManager[None]:
        return nullcontext()


class Import:
    """One file, one sink and one job store in a folder of their own."""

    def __init__(self, folder: Path, lines: Iterable[str], key: str = "id", name: str = "things") -> None:
        self.folder = folder
        self.path = folder / f"{name}.toml"
        self.file = folder / f"{name}.jsonl"
        self.file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        self.path.write_text(FILE.format(name=name, file=self.file.name, folder=folder, key=key), "utf-8")
        self.store = f"sqlite:///{folder}/jobs.db"
        self.parts: ImportParts = load_import(self.path)
        self.shard = make_shard(name, "all", {})

    def changed(self, **changes: Any) -> None:
        self.parts = self.parts._replace(task=replace(self.parts.task, **changes))

    async def begun(self, run: str = "run") -> "Import":
        await self.parts.sink.open()
        row = RunRow(
            id=run, source=self.parts.spec.source.name, spec_hash=self.parts.task.spec_hash, started_at=wall_clock_us()
        )
        await self.parts.sink.runs.start(row, [self.shard])
        return self

    async def attempt(self, fence: int, task: ShardTask | None = None) -> ShardResult:
        context = cast(Context, FencedContext(fence))
        return await import_shard(context, SystemClock(), task or self.parts.task, "run", self.shard.key)

    async def attempts(self, task: ShardTask) -> ShardResult:
        """Repeat the job as a worker does: with a larger fence each time."""
        for fence in range(1, 20):
            try:
                return await self.attempt(fence, task)
            except TransientError:
                continue
        raise AssertionError("it never ended")

    async def worked(self, run: str = "run", *, again: bool = False) -> RunState:
        """Run with a worker in this process."""
        await self.parts.sink.open()
        app, handle = import_app(self.parts, self.store)
        async with app, asyncio.timeout(TIMEOUT_SECONDS):
            if again:
                await submit_open_shards(self.parts, handle, run)
            else:
                await start_planned(self.parts, handle, run, [self.shard], wall_clock_us())
            await app.run_worker(queues=[self.parts.queue], until_empty=True)
            return await finish_run(self.parts, run)

    async def only(self) -> ShardRow:
        (row,) = await self.parts.sink.shards.find_all("run")
        return row

    def ids(self) -> list[str]:
        with open_sqlite(self.folder / "data.db") as file:
            return [id_ for (id_,) in file.execute("SELECT external_id FROM things ORDER BY rowid")]

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "leaseway.cli", "import", *words, "--store", self.store]

    async def leaseway(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(ran, self.command(*words))


def ran(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run to the end or until the timeout; afterwards no worker process may be left."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


Make = Callable[..., Import]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Import] = []

    def one(lines: Iterable[str], **options: Any) -> Import:
        made.append(Import(tmp_path, lines, **options))
        return made[-1]

    yield one
    for each in made:
        await each.parts.sink.close()


def things(count: int) -> list[str]:
    return [json.dumps({"id": number}) for number in range(count)]


class LosingSink:
    """Loses the reply of its n-th call, before or after the call takes effect."""

    def __init__(self, sink: Any, number: int, is_after: bool) -> None:
        self._sink = sink
        self._number = number
        self._is_after = is_after
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._sink, name)
        if name in ("runs", "shards", "quarantine", "sweeps", "rows"):
            return LosingPart(self, verb)
        return self.lose(verb, name)

    def lose(self, verb: Any, name: str) -> Any:
        async def call(*words: Any) -> Any:
            self.calls += 1
            is_lost = self.calls == self._number
            answer = None if is_lost and not self._is_after else await verb(*words)
            if is_lost:
                raise UnknownOutcome(f"the reply of {name} was lost")
            return answer

        return call


class LosingPart:
    def __init__(self, sink: LosingSink, part: Any) -> None:
        self._sink, self._part = sink, part

    def __getattr__(self, name: str) -> Any:
        return self._sink.lose(getattr(self._part, name), name)


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("number", range(1, 8))
async def test_a_lost_reply_of_the_sink_costs_no_row_and_doubles_none(make: Make, number: int, is_after: bool) -> None:
    """After a lost reply, the sink may or may not have applied the call, and the shard must find out by reading."""
    it = await make(things(5)).begun()
    sink = LosingSink(it.parts.sink, number, is_after)
    done = await it.attempts(replace(it.parts.task, sink=cast(Any, sink), page_limit=1))
    assert sink.calls >= number, "nothing was lost at all"
    row = await it.only()
    assert (done.state, row.state) == ("done", ShardState.DONE)
    assert it.ids() == [str(number) for number in range(5)]
    assert (row.pages, row.rows, row.inserted, row.unchanged) == (5, 5, 5, 0)
    if number > 2:  # the first two calls read the run and begin the shard
        assert row.attempts == 1, "the lost reply of a page is resolved by looking, not by another attempt"


class Meanwhile:
    """A source during whose n-th page something else happens."""

    def __init__(self, source: Any, number: int, deed: Callable[[], Any]) -> None:
        self._source = source
        self._number = number
        self._deed = deed
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def fetch(self, *words: Any) -> Page:
        page: Page = await self._source.fetch(*words)
        self.pages += 1
        if self.pages == self._number:
            await self._deed()
        return page


async def test_a_worker_that_lost_its_lease_between_fetch_and_write_leaves_no_trace(make: Make) -> None:
    """The worker's lease expired while it held a page, and another worker has finished the shard since."""
    it = await make(things(4)).begun()
    it.changed(page_limit=1)
    late = replace(it.parts.task, source=cast(Any, Meanwhile(it.parts.source, 2, lambda: it.attempt(2))))
    with pytest.raises(LeaseLost):
        await it.attempt(1, late)
    row = await it.only()
    assert (row.state, row.fence, row.pages, row.inserted, row.unchanged) == (ShardState.DONE, 2, 4, 4, 0)


async def test_a_worker_that_dies_after_a_split_has_its_children_submitted_by_the_next(make: Make) -> None:
    """The sink has the children, but the job store does not know them yet; otherwise they would never be imported."""
    it = await make(things(4)).begun()
    children = [make_shard("things", label, {"part": [label]}) for label in ("left", "right")]

    def split(shard: Shard, *_: Any) -> list[Shard]:
        return children if shard.label == "all" else []

    it.changed(page_limit=1, split=split, ceilings=Ceilings(pages=2))
    first = await it.attempt(1)
    again = await it.attempt(2)
    assert first.children == again.children == tuple(sorted(child.key for child in children))
    rows = await it.parts.sink.shards.find_all("run")
    assert [row.shard.label for row in rows] == ["all", "left", "right"]
    assert [row.pages for row in rows] == [2, 0, 0]


async def test_children_of_a_split_are_imported_once_by_the_same_run(make: Make) -> None:
    """A child that is submitted twice or never would duplicate or lose a part of the source."""
    it = make(things(3))
    children = [make_shard("things", label, {"part": [label]}) for label in ("left", "right")]
    it.changed(
        page_limit=1, ceilings=Ceilings(pages=2), split=lambda shard, *_: children if shard.label == "all" else []
    )
    assert await it.worked() is RunState.PARTIAL  # the children are as large as their parent and cannot be split
    rows = await it.parts.sink.shards.find_all("run")
    assert {row.shard.label: (row.state.value, row.attempts) for row in rows} == {
        "all": ("split", 1),
        "left": ("parked", 1),
        "right": ("parked", 1),
    }


async def test_a_parked_shard_is_tried_again_by_resume(make: Make) -> None:
    """After a correction, the only other way to continue would be a new run from the first page."""
    it = make(things(3))
    mended = it.parts
    it.changed(page_limit=1, ceilings=Ceilings(pages=2), split=lambda *_: [])
    assert await it.worked() is RunState.PARTIAL
    assert (await it.only()).state is ShardState.PARKED
    it.parts = mended
    assert await it.worked(again=True) is RunState.COMPLETE
    assert len(it.ids()) == 3
    assert await it.worked(again=True) is RunState.COMPLETE, "to resume what is complete changes nothing"
    assert (await it.only()).attempts == 2


async def test_a_parked_shard_that_is_not_mended_is_parked_again(make: Make) -> None:
    """A resume without a correction must not fill the quarantine with the same records each time."""
    it = make(["{}"] * 20)
    for again in (False, True, True):
        assert await it.worked(again=again) is RunState.PARTIAL
    row = await it.only()
    assert (row.state, row.attempts, row.rows, row.quarantined) == (ShardState.PARKED, 3, 0, 0)


@pytest.mark.parametrize("count", [1, 3, 50])
async def test_a_key_that_is_not_in_the_records_is_never_a_complete_run(make: Make, count: int) -> None:
    """All rows in quarantine with exit code 0 would look like success, above all for small sources."""
    it = make(things(count), key="nowhere")
    assert await it.worked() is RunState.PARTIAL
    row = await it.only()
    assert row.state is ShardState.PARKED
    assert "nowhere" in (row.why or "")
    assert it.ids() == []


async def test_a_few_bad_rows_are_kept_aside_and_can_be_listed(make: Make) -> None:
    """A few bad records must neither stop the import nor disappear."""
    it = make([*things(30), "no JSON at all", '{"name": "no key"}'])
    assert await it.worked() is RunState.COMPLETE
    assert len(it.ids()) == 30
    listed = await it.leaseway("quarantine", str(it.path), "--json")
    assert [row["number"] for row in json.loads(listed.stdout)] == [1, 2]


@pytest.mark.parametrize(
    ("policy", "state", "rows", "kept"),
    [
        ("quarantine", RunState.COMPLETE, 30, 1),
        ("skip", RunState.COMPLETE, 30, 0),
        ("fail", RunState.PARTIAL, 0, 0),
    ],
)
async def test_what_the_spec_says_of_bad_rows_is_done(
    make: Make, policy: str, state: RunState, rows: int, kept: int
) -> None:
    """A policy `fail` that is ignored is worse than no policy."""
    it = make([*things(30), "no JSON at all"])
    it.path.write_text(it.path.read_text("utf-8").replace("max_ratio = 0.01", f'policy = "{policy}"'), "utf-8")
    it.parts = load_import(it.path)
    assert await it.worked() is state
    assert (len(it.ids()), len(await it.parts.sink.quarantine.find_all("run"))) == (rows, kept)


async def test_many_bad_rows_on_the_page_of_a_split_park_it_instead(make: Make) -> None:
    """A wrong spec that is split would multiply into many shards with the same error."""
    it = make([*things(20), *["no JSON at all"] * 20, *things(5)])
    children = [make_shard("things", label, {"part": [label]}) for label in ("left", "right")]
    it.changed(page_limit=40, ceilings=Ceilings(rows=1), split=lambda *_: children)
    assert await it.worked() is RunState.PARTIAL
    row = await it.only()
    assert (row.state, row.guards, row.cursor, it.ids()) == (ShardState.PARKED, {"bad_rows": 1}, None, [])


@pytest.mark.parametrize("count", [0, 1])
async def test_a_source_of_nothing_or_of_one_record_is_complete(make: Make, count: int) -> None:
    """Empty and tiny sources are where page arithmetic is off by one."""
    it = make(things(count))
    it.changed(page_limit=1)
    assert await it.worked() is RunState.COMPLETE
    assert len(it.ids()) == count


async def test_an_empty_listing_over_http_is_confirmed_and_complete(tmp_path: Path) -> None:
    """An empty source is valid, and must not stay partial for ever."""
    async with fake_api(0, listings={"none": Listing([], key="id")}) as it:
        text = FILE.format(name="none", file="", folder=tmp_path, key="id")
        text = text.replace('file = ""', f'base_url = "{it.url}"').replace(
            "[resource]",
            '[resource]\npath = "/offset/none"\nrecords = "$.items"\npage = { cursor = "offset", limit = 1 }',
        )
        (tmp_path / "none.toml").write_text(text, "utf-8")
        empty = Import(tmp_path, [], name="unused")
        empty.parts, empty.shard = load_import(tmp_path / "none.toml"), make_shard("none", "all", {})
        assert await empty.worked() is RunState.COMPLETE
        await empty.parts.sink.close()


async def test_two_runs_at_once_finish_both_and_write_each_row_once(make: Make) -> None:
    """A cron job may start a run while the previous one is still at work."""
    it = make(things(40))
    it.changed(page_limit=5)
    assert set(await asyncio.gather(it.worked("one"), it.worked("two"))) == {RunState.COMPLETE}
    assert len(it.ids()) == 40
    shards = [*await it.parts.sink.shards.find_all("one"), *await it.parts.sink.shards.find_all("two")]
    assert sum(row.inserted for row in shards) == 40
    assert sum(row.unchanged for row in shards) == 40


async def test_two_sources_in_one_job_store_leave_each_others_shards_alone(make: Make) -> None:
    """A worker knows only the jobs of its own spec; a shard of another would fail in all fifty attempts."""
    one, other = make(things(3)), make(things(3), name="others")
    await one.parts.sink.open()
    app, handle = import_app(one.parts, one.store)
    async with app:
        await start_planned(one.parts, handle, "waits", [one.shard], wall_clock_us())
    assert await other.worked("run") is RunState.COMPLETE
    (left,) = await one.parts.sink.shards.find_all("waits")
    assert (left.state, left.attempts) == (ShardState.WAITING, 0)
    assert await one.worked("waits", again=True) is RunState.COMPLETE


async def test_a_worker_with_another_spec_writes_nothing_into_a_run(make: Make) -> None:
    """Rows of two specs in one run would be counted together, and the meaning of the columns would be unclear."""
    it = await make(things(3)).begun()
    with pytest.raises(Fail, match="another spec"):
        await it.attempt(1, replace(it.parts.task, spec_hash="another"))
    row = await it.only()
    assert (row.state, row.attempts) == (ShardState.WAITING, 0)


async def test_resume_with_a_changed_spec_is_refused_with_the_way_out(make: Make) -> None:
    """A run under two specs would leave rows of two shapes in one table."""
    it = await make(things(3)).begun()
    it.path.write_text(it.path.read_text("utf-8").replace('key = "id"', 'key = "name"'), "utf-8")
    told = await it.leaseway("resume", str(it.path))
    assert told.returncode == 2
    assert "another spec" in told.stderr
    assert "leaseway import run" in told.stderr
    assert (await it.only()).attempts == 0
    assert it.ids() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_run_leaves_no_worker_behind(make: Make, number: signal.Signals) -> None:
    """Workers that outlive their parent would keep sending requests after the user stopped the run."""
    it = make([])
    async with fake_api(0, listings={"slow": Listing([{"id": n} for n in range(5_000)], key="id")}) as server:
        spec = FILE.format(name="slow", file="", folder=it.folder, key="id")
        spec = spec.replace('file = ""', f'base_url = "{server.url}"\nlimits = ["5/second"]').replace(
            "[resource]",
            '[resource]\npath = "/offset/slow"\nrecords = "$.items"\n'
            'page = { cursor = "offset", limit_param = "limit", limit = 1 }',
        )
        it.path.write_text(spec, "utf-8")
        process, workers = started(it), list[int]()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await server.has_seen(4)
            workers += child_processes(process.pid)
            process.send_signal(number)
            out, err = await asyncio.to_thread(process.communicate, timeout=TIMEOUT_SECONDS)
            survivors = [pid for pid in workers if is_alive(pid)]
        finally:
            kill_session(process)
    assert workers
    assert survivors == []
    assert process.returncode == 1, err
    assert "partial" in out


def started(it: Import) -> "subprocess.Popen[str]":
    command = it.command("run", str(it.path))
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=accept_interrupts,
    )


async def test_a_run_says_one_json_document_and_shows_why_it_is_partial(make: Make) -> None:
    """A script must be able to parse the result of a partial run, too."""
    it = make(things(20), key="nowhere")
    told = await it.leaseway("run", str(it.path), "--json", "--workers", "1")
    assert told.returncode == 1
    assert json.loads(told.stdout)["shards"] == {"parked": 1}
    again = await it.leaseway("status", str(it.path))
    assert "nowhere" in again.stdout


async def test_a_worker_that_cannot_go_on_is_heard_of(make: Make) -> None:
    """The file is not the one the run started with: its shard fails for good, and the user must read why."""
    it = await make(things(3)).begun()
    it.changed(page_limit=1)
    with pytest.raises(RuntimeError, match="died"):
        await it.attempt(1, replace(it.parts.task, source=cast(Any, Meanwhile(it.parts.source, 2, died))))
    it.file.write_text('{"id": 77}\n', "utf-8")
    told = await it.leaseway("resume", str(it.path), "--workers", "1")
    assert told.returncode == 1
    assert "has changed" in told.stdout


async def died() -> None:
    raise RuntimeError("died")


async def test_an_unreachable_source_is_an_error_of_one_line(make: Make) -> None:
    """A provider outage is not a bug of the program, and a traceback would suggest one."""
    it = make([])
    text = it.path.read_text("utf-8").replace('file = "things.jsonl"', 'base_url = "http://127.0.0.1:9"')
    it.path.write_text(text, "utf-8")
    told = await it.leaseway("run", str(it.path))
    assert told.returncode == 3
    assert "cannot be reached" in told.stderr
    assert "Traceback" not in told.stderr


async def test_a_sink_of_another_shape_is_refused_before_anything_is_written(make: Make) -> None:
    """The table may belong to another program, and its rows must stay as they are."""
    it = make(things(3))
    with open_sqlite(it.folder / "data.db") as file:
        file.execute("CREATE TABLE things (name TEXT)")
    told = await it.leaseway("run", str(it.path))
    assert told.returncode == 2
    assert "things" in told.stderr
    assert "Traceback" not in told.stderr
    with open_sqlite(it.folder / "data.db") as file:
        assert file.execute("SELECT count(*) FROM things").fetchall() == [(0,)]


async def test_a_sink_in_no_folder_is_refused_in_one_line(make: Make) -> None:
    """A mistyped path is a common error, and a traceback would hide it."""
    it = make(things(3))
    text = it.path.read_text("utf-8").replace("/data.db", "/nowhere/data.db")
    it.path.write_text(text, "utf-8")
    told = await it.leaseway("run", str(it.path))
    assert told.returncode == 2
    assert "nowhere" in told.stderr
    assert "Traceback" not in told.stderr


def test_ids_of_two_kinds_are_a_disorder_and_no_crash() -> None:
    """A source may mix numbers and text, and a TypeError would stop the shard without a reason."""
    assert find_disorder([1, "a"], None) is not None
    assert find_disorder(["b"], {"after": 7}) is not None
    assert find_disorder([1, None, 2], {"after": 0}) is None


def test_ids_that_no_encoding_takes_still_tell_pages_apart() -> None:
    """A Latin-1 byte in a CSV file is one bad row, not the end of the import."""
    assert hash_ids(["caf\udce9"]) != hash_ids(["cafe"])
    assert hash_ids([2**80]) != hash_ids([2**81])


def test_pages_are_halved_down_to_what_the_spec_bears() -> None:
    """Pages that shrink without a lower bound would cost one request per row."""
    assert [halve_page_limit(100), halve_page_limit(60), halve_page_limit(8)] == [50, 50, 8]
    assert [halve_page_limit(8, 2), halve_page_limit(2, 2), halve_page_limit(1, 1)] == [4, 2, 1]
