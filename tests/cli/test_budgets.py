"""leaseway budgets: amounts are exact, and nothing is deleted by accident."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, time, timedelta
from typing import TypeVar

import pytest
from tests.cli.place import Place
from tests.worker.observe import close_lanes, count_closed

from leaseway import App, Budget, Context
from leaseway.domain.budgets.budget import MICRO, Charge
from leaseway.domain.budgets.rebooking import hold_id
from leaseway.domain.exchange import Exchange, Wants
from leaseway.domain.ids import JobId, Token, WorkerId
from leaseway.ports.ledger import Ledger
from leaseway.ports.store import Store
from leaseway.wiring import open_ledger, store_at

T = TypeVar("T")
URL = "sqlite:///work.db"
HOUR_US = 3_600_000_000


def with_store(use: Callable[[Store], Awaitable[T]]) -> T:
    """As another worker would."""

    async def run() -> T:
        store = store_at(URL)
        await store.open()
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


def with_ledger(use: Callable[[Ledger], Awaitable[T]]) -> T:
    return with_store(lambda store: use(open_ledger(store, URL)))


def spend(name: str, micros: int, id_: str = "call-1", budget: str | None = None) -> None:
    async def call(ledger: Ledger) -> None:
        await ledger.hold(id_, ((Charge(name, budget or name), micros),), HOUR_US, dispatch=True)
        await ledger.settle(id_, {})

    with_ledger(call)


def hold(name: str, micros: int, id_: str, budget: str | None = None) -> None:
    with_ledger(lambda ledger: ledger.hold(id_, ((Charge(name, budget or name), micros),), HOUR_US))


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
        (["--usd", "1", "--every", "fortnight"], "every: must be one of minute, hour, day, week, month, total"),
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


def test_a_budget_is_forgotten_only_on_purpose_and_never_while_calls_are_under_way(place: Place) -> None:
    """The journal is removed with it and cannot be restored."""
    place.ok("budgets", "set", "spend", "--usd", "1")
    assert "pass --yes" in place.run("budgets", "forget", "spend").err
    with_ledger(lambda ledger: ledger.hold("call", ((Charge("spend", "spend"), MICRO),), HOUR_US, dispatch=True))
    assert "has calls under way" in place.run("budgets", "forget", "spend", "--yes").err
    with_ledger(lambda ledger: ledger.settle("call", {}))
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
    answer = {"name": "spend", "paused": False, "version": 4, "brought_forward": 0}
    assert place.json("budgets", "resume", "spend") == answer
    assert place.run("budgets", "pause", "unknown").code == 2


# -- jobs that wait for a later window ------------------------------------------------------------------------------


def wait_for_tomorrow(tenant: str | None = None) -> str:
    """A job that waits for tomorrow, because its budget is used up today. `tenant`: the budget is that of a tenant."""
    budget = "spend" if tenant is None else "spend:{tenant}"
    name = budget.format(tenant=tenant)
    owner = tenant or "default"

    tomorrow = datetime.combine(datetime.now(UTC).date() + timedelta(days=1), time(), UTC)

    async def submit() -> JobId:
        async with App(URL) as app:

            @app.job(budget=Budget(budget, usd=1), cost_usd=1)
            async def call(ctx: Context) -> None: ...

            return (await call.options(run_at=tomorrow, tenant=owner).submit()).id

    job = asyncio.run(submit())
    spend(name, MICRO, f"call of {owner}", budget)
    hold(name, MICRO, hold_id(owner, job, 1, 1), budget)
    return job


def test_raising_a_budget_says_how_many_jobs_it_brings_forward(place: Place) -> None:
    """56 jobs waited for two days although the raised budget had room, and no command brought them forward."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    id_ = wait_for_tomorrow()
    assert place.ok("budgets", "rebook", "spend").out == "budget spend: brought forward 0 jobs\n"
    assert "brought forward 1 job that waited" in place.ok("budgets", "set", "spend", "--usd", "2").out
    assert place.json("jobs", "why", id_)["code"] == "ready"
    assert place.json("budgets", "rebook", "spend") == {"name": "spend", "brought_forward": 0}
    assert place.run("budgets", "rebook", "unknown").code == 2


@pytest.mark.parametrize(
    "verb", [["set", "spend", "--usd", "2"], ["rebook", "spend"], ["resume", "spend"], ["forget", "spend", "--yes"]]
)
def test_scripts_read_how_many_jobs_were_brought_forward(place: Place, verb: list[str]) -> None:
    """A script that raises a budget decides by this number whether it has raised it enough."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    wait_for_tomorrow()
    if verb[0] == "resume":
        place.ok("budgets", "pause", "spend")
    if verb[0] in ("resume", "rebook"):
        raise_elsewhere(2)
    assert place.json("budgets", *verb)["brought_forward"] == 1


def test_the_budget_of_one_tenant_is_rebooked_by_its_own_name(place: Place) -> None:
    """`jobs why` and the list of budgets name the instance, and the jobs of other tenants must stay where they are."""
    place.ok("budgets", "set", "spend:{tenant}", "--usd", "1", "--every", "day")
    ours, theirs = wait_for_tomorrow("acme"), wait_for_tomorrow("bolt")
    raise_elsewhere(2, "spend:{tenant}")
    assert place.ok("budgets", "rebook", "spend:acme").out == "budget spend:acme: brought forward 1 job\n"
    assert place.json("jobs", "why", ours)["code"] == "ready"
    assert place.json("jobs", "why", theirs)["code"] == "budget"
    assert place.json("budgets", "rebook", "spend:{tenant}")["brought_forward"] == 1


def raise_elsewhere(usd: int, name: str = "spend") -> None:
    """As code that declares a higher budget does: no command is run."""
    with_ledger(lambda ledger: ledger.definitions.change(Budget(name, usd=usd, every="day").definition))


def test_rebooking_says_how_many_jobs_it_brings_forward(place: Place) -> None:
    """Room that appeared without a command is used when the operator asks for it."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    id_ = wait_for_tomorrow()
    raise_elsewhere(2)
    assert place.ok("budgets", "rebook", "spend").out == "budget spend: brought forward 1 job\n"
    assert place.json("jobs", "why", id_)["code"] == "ready"


def test_resuming_a_budget_brings_forward_the_jobs_that_fit(place: Place) -> None:
    """While it was paused, no job could use what was added to it."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    id_ = wait_for_tomorrow()
    place.ok("budgets", "pause", "spend")
    assert "brought forward" not in place.ok("budgets", "set", "spend", "--usd", "2").out
    assert "brought forward 1 job that waited" in place.ok("budgets", "resume", "spend").out
    assert place.json("jobs", "why", id_)["code"] == "ready"


def test_a_corrected_hold_brings_forward_the_jobs_that_fit_now(place: Place) -> None:
    """The money that a call did not cost must not stay unused until tomorrow."""
    place.ok("budgets", "set", "spend", "--usd", "2", "--every", "day")
    capture("spend", MICRO, "lost")
    id_ = wait_for_tomorrow()
    assert place.json("jobs", "why", id_)["code"] == "budget"
    place.ok("budgets", "settle", "lost", "--usd", "0", "--by", "alice")
    assert place.json("jobs", "why", id_)["code"] == "ready"


@pytest.mark.parametrize("verb", [["set", "spend", "--usd", "9"], ["rebook", "spend"], ["forget", "spend", "--yes"]])
def test_a_command_opens_the_lanes_of_its_budget(place: Place, verb: list[str]) -> None:
    """The jobs of a raised budget waited for up to a minute, because a worker had closed their lane."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    wait_for_tomorrow()
    assert with_store(close_lanes) == 1
    place.ok("budgets", *verb)
    assert with_store(count_closed) == 0


def test_pausing_a_budget_opens_no_lane(place: Place) -> None:
    """Workers would claim its jobs, be refused, and close the lanes again."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    wait_for_tomorrow()
    assert with_store(close_lanes) == 1
    place.ok("budgets", "pause", "spend")
    assert with_store(count_closed) == 1


def test_why_names_the_budget_and_the_window_for_which_a_job_waits(place: Place) -> None:
    """A job that "waits for its time" does not show that a raised budget would let it run now."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    id_ = wait_for_tomorrow()
    (_, tomorrow) = place.json("budgets", "show", "spend")["windows"]
    told = place.json("jobs", "why", id_)
    assert told["code"] == "budget"
    assert "It waits for budget spend: its call may cost 1 usd" in told["text"]
    assert f"booked in the window {tomorrow['window']}." in told["text"]
    # Each command is on a line of its own, to be copied.
    assert place.ok("jobs", "why", id_).out.splitlines()[-2:] == told["advice"].splitlines()
    assert told["advice"].splitlines()[1] == "If there is room by now: leaseway budgets rebook spend"


def test_forgetting_a_budget_brings_forward_the_jobs_that_wait_for_it(place: Place) -> None:
    """There is no window any more for which they could wait."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    id_ = wait_for_tomorrow()
    assert "brought forward 1 job" in place.ok("budgets", "forget", "spend", "--yes").out
    assert "it is not defined" in place.json("jobs", "why", id_)["text"]


def test_a_cancelled_job_releases_what_is_booked_for_it(place: Place) -> None:
    """The amount stayed reserved until tomorrow, for a job that would never run."""
    place.ok("budgets", "set", "spend", "--usd", "1", "--every", "day")
    id_ = wait_for_tomorrow()
    place.ok("jobs", "cancel", id_)
    assert [window["held"] for window in place.json("budgets", "show", "spend")["windows"]] == ["0", "0"]


def test_why_says_that_workers_are_busy_with_other_lanes(place: Place) -> None:
    """The advice to start a worker would be wrong: one serves this queue, and has not come to this lane."""

    async def submit() -> JobId:
        async with App(URL) as app:

            @app.job
            async def call() -> None: ...

            await call.options(tenant="acme").submit()
            return (await call.options(tenant="bolt").submit()).id

    async def claim(store: Store) -> tuple[str, ...]:
        reply = await store.jobs.exchange(Exchange(WorkerId("w"), wants=Wants(("default",), 1, Token("t"))))
        return tuple(lease.tenant for lease in reply.leases)

    waiting = asyncio.run(submit())
    assert with_store(claim) == ("acme",)
    told = place.json("jobs", "why", waiting)
    assert told["advice"].startswith("Jobs of other lanes of this queue that workers hold: 1; lanes take turns.")


# -- corrections ------------------------------------------------------------------------------------------------------


def capture(name: str, micros: int, *ids: str) -> None:
    """Calls whose worker died."""

    async def lose(ledger: Ledger) -> None:
        for id_ in ids:
            await ledger.hold(id_, ((Charge(name, name), micros),), 1, dispatch=True)
        await ledger.expire(10)

    with_ledger(lose)


def test_captured_holds_are_found_and_corrected_with_the_name_of_the_operator(place: Place) -> None:
    """After 100 kills 18 % of a budget was charged for calls that were never made, and no command released it."""
    place.ok("budgets", "set", "spend", "--usd", "25", "--every", "month")
    assert "no open and no captured holds" in place.ok("budgets", "holds", "spend").err
    capture("spend", 5 * MICRO, "job:1:1", "job:1:2", "job:1:3")
    hold("spend", MICRO, "open")
    out = place.ok("budgets", "holds", "spend").out
    assert re.search(r"^open +held +1 usd", out, re.MULTILINE)
    assert re.search(r"^job:1:1 +captured +5 usd", out, re.MULTILINE)
    told = place.json("budgets", "holds", "spend")["holds"]
    charged = {each["hold"]: (each["state"], each["lines"][0]["charged"]) for each in told}
    assert charged == {"open": ("held", None), **{f"job:1:{n}": ("captured", "5") for n in (1, 2, 3)}}
    evidence = ("--by", "alice", "--reason", "usage report of 3 May")
    answer = place.ok("budgets", "settle", "job:1:1", "job:1:2", "--usd", "0.5", *evidence)
    assert re.search(r"^hold job:1:1: spend \d{4}-\d\d: 0\.5 usd \(was 5\)$", answer.out, re.MULTILINE)
    (settled,) = place.json("budgets", "settle", "job:1:3", "--amount", "0", "--unit", "usd", *evidence)["settled"]
    assert (settled["by"], settled["corrections"][0]["after"]) == ("alice", "0")
    (told,) = place.json("budgets")["budgets"]
    assert told["windows"][0]["spent"] == "1"
    entries = place.json("budgets", "journal", "spend")["entries"]
    assert [(each["by"], each["before"], each["spent"]) for each in entries if each["kind"] == "correct"] == [
        ("alice", "5", "-5"), ("alice", "5", "-4.5"), ("alice", "5", "-4.5"),
    ]  # fmt: skip
    assert "alice: 5 to 0.50, usage report of 3 May" in place.ok("budgets", "journal", "spend").out
    assert place.json("budgets", "audit")["agrees"] is True


def test_a_correction_that_cannot_be_made_says_why(place: Place) -> None:
    """A second correction, or one of a call that settled itself, would falsify the books."""
    place.ok("budgets", "set", "spend", "--usd", "25")
    spend("spend", MICRO, "settled")
    assert "was settled by its call" in place.run("budgets", "settle", "settled", "--usd", "0").err
    assert "there is no hold 'other'" in place.run("budgets", "settle", "other", "--usd", "0").err
    capture("spend", MICRO, "a")
    assert "must be between 0" in place.run("budgets", "settle", "a", "--usd", "-1").err
    assert "give --usd 0.004" in place.run("budgets", "settle", "a").err
    assert "give --usd 0.004" in place.run("budgets", "settle", "a", "--amount", "1").err
    place.ok("budgets", "settle", "a", "--usd", "0", "--by", "alice")
    place.ok("budgets", "settle", "a", "--usd", "0", "--by", "alice")
    refused = place.run("budgets", "settle", "a", "--usd", "0.5").err
    assert "hold a: was settled by alice before; a hold is corrected once" in refused
