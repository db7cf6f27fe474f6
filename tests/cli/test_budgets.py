"""leaseway budgets: amounts are exact, and nothing is deleted by accident."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.cli.place import Place

from leaseway.domain.budgets.budget import MICRO, Charge
from leaseway.ports.ledger import Ledger
from leaseway.wiring import open_ledger, store_at

T = TypeVar("T")
URL = "sqlite:///work.db"
HOUR_US = 3_600_000_000


def with_ledger(use: Callable[[Ledger], Awaitable[T]]) -> T:
    """As another worker would."""

    async def run() -> T:
        store = store_at(URL)
        await store.open()
        try:
            return await use(open_ledger(store, URL))
        finally:
            await store.close()

    return asyncio.run(run())


def spend(name: str, micros: int, id_: str = "call-1", budget: str | None = None) -> None:
    async def call(ledger: Ledger) -> None:
        await ledger.hold(id_, ((Charge(name, budget or name), micros),), HOUR_US, dispatch=True)
        await ledger.settle(id_, {})

    with_ledger(call)


def hold(name: str, micros: int, id_: str) -> None:
    with_ledger(lambda ledger: ledger.hold(id_, ((Charge(name, name), micros),), HOUR_US))


@pytest.fixture
def place(place: Place) -> Place:
    place.ok("migrate")
    return place


# -- looking ----------------------------------------------------------------------------------------------------------


def test_without_budgets_the_list_says_where_they_come_from(place: Place) -> None:
    """An empty list alone does not tell a new user what to do next."""
    answer = place.ok("budgets")
    assert (answer.out, place.json("budgets")) == ("", {"budgets": []})
    assert "a worker declares those of its app" in answer.err


def test_what_is_spent_held_and_left_is_told_to_the_cent(place: Place) -> None:
    """Operators compare these amounts with the provider's bill."""
    place.ok("budgets", "set", "maps-spend", "--usd", "25", "--every", "month")
    spend("maps-spend", 12_500_000)
    hold("maps-spend", 10_000, "call-2")
    hold("maps-spend", 20 * MICRO, "too-much-for-this-month")
    (told,) = place.json("budgets")["budgets"]
    now, later = told["windows"]
    assert (now["spent"], now["held"], now["left"], now["has_begun"]) == ("12.5", "0.01", "12.49", True)
    assert (now["threshold_percent"], now["end"]) == (50, later["start"])
    assert (later["held"], later["has_begun"]) == ("20", False)
    title, line = place.ok("budgets").out.splitlines()
    assert "booked ahead" in title
    assert re.search(r"^maps-spend +12\.50 of 25 usd +0\.01 +12\.49 +\d{4}-\d\d +in \d+ \w+ \(.*\) +20$", line)
    assert place.json("budgets", "list") == place.json("budgets")


def test_one_budget_shows_its_windows_and_what_becomes_of_too_much(place: Place) -> None:
    """Whether a job waits or fails is what an operator must know before the money runs out."""
    place.ok("budgets", "set", "maps-spend", "--usd", "25", "--every", "day", "--tz", "Europe/Zurich")
    spend("maps-spend", 20 * MICRO)
    hold("maps-spend", 24 * MICRO, "tomorrow")
    out = place.ok("budgets", "show", "maps-spend").out
    assert out.startswith("budget maps-spend  25 usd per day\n")
    assert "Europe/Zurich" in out
    assert "waits for a later window" in out
    assert re.search(r"20 of 25 usd +0 +5 +80 % +current", out)
    assert re.search(r"0 of 25 usd +24 booked ahead +1 +in \d+ \w+ \(", out)
    assert [window["held"] for window in place.json("budgets", "show", "maps-spend")["windows"]] == ["0", "24"]


def test_a_budget_with_fields_shows_each_of_its_budgets(place: Place) -> None:
    """A template has one budget per tenant, and each of them can run out alone."""
    place.ok("budgets", "set", "spend:{tenant}", "--amount", "1000000", "--unit", "tokens")
    assert re.search(r"spend:\{tenant\} +0 of 1,000,000 tokens +one for each tenant", place.ok("budgets").out)
    spend("spend:acme", 1_500 * MICRO, budget="spend:{tenant}")
    assert re.search(r"spend:acme +1,500 of 1,000,000 tokens +0 +998,500 +total +never", place.ok("budgets").out)
    assert "1,500 of 1,000,000 tokens" in place.ok("budgets", "show", "spend:acme").out
    assert "spend:acme" in place.ok("budgets", "show", "spend:{tenant}").out


def test_the_journal_tells_each_step_newest_first(place: Place) -> None:
    """The journal answers the question where the money went."""
    place.ok("budgets", "set", "spend", "--usd", "1")
    assert "has no journal entries" in place.ok("budgets", "journal", "spend").err
    spend("spend", 805_000)
    told = place.json("budgets", "journal", "spend")["entries"]
    assert [(entry["kind"], entry["held"], entry["spent"]) for entry in told] == [
        ("settle", "-0.805", "0.805"),
        ("hold", "0.805", "0"),
    ]
    assert [entry["threshold_percent"] for entry in told] == [80, 0]
    lines = place.ok("budgets", "journal", "spend").out.splitlines()
    assert re.search(r"settle +-0\.805 +\+0\.805 +total +80 % +call-1", lines[1])
    assert len(place.json("budgets", "journal", "spend", "--limit", "1")["entries"]) == 1


def test_books_that_do_not_agree_are_found(place: Place) -> None:
    """Exit code 1: a script that monitors money must not have to parse text."""
    place.ok("budgets", "set", "spend", "--usd", "25")
    spend("spend", MICRO)
    assert "1 windows agree" in place.ok("budgets", "audit").out
    assert place.json("budgets", "audit")["agrees"] is True
    (table,) = [
        name for (name,) in place.sql("SELECT name FROM sqlite_schema WHERE type = 'table'") if name.endswith("journal")
    ]
    place.sql(f"DELETE FROM {table} WHERE kind = 'settle'")
    answer = place.run("budgets", "audit", "--json")
    assert (answer.code, json.loads(answer.out)["agrees"]) == (1, False)
    assert "spend total" in place.run("budgets", "audit").out


@pytest.mark.parametrize("verb", [["show"], ["journal"], ["forget", "--yes"]])
def test_a_budget_that_nobody_knows_is_answered_with_those_that_are_known(place: Place, verb: list[str]) -> None:
    """A typing error must lead to the right name."""
    place.ok("budgets", "set", "mail", "--usd", "1")
    answer = place.run("budgets", *verb, "maps")
    assert answer.code == 2
    assert "there is no budget 'maps'; defined are: mail" in answer.err


# -- changing ---------------------------------------------------------------------------------------------------------


def test_a_change_names_the_old_and_the_new_one_and_keeps_the_rest(place: Place) -> None:
    """Raising the amount must not change the time zone of the windows."""
    said = place.ok("budgets", "set", "spend", "--usd", "25", "--every", "day", "--tz", "Europe/Zurich").out
    assert said == "budget spend: 25 usd per day, Europe/Zurich, new\n"
    said = place.ok("budgets", "set", "spend", "--usd", "40").out
    assert said == "budget spend: 40 usd per day, Europe/Zurich (was 25 usd per day, Europe/Zurich)\n"
    assert place.ok("budgets", "set", "spend", "--usd", "40").out.endswith("as before\n")
    told = place.json("budgets", "set", "spend", "--overdraft", "2.5", "--over", "fail")
    assert (told["before"]["overdraft"], told["after"]["overdraft"]) == ("0", "2.5")
    assert (told["after"]["limit"], told["after"]["every"], told["after"]["over"]) == ("40", "day", "fail")
    told = place.json("budgets", "set", "spend", "--amount", "50")
    assert (told["after"]["limit"], told["after"]["unit"], told["after"]["overdraft"]) == ("50", "usd", "2.5")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "budget spend: has no amount; give --usd 25"),
        (["--every", "day"], "budget spend: has no amount"),
        (["--usd", "much"], "budget spend: usd: must be a number"),
        (["--usd", "0.0000001"], "must not be finer than a millionth"),
        (["--usd", "1", "--every", "fortnight"], "budget spend: every: must be one of hour, day, week, month, total"),
        (["--usd", "1", "--tz", "Mars"], "budget spend: tz: unknown time zone 'Mars'"),
        (["--usd", "1", "--amount", "2"], "not both"),
        (["--amount", "2"], "budget spend: has no amount"),
        (["--amount", "2", "--unit", "abc"], "budget spend: abc: is not a known currency"),
        (["--amount", "2", "--unit", "every"], "'every' is not a unit"),
        (["--amount", "2", "--unit", "a b c d"], "is not a unit"),
        (["--usd", "1", "--over", "cry"], "budget spend: over: must be one of wait, fail"),
    ],
)
def test_what_cannot_work_is_refused_by_name(place: Place, argv: list[str], complaint: str) -> None:
    """An error that does not name the option leaves the user guessing."""
    answer = place.run("budgets", "set", "spend", *argv)
    assert answer.code == 2
    assert complaint in answer.err
    assert place.json("budgets") == {"budgets": []}


def test_dollars_do_not_become_tokens(place: Place) -> None:
    """A changed unit would turn 25 dollars into 25 of something else."""
    place.ok("budgets", "set", "spend", "--usd", "1")
    answer = place.run("budgets", "set", "spend", "--amount", "5", "--unit", "tokens")
    assert answer.code == 2
    assert "counts usd, not tokens" in answer.err
    assert "nothing to change" in place.run("budgets", "set", "spend").err


def test_a_budget_is_forgotten_only_on_purpose_and_never_while_something_is_held(place: Place) -> None:
    """The journal is removed with it and cannot be restored."""
    place.ok("budgets", "set", "spend", "--usd", "1")
    assert "pass --yes" in place.run("budgets", "forget", "spend").err
    hold("spend", MICRO, "call")
    assert "has open holds" in place.run("budgets", "forget", "spend", "--yes").err
    with_ledger(lambda ledger: ledger.void("call"))
    assert place.ok("budgets", "forget", "spend", "--yes").out == "budget spend: forgotten, with its journal\n"
    assert place.json("budgets") == {"budgets": []}


def test_a_budget_is_paused_and_resumed(place: Place) -> None:
    """A change of the amount must not resume a paused budget."""
    place.ok("migrate")
    place.ok("budgets", "set", "spend", "--usd", "5", "--every", "day")
    assert place.ok("budgets", "pause", "spend").out == "budget spend: paused\n"
    assert "was already paused" in place.ok("budgets", "pause", "spend").out
    assert place.ok("budgets", "set", "spend", "--usd", "6").out.startswith("budget spend: 6 usd per day, paused")
    assert ", paused" in place.ok("budgets").out
    assert place.json("budgets", "resume", "spend") == {"name": "spend", "paused": False, "version": 4}
    assert place.run("budgets", "pause", "unknown").code == 2
