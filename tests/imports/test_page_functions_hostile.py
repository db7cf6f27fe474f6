"""Importer functions with mistakes: each mistake is reported at once, or affects only its own record or attempt."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite_files import open_sqlite

from leaseway import App, BadValue, Page
from leaseway.imports.domain.run_state import RunState
from leaseway.imports.run.importer import ImportProgress

TIMEOUT_SECONDS = 20
Run = Callable[..., Any]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    async def one(function: Callable[..., Any], **words: Any) -> ImportProgress:
        options: dict[str, Any] = {
            "key": "id",
            "sink": f"sqlite:///{tmp_path}/data.db",
            "table": "things",
            "page_limit": 100,
        }
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await app.importer("evil", **options)(function).run(1, **words)

    yield one
    await app.close()


async def test_a_page_that_says_nothing_of_the_next_one_is_named_at_once(run: Run) -> None:
    """The same page would be requested again and again, with the same records."""

    def fetch(cursor: Any) -> Page:
        return Page(records=[{"id": 1}], raw_count=1, next=None)

    progress = await run(fetch)
    (shard,) = progress.shards
    assert (progress.state, shard.state.value, shard.requests) == (RunState.PARTIAL, "parked", 0)
    assert "Page.last(records)" in str(shard.why)


def cancels_itself() -> None:
    raise asyncio.CancelledError


def leaves() -> None:
    sys.exit(3)


def has_no_more() -> None:
    next(iter([]))


@pytest.mark.parametrize("deed", [cancels_itself, leaves, has_no_more])
@pytest.mark.parametrize("is_async", [False, True])
async def test_whatever_a_function_raises_is_an_attempt_that_failed(
    run: Run, deed: Callable[[], None], is_async: bool
) -> None:
    """An exception must end neither the worker nor the shard; the next attempt continues where this one stopped."""
    calls = 0

    def fetch(cursor: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            deed()
        return ([{"id": 1}], {"n": 1}) if cursor is None else Page.last([{"id": 2}])

    async def fetch_async(cursor: Any) -> Any:
        return fetch(cursor)

    progress = await run(fetch_async if is_async else fetch)
    (shard,) = progress.shards
    assert (progress.state, shard.rows, shard.pages, shard.attempts) == (RunState.COMPLETE, 2, 2, 2)


def looped() -> dict[str, Any]:
    record: dict[str, Any] = {"id": 1}
    record["self"] = record
    return record


@pytest.mark.parametrize(
    "bad",
    [looped(), {"id": 1.0}, {"id": True}, {"id": "a\0b"}, {"id": "a\udc00"}, {"id": "k" * 600}, {"id": 1, None: 2}],
    ids=["looped", "float", "bool", "nul", "surrogate", "long", "nameless"],
)
async def test_a_record_that_no_table_takes_costs_no_other(run: Run, bad: dict[Any, Any]) -> None:
    """One bad record must not lose the good ones on its page."""
    progress = await run(lambda: Page.last([{"id": 7}, bad, {"id": "e\u0301"}, {"id": "\u00e9"}]))
    (shard,) = progress.shards
    assert (progress.state, shard.inserted, shard.quarantined) == (RunState.COMPLETE, 3, 1)


@pytest.mark.parametrize("name", ["x" * 200, "a\nb", "a\0b", "a\udc00"])
async def test_a_run_with_an_impossible_name_is_not_begun(run: Run, tmp_path: Path, name: str) -> None:
    """Its jobs could not be submitted, and the run would stay in the sink as running for ever."""
    with pytest.raises(BadValue, match="must be 1 to 120 letters"):
        await run(lambda: Page.last([{"id": 1}]), run=name)
    with open_sqlite(tmp_path / "data.db") as file:
        assert file.execute("SELECT count(*) FROM leaseway_runs").fetchall() == [(0,)]
