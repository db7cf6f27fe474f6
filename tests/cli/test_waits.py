"""leaseway jobs why, leaseway lanes: a job behind a closed gate must not look like one without a worker."""

import socket
import time

import pytest
from tests.cli.place import Place
from tests.cli.test_budgets import spend
from tests.cli.test_limits import with_limiter
from tests.sqlite_files import open_sqlite

from leaseway.domain.budgets.budget import MICRO
from leaseway.domain.ids import SECOND_US, JobId
from leaseway.domain.limits.buckets import Notice
from leaseway.domain.limits.limit import PermitRequest
from leaseway.stores.sqlite.reads import SqliteReads

GATED = """
from leaseway import App
from leaseway.domain.budgets.budget import Budget
from leaseway.domain.limits.limit import Limit

app = App("sqlite:///work.db")
MAPS, SPEND = Limit("maps", "100/day"), Budget("spend", usd=25, every="month")
SEATS = Limit("seats:{tenant}", concurrency=2)


@app.job(limits=MAPS)
async def geocode(x: int = 0) -> None: ...


@app.job(budget=SPEND, cost=1)
async def buy(x: int = 0) -> None: ...


@app.job(limits=[MAPS, SEATS], budget=SPEND, cost=1)
async def both(x: int = 0) -> None: ...


@app.job(limits=SEATS)
async def sit(x: int = 0) -> None: ...


@app.job
async def free(x: int = 0) -> None: ...
"""


@pytest.fixture
def place(place: Place) -> Place:
    """The store as it is after a worker has declared its definitions."""
    (place.folder / "tasks.py").write_text(GATED)
    place.ok("migrate")
    place.ok("limits", "set", "maps", "100/day", "--start", "empty")
    place.ok("limits", "set", "seats:{tenant}", "--concurrency", "2")
    place.ok("budgets", "set", "spend", "--usd", "25", "--every", "month")
    return place


def test_a_used_rate_is_named_with_the_time_of_the_next_token(place: Place) -> None:
    """The user must learn which limit blocks the job, and for how long."""
    id_ = place.submit("geocode")
    told = place.json("jobs", "why", id_)
    assert (told["code"], told["text"]) == (
        "limit",
        "It waits for limit maps: 100/day starts empty, as its definition says.",
    )
    (shut,) = told["waits_for"]
    assert (shut["what"], shut["name"]) == ("limit", "maps")
    assert 0 < shut["wait_seconds"] < 1_000
    out = place.ok("jobs", "why", id_).out
    assert "The next permit is free in 1" in out
    assert "Start a worker" not in out


def test_a_provider_that_asked_to_wait_is_the_reason(place: Place) -> None:
    """A 429 of the provider needs another reaction than a limit that is used up."""
    id_ = place.submit("geocode")
    with_limiter(
        lambda limiter: limiter.observe(Notice("maps", "maps", 0, throttled=True, retry_after_us=7_300 * SECOND_US))
    )
    out = place.ok("jobs", "why", id_).out
    assert "the provider asked for a wait" in out or "100/day is used up, and it is slowed to 70 %" in out


def test_a_spent_budget_is_named_with_the_next_window(place: Place) -> None:
    """The user decides between waiting and raising the budget."""
    id_ = place.submit("buy")
    assert place.json("jobs", "why", id_)["code"] == "ready"
    spend("spend", 25 * MICRO)
    told = place.json("jobs", "why", id_)
    assert (told["code"], told["text"]) == ("budget", "It waits for budget spend: 25 of 25 usd are spent.")
    assert told["until"] == place.json("budgets")["budgets"][0]["windows"][0]["end"]
    assert "A window with room begins in" in place.ok("jobs", "why", id_).out


def test_taken_seats_of_ones_own_tenant_are_a_reason_and_those_of_others_are_not(place: Place) -> None:
    """Another tenant's load must neither be shown nor be blamed."""
    place.ok("limits", "set", "maps", "--concurrency", "9")
    ours, theirs = place.submit("both", "--tenant", "acme"), place.submit("both")
    seats = PermitRequest("seats:acme", "seats:{tenant}")
    with_limiter(lambda limiter: limiter.renew_calls([seats], "worker", 2, 60 * SECOND_US))
    names = [[shut["name"] for shut in place.json("jobs", "why", id_)["waits_for"]] for id_ in (ours, theirs)]
    assert names == [["maps", "seats:acme"], ["maps"]]
    assert "It waits for limit seats:acme as well." in place.ok("jobs", "why", ours).out


def test_a_capped_tenant_is_named_as_such(place: Place) -> None:
    """A cap is changed with another command than a limit."""
    place.ok("tenants", "set", "acme", "--starts", "5/day")
    id_ = place.submit("free", "--tenant", "acme")
    with_limiter(lambda limiter: limiter.acquire([PermitRequest("tenant:acme", "tenant:acme")]))
    assert "It waits for tenant acme: 5/day is used up." in place.ok("jobs", "why", id_).out
    assert place.json("jobs", "why", place.submit("free"))["code"] == "ready"


def test_a_limit_that_nobody_has_defined_needs_a_worker_or_an_operator(place: Place) -> None:
    """Before the first worker of an app has started, its limits are unknown."""
    place.ok("limits", "forget", "maps")
    out = place.ok("jobs", "why", place.submit("geocode")).out
    assert "It waits for limit maps: it is not defined." in out
    assert "leaseway limits set maps" in out


def test_a_limiter_out_of_reach_does_not_hide_the_job(place: Place) -> None:
    """Workers may reach a limiter that the operator cannot reach."""
    id_ = place.submit("geocode")
    answer = place.ok("jobs", "why", id_, "--limits", "redis://127.0.0.1:1/0")
    assert "It waits for limit maps: it cannot be read from here (" in answer.out
    assert "cannot be read" in place.ok("lanes", "--limits", "redis://127.0.0.1:1/0").out


def test_a_job_for_later_asks_no_limiter(place: Place) -> None:
    """The limiter may be unreachable, and it does not matter for a job that is not due."""
    told = place.json("jobs", "why", place.submit("both", "--delay", "1h"), "--limits", "redis://127.0.0.1:1/0")
    assert (told["code"], told["waits_for"]) == ("scheduled", [])
    assert told["text"] == "It waits for its time to run, which was set when it was submitted."


def test_lanes_tell_what_they_wait_for_only_if_one_is_shut(place: Place) -> None:
    """An empty column would cost width on every screen."""
    place.submit("free")
    assert "waits for" not in place.ok("lanes").out
    place.submit("geocode")
    place.submit("geocode", "--delay", "1h", "--queue", "later")
    table = place.ok("lanes").out.splitlines()
    assert table[0].endswith("waits for")
    assert [("limit maps: 100/day starts empty, as its definition says, " in line) for line in table[1:4]] == [
        False,
        True,
        False,
    ]
    told = {(lane["queue"], bool(lane["needs"])): lane["waits_for"] for lane in place.json("lanes")["lanes"]}
    assert (told["default", False], told["later", True]) == ([], [])
    assert told["default", True][0]["name"] == "maps"


def test_lanes_without_needs_ask_no_limiter(place: Place) -> None:
    """Most stores have no limits; reading them must not require a limiter."""
    place.submit("free")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        nobody.setblocking(False)
        place.ok("lanes", "--limits", f"redis://127.0.0.1:{nobody.getsockname()[1]}/0")
        with pytest.raises(BlockingIOError):
            nobody.accept()


def test_a_worker_keeps_limits_where_it_is_told_to(place: Place) -> None:
    """An explicit URL wins; otherwise half of the fleet would count without the other half."""
    place.ok("migrate", "--store", "sqlite:///other.db")
    place.submit("sit")
    answer = place.process("work", "tasks", "--until-empty", "--limits", "sqlite:///other.db")
    assert answer.code == 0, answer.err
    told = place.json("limits", "--limits", "sqlite:///other.db")["limits"]
    assert "seats:{tenant}" in [limit["name"] for limit in told]


def test_a_session_of_the_database_that_has_locked_the_job_is_the_reason(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More workers would not help: no one can claim it until the transaction ends."""

    async def locked_by(reads: SqliteReads, job: JobId) -> str:
        return "psql, process 7"

    monkeypatch.setattr(SqliteReads, "locked_by", locked_by)
    told = place.json("jobs", "why", place.submit("sit"))
    assert (told["code"], "psql, process 7" in told["text"]) == ("session", True)


def test_a_lane_that_a_worker_has_closed_is_the_reason(place: Place) -> None:
    """The limiter may have room again while the lane is still closed: no worker tries it before its time, so the advice
    to start one would be wrong."""
    id_ = place.submit("sit")
    with open_sqlite(place.folder / "work.db") as connection:
        closed = (time.time_ns() // 1_000 + 50 * SECOND_US, "limit seats:default: its concurrency limit is reached")
        connection.execute("UPDATE lanes SET closed_until = ?, closed_why = ?", closed)
    told = place.json("jobs", "why", id_)
    assert told["code"] == "lane"
    assert told["text"] == (
        "It waits for lane default: a worker found it closed (limit seats:default: its concurrency limit is reached)."
    )
    assert [shut["what"] for shut in told["waits_for"]] == ["lane"]
    out = place.ok("jobs", "why", id_).out
    assert "A worker tries it again in" in out
    assert "Start a worker" not in out
