"""Sources that change, fail or answer strangely while they are read page by page: nothing is lost silently."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tests.imports.test_sources_hostile import Reply, imported, provider, things

from leaseway.imports.domain.boxes import grid_cells, owns
from leaseway.imports.domain.run_state import EXIT_CODES, RunState, ShardState
from leaseway.imports.sources.predicates import asked_box
from leaseway.imports.spec.model import Filter

OFFSET = '{ cursor = "offset", limit_param = "limit", limit = 10 }'
OFFSET_TOTAL = '{ cursor = "offset", limit_param = "limit", limit = 10, total = "$.total" }'
PAGE = '{ cursor = "page", limit_param = "limit", limit = 10 }'
PAGE_TOTAL = '{ cursor = "page", limit_param = "limit", limit = 10, total = "$.total", is_stable = true }'
STABLE = '{ cursor = "page", limit_param = "limit", limit = 10, is_stable = true }'


def by_offset(records: list[Any], change: Callable[[int], None] = lambda number: None) -> Callable[..., Reply]:
    """`change` is called before each reply, with the number of requests so far."""
    count = 0

    def answers(query: dict[str, str]) -> Reply:
        nonlocal count
        change(count)
        count += 1
        start, limit = int(query.get("offset", 0)), int(query["limit"])
        return Reply({"items": records[start : start + limit], "total": len(records)})

    return answers


def by_page(
    records: list[Any], past_end: Reply | None = None, change: Callable[[int], None] = lambda number: None
) -> Any:
    inner = by_offset(records, change)

    def answers(query: dict[str, str]) -> Reply:
        start = (int(query["page"]) - 1) * int(query["limit"])
        reply = inner({"offset": str(start), "limit": query["limit"]})
        return past_end if past_end is not None and start >= len(records) else reply

    return answers


# -- records that move ------------------------------------------------------------------------------------------------


async def test_records_deleted_between_two_pages_do_not_hide_others(tmp_path: Path) -> None:
    """Each deletion moves one unread record to a page that was read; without a look back it is missing for ever."""
    records = things(*range(200))

    def change(number: int) -> None:
        if 2 <= number < 12:  # one deleted at the beginning, one inserted at the end: the total does not tell
            del records[0]
            records.append({"id": 1_000 + number})

    async with provider(by_offset(records, change)) as it:
        outcome = await imported(it, tmp_path, OFFSET_TOTAL)
    assert {str(record["id"]) for record in records} <= set(outcome.ids)
    assert outcome.state is RunState.UNVERIFIED
    assert outcome.row.guards["shifted"] > 0
    assert EXIT_CODES[outcome.state] == 4


async def test_a_run_by_offset_over_unchanged_records_is_complete(tmp_path: Path) -> None:
    """If the look back warned about every run, its warning would mean nothing."""
    async with provider(by_offset(things(*range(95)))) as it:
        outcome = await imported(it, tmp_path, OFFSET)
    assert (outcome.state, len(outcome.ids), outcome.row.guards) == (RunState.COMPLETE, 95, {})
    assert len(it.asked) <= 95 // 9 + 3


async def test_a_deleted_last_record_does_not_restart_the_shard(tmp_path: Path) -> None:
    """The record that marks the place can be the one that is deleted; then the record before it marks it."""
    records = things(*range(60))

    def change(number: int) -> None:
        if number == 1:
            del records[9]

    async with provider(by_offset(records, change)) as it:
        outcome = await imported(it, tmp_path, OFFSET)
    assert set(outcome.ids) == {str(number) for number in range(60)}
    assert outcome.row.cursor is None or "pass" not in outcome.row.cursor


async def test_records_in_random_order_are_parked_with_the_reason(tmp_path: Path) -> None:
    """Without an order, a position means nothing, and reading would go back for ever."""
    count = 0

    def answers(query: dict[str, str]) -> Reply:
        nonlocal count
        count += 10
        return Reply({"items": things(*range(count, count + 10))})

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, OFFSET)
    assert outcome.row.state is ShardState.PARKED
    assert "sort them with resource.page.fixed" in str(outcome.row.why)


async def test_a_total_that_shrinks_does_not_park_the_shard(tmp_path: Path) -> None:
    """One deleted record made reading go back to a page that the loop guard had seen, for ever."""
    records = things(*range(95))

    def change(number: int) -> None:
        if number == 4:
            del records[0]

    async with provider(by_page(records, change=change)) as it:
        outcome = await imported(it, tmp_path, PAGE_TOTAL)
    assert {str(record["id"]) for record in records} <= set(outcome.ids)
    assert (outcome.row.state, outcome.state) == (ShardState.DONE, RunState.UNVERIFIED)


async def test_page_numbers_prove_less_unless_the_spec_vouches_for_them(tmp_path: Path) -> None:
    """A balanced insert and delete between two pages is invisible, so "everything is there" would be a guess."""
    async with provider(by_page(things(*range(25)))) as it:
        outcome = await imported(it, tmp_path, PAGE)
        assert outcome.state is RunState.UNVERIFIED
        (tmp_path / "stable").mkdir()
        assert (await imported(it, tmp_path / "stable", STABLE)).state is RunState.COMPLETE


# -- ends -------------------------------------------------------------------------------------------------------------


async def test_a_404_past_the_last_page_is_an_end(tmp_path: Path) -> None:
    """Django REST framework answers "Invalid page." there; the rows of the last page must be written before."""
    past_end = Reply({"detail": "Invalid page."}, 404)
    async with provider(by_page(things(*range(25)), past_end)) as it:
        outcome = await imported(it, tmp_path, STABLE)
    assert (outcome.state, len(outcome.ids)) == (RunState.COMPLETE, 25)


FEED = '{ cursor = "token", param = "since", next = "$.last_seq", limit_param = "limit", limit = 10 }'


async def test_a_feed_that_has_nothing_new_is_at_its_end(tmp_path: Path) -> None:
    """CouchDB answers with the cursor that it was asked for, which looked like a loop and parked a complete shard."""

    def answers(query: dict[str, str]) -> Reply:
        since = int(query.get("since", 0))
        page = things(*range(25))[since : since + int(query["limit"])]
        return Reply({"items": page, "last_seq": since + len(page)})

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, FEED)
    assert (outcome.state, len(outcome.ids), outcome.row.guards) == (RunState.COMPLETE, 25, {})


async def test_a_cursor_that_does_not_move_is_parked(tmp_path: Path) -> None:
    """With records, the same cursor is a loop: it would be read for ever."""
    async with provider(lambda query: Reply({"items": things(*range(10)), "last_seq": 7})) as it:
        outcome = await imported(it, tmp_path, FEED)
    assert outcome.row.state is ShardState.PARKED


async def test_a_404_on_the_first_page_is_an_error(tmp_path: Path) -> None:
    """A wrong path must not look like an empty source."""
    async with provider(lambda query: Reply({"detail": "Not found."}, 404)) as it:
        outcome = await imported(it, tmp_path, STABLE)
    assert (outcome.row.state, outcome.state) == (ShardState.PARKED, RunState.PARTIAL)


async def test_a_short_page_costs_one_more_request(tmp_path: Path) -> None:
    """With many small shards, two confirmations each were two thirds of all requests."""
    async with provider(by_page(things(*range(25)))) as it:
        await imported(it, tmp_path, STABLE)
    assert len(it.asked) == 4


# -- wrong answers ----------------------------------------------------------------------------------------------------


async def test_the_same_wrong_answer_parks_the_shard_at_once(tmp_path: Path) -> None:
    """Fifty attempts with four requests each took ten minutes, and the reason was not shown."""
    async with provider(lambda query: Reply({"data": things(1, 2)})) as it:
        outcome = await imported(it, tmp_path, OFFSET)
    assert len(it.asked) <= 3
    assert outcome.row.state is ShardState.PARKED
    assert str(outcome.row.why).startswith("resource.records: $.items must lead to a list (is missing)")


async def test_not_a_number_outside_the_records_does_no_harm(tmp_path: Path) -> None:
    """Many servers write NaN; a page must not be refused for a value that nobody reads."""
    body = (
        b'{"took": NaN, "items": [{"id": 1}, {"id": 2, "x": NaN}, {"id": 3, "x": 1e999}, {"id": 4}], "max": -Infinity}'
    )
    page = '{ cursor = "none", limit = 10 }'
    async with provider(lambda query: Reply(body)) as it:
        outcome = await imported(it, tmp_path, page)
    assert (outcome.ids, outcome.row.quarantined) == (["1", "4"], 2)


async def test_one_error_does_not_make_the_pages_smaller(tmp_path: Path) -> None:
    """A halved page grows back slowly, so one error at the beginning cost as many requests as the whole import."""
    inner, count = by_offset(things(*range(300))), 0

    def answers(query: dict[str, str]) -> Reply:
        nonlocal count
        count += 1
        return Reply("down", 500) if count == 3 else inner(query)

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, '{ cursor = "offset", limit_param = "limit", limit = 60 }')
    assert (outcome.state, len(outcome.ids)) == (RunState.COMPLETE, 300)
    assert {query["limit"] for query in it.asked} <= {"60", "1"}
    assert outcome.row.guards == {"source_error": 1}


async def test_every_request_on_the_wire_is_counted(tmp_path: Path) -> None:
    """The HTTP client repeats a 503 by itself; a count without these repetitions explains neither a bill nor a ban."""
    inner, count = by_offset(things(*range(20))), 0

    def answers(query: dict[str, str]) -> Reply:
        nonlocal count
        count += 1
        return Reply("busy", 503) if count == 2 else inner(query)

    async with provider(answers) as it:
        outcome = await imported(it, tmp_path, OFFSET)
    assert outcome.row.requests == len(it.asked)


# -- boxes ------------------------------------------------------------------------------------------------------------

DEGREES = 10.0
AREA = (-20.0, -30.0, 20.0, 30.0)
LINES = st.integers(-2, 2).map(lambda number: number * DEGREES) | st.floats(-20, 20, allow_subnormal=False)


@given(LINES, LINES)
@example(0.0, 0.0)
@example(10.0, -10.0)
def test_a_server_that_excludes_edges_returns_every_point_of_the_plan(latitude: float, longitude: float) -> None:
    """What lies on a grid line was in no box of such a server, and the run said that everything was there."""
    cells = list(grid_cells(AREA, DEGREES))
    owners = [cell for cell in cells if owns(cell, latitude, longitude)]
    assert len(owners) == (1 if latitude < 20 and longitude < 30 else 0)
    for cell in owners:
        south, west, north, east = asked_box(Filter(), cell)
        assert south < latitude < north
        assert west < longitude < east
