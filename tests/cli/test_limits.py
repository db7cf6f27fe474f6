"""leaseway limits: the output is what is in force, and reading changes nothing."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.cli.place import Place
from tests.cli.test_budgets import with_store
from tests.cli.test_stores import unwritable
from tests.worker.observe import close_lanes, count_closed

from leaseway.cli.open_limiter import look_at
from leaseway.domain.ids import SECOND_US, WorkerId
from leaseway.domain.limits.buckets import Notice
from leaseway.domain.limits.learnt_use import LearntEstimate
from leaseway.domain.limits.limit import Limit, PermitRequest
from leaseway.domain.requirements import Needs, render_needs
from leaseway.domain.workers import Heartbeat
from leaseway.ports.limiter import Limiter
from leaseway.ports.store import Store, require_workers
from leaseway.testing.job_store_contract.fixtures import new_job
from leaseway.wiring import limiter_at
from leaseway.worker.explain_waits import batches

T = TypeVar("T")


def with_limiter(use: Callable[[Limiter], Awaitable[T]], url: str = "sqlite:///work.db") -> T:
    """As another worker would."""

    async def run() -> T:
        limiter = limiter_at(url)
        await limiter.open()
        try:
            return await use(limiter)
        finally:
            await limiter.close()

    return asyncio.run(run())


@pytest.fixture
def place(place: Place) -> Place:
    place.ok("migrate")
    return place


# -- looking ----------------------------------------------------------------------------------------------------------


def test_a_file_for_limits_is_not_made_by_looking(place: Place) -> None:
    """Reading must not create files that a worker of another user could not write."""
    answer = place.ok("limits")
    assert (answer.out, place.json("limits")) == ("", {"limits": []})
    assert "there are no limits yet" in answer.err
    assert not (place.folder / "work.db-limits").exists()


def test_a_limit_is_listed_with_how_it_stands(place: Place) -> None:
    """Operators look here when jobs wait."""
    place.ok("limits", "set", "maps", "100/day", "--concurrency", "4")
    ask = PermitRequest("maps", "maps")
    with_limiter(lambda limiter: limiter.renew_calls([ask], "worker", 3, 60 * SECOND_US))
    with_limiter(
        lambda limiter: limiter.observe(Notice("maps", "maps", 0, throttled=True, retry_after_us=7_300 * SECOND_US))
    )
    (told,) = place.json("limits")["limits"]
    assert told["rates"] == [{"count": 100, "window_seconds": 86_400.0}]
    assert (told["concurrency"], told["in_flight"], told["percent"]) == (4, 3, 70)
    assert told["windows"][0]["permits"] == 0, "a new limit is empty: what was used before is not known"
    assert told["next_free_seconds"] > 7_200
    assert told["closed_until"].endswith("Z")
    words, line = place.ok("limits").out.splitlines()
    assert words.split("  ")[0] == "name"
    assert re.search(r"maps +100/day +0 of 5 +3 of 4 +in 2 h +70 % +in 2 h \(", line)
    assert place.json("limits", "list")["limits"][0]["name"] == "maps"


def test_an_open_circuit_breaker_is_listed_and_explained(place: Place) -> None:
    """Permits are there and nothing leaves: the list must say until when, and the explanation why."""
    place.ok("limits", "set", "maps", "100/minute", "--breaker", "2")
    assert "breaker after 2 failures" in place.ok("limits", "explain", "maps").out
    assert re.search(r"breaker +closed, 0 of 2 failures in a row", place.ok("limits", "explain", "maps").out)
    for _ in range(2):
        with_limiter(lambda limiter: limiter.observe(Notice("maps", "maps", 0, failed=True)))
    assert "in 9 s" in place.ok("limits").out or "in 10 s" in place.ok("limits").out
    assert "open after 2 failures in a row; one call probes the provider" in place.ok("limits", "explain", "maps").out
    (told,) = place.json("limits")["limits"]
    assert (told["breaker"], told["breaker_until"][-1]) == ("open", "Z")
    place.ok("limits", "set", "maps", "--breaker", "none")
    assert place.json("limits")["limits"][0]["breaker"] is None
    assert "breaker" not in place.ok("limits", "explain", "maps").out


def test_learnt_estimates_are_explained(place: Place) -> None:
    """What is reserved for a call must be inspectable, or nobody can say why the limit is used as it is."""
    place.ok("limits", "set", "tpm", "1M/minute", "--unit", "tokens")
    assert "learnt" not in place.ok("limits", "explain", "tpm").out
    estimates = (LearntEstimate("ask", "tpm", 4_130, 200), LearntEstimate("new", "tpm", 10_000, 7))
    other = (LearntEstimate("ask", "other", 100, 200),)
    with_store(lambda store: beat(store, "host:1:a", estimates + other))
    shown = place.ok("limits", "explain", "tpm").out
    assert "95 of 100 calls use at most this share of the tokens that are stated for them" in shown
    assert re.search(r"ask +41\.3% from the last 200 calls of worker host:1:a", shown)
    assert "all of it until 20 calls are known, from the last 7 calls" in shown
    assert [each["kind"] for each in place.json("limits", "explain", "tpm")["learnt"]] == ["ask", "new"]


async def beat(store: Store, name: str, estimates: tuple[LearntEstimate, ...]) -> None:
    await require_workers(store).beat(Heartbeat(worker=WorkerId(name), estimates=estimates))


def test_a_limit_with_fields_stands_for_many_and_one_of_them_can_be_seen(place: Place) -> None:
    """A template has one limit per tenant, and each of them can be used up alone."""
    place.ok("limits", "set", "maps:{tenant}", "100/day", "--start", "empty")
    assert "one for each tenant" in place.ok("limits").out
    assert place.json("limits")["limits"][0]["windows"] is None
    assert "name one to see its state" in place.ok("limits", "explain", "maps:{tenant}").out
    assert "0 of 5 permits" in place.ok("limits", "explain", "maps:acme").out


def test_looking_takes_nothing(place: Place) -> None:
    """Operators poll; that must not use up permits."""
    with_limiter(lambda limiter: limiter.definitions.change(Limit("maps", "100/day").definition))
    ask = PermitRequest("maps", "maps")
    before = with_limiter(lambda limiter: limiter.levels([ask]))[1]
    for argv in (["limits"], ["limits", "explain", "maps"]):
        place.ok(*argv)
    after = with_limiter(lambda limiter: limiter.levels([ask]))[1]
    assert before[0].buckets == after[0].buckets
    assert before[0].since == after[0].since


def test_many_limits_are_looked_at_a_few_at_a_time_and_one_that_is_gone_hides_none(place: Place) -> None:
    """One call reads 16 names, and a limit may be removed between two calls."""
    names = [f"limit-{number:02}" for number in range(20)]
    asks = [PermitRequest(name, name) for name in names]
    assert [len(batch) for batch in batches([*asks, PermitRequest("limit-19", "limit-{x}")])] == [16, 4, 1]
    for name in names:
        with_limiter(lambda limiter, name=name: limiter.definitions.change(Limit(name, "100/day").definition))  # type: ignore[misc]
    seen = with_limiter(lambda limiter: look_at(limiter, [*asks[:5], PermitRequest("gone", "gone"), *asks[5:]]))
    assert list(seen) == asks
    assert all(told["windows"][0]["permits"] == 5 for told in place.json("limits")["limits"])


def test_who_may_not_write_the_file_sees_at_least_what_is_defined(place: Place) -> None:
    """A read-only user must not get an error instead of the definitions."""
    place.ok("limits", "set", "maps", "100/day")
    with unwritable(place.folder / "work.db-limits"):
        answer = place.ok("limits")
        assert "100/day" in answer.out
        assert "100/day: at most 100" in place.ok("limits", "explain", "maps").out
        refused = place.run("limits", "set", "maps", "200/day")
    assert refused.code == 2
    assert "read-only" in refused.err


def test_a_file_that_was_never_finished_holds_no_limits(place: Place) -> None:
    """The process that created the file died before the first table; the next worker creates the rest."""
    (place.folder / "work.db-limits").touch()
    assert place.json("limits") == {"limits": []}
    assert (place.folder / "work.db-limits").read_bytes() == b""


# -- explaining -------------------------------------------------------------------------------------------------------


def test_the_sum_that_makes_a_limit_hold_is_shown_with_its_numbers(place: Place) -> None:
    """A reader must be able to check the arithmetic."""
    place.ok("limits", "set", "maps", "100/minute")
    out = place.ok("limits", "explain", "maps").out
    assert "100/minute: at most 100 in any 60 s" in out
    assert "5 permits can be used at once" in out
    assert "then one every 0.641 s" in out
    assert "5 + 1.561 * (60 + 1 + 0.5) = 101 <= 101 = L + 1" in out
    assert "93.66 in 60 s, 93.6 % of what the provider allows" in out
    assert "full after 3.2 s" in out


@pytest.mark.parametrize("rate", ["1/second", "3/second", "100/minute", "2000/day", "1m/day", "7 per 13 s"])
def test_the_sum_holds_for_every_rate(place: Place, rate: str) -> None:
    """The explanation is a proof; one wrong number makes it worthless."""
    place.ok("limits", "set", "maps", rate)
    (told,) = place.json("limits", "explain", "maps")["sums"]
    span = (
        told["delay_seconds"] + told["lease_seconds"] + place.json("limits")["limits"][0]["rates"][0]["window_seconds"]
    )
    assert told["most_in_window"] == pytest.approx(told["burst"] + span / told["permit_seconds"])
    assert told["most_in_window"] <= told["allowed_in_window"] + 1
    assert 0 < told["sustained_share"] <= 1


def test_a_limit_that_nobody_knows_is_answered_with_those_that_are_known(place: Place) -> None:
    """A typing error must lead to the right name."""
    assert "there is no limit 'maps'; defined are: none" in place.run("limits", "explain", "maps").err
    place.ok("limits", "set", "mail", "1/second")
    for argv in (["explain", "maps"], ["forget", "maps"]):
        answer = place.run("limits", *argv)
        assert answer.code == 2
        assert "there is no limit 'maps'; defined are: mail" in answer.err


# -- changing ---------------------------------------------------------------------------------------------------------


def test_a_change_names_the_old_and_the_new_one_and_is_in_force(place: Place) -> None:
    """The old value is what the user needs to undo a mistake."""
    assert place.ok("limits", "set", "maps", "100/minute", "3/second").out == "limit maps: 3/second, 100/minute, new\n"
    said = place.ok("limits", "set", "maps", "200/minute").out
    assert said == "limit maps: 200/minute (was 3/second, 100/minute)\n"
    assert place.ok("limits", "set", "maps", "200/minute").out == "limit maps: 200/minute, as before\n"
    (known,) = with_limiter(lambda limiter: limiter.definitions.all())
    assert known[0] == Limit("maps", "200/minute").definition


def test_what_is_not_named_stays_as_it_is(place: Place) -> None:
    """Raising a rate must not remove a cap."""
    place.ok("limits", "set", "maps", "100/minute", "--concurrency", "5", "--burst", "0.1", "--cost-max", "4")
    place.ok("limits", "set", "maps", "200/minute", "--lease", "2s", "--delay", "1s")
    told = place.json("limits", "set", "maps", "--concurrency", "none")
    assert (told["before"]["concurrency"], told["after"]["concurrency"]) == (5, None)
    wanted = Limit("maps", "200/minute", burst=0.1, cost_max=4, lease=2, delay=1).definition
    assert with_limiter(lambda limiter: limiter.definitions.all())[0][0] == wanted
    assert place.ok("limits", "set", "maps", "--burst", "0.05").out == (
        "limit maps: 200/minute, cost at most 4, lease 2 s, delay 1 s "
        "(was 200/minute, burst 0.1, cost at most 4, lease 2 s, delay 1 s)\n"
    )


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["100/fortnight"], "limit maps: '100/fortnight': 'fortnight' is not a unit of time"),
        (["many"], "limit maps: cannot read the rate 'many'"),
        ([], "limit maps: limits nothing; give a rate"),
        (["--concurrency", "none"], "limit maps: limits nothing"),
        (["1/second", "--concurrency", "0"], "limit maps: concurrency: must be between 1"),
        (["1/second", "--concurrency", "few"], "'few' is not a whole number; write for example 5, or none"),
        (["1/second", "--burst", "2"], "limit maps: burst: must be between 0 and 1"),
        (["1/second", "--cost-max", "2"], "limit maps: cost_max: is 2, more than 1/second ever allows"),
        (["1/second", "--lease", "2h"], "limit maps: lease: must be between"),
    ],
)
def test_a_number_that_cannot_work_is_refused_by_name(place: Place, argv: list[str], complaint: str) -> None:
    """An error that does not name the option leaves the user guessing."""
    answer = place.run("limits", "set", "maps", *argv)
    assert answer.code == 2
    assert complaint in answer.err
    assert place.json("limits") == {"limits": []}


def test_a_change_without_anything_to_change_is_a_mistake(place: Place) -> None:
    """Success without a change would let the user believe in one."""
    place.ok("limits", "set", "maps", "1/second")
    assert "nothing to change" in place.run("limits", "set", "maps").err


def test_the_caps_of_a_tenant_are_changed_where_its_weight_is(place: Place) -> None:
    """Otherwise the store and the limiter would have different caps."""
    answer = place.run("limits", "set", "tenant:acme", "1/second")
    assert answer.code == 2
    assert "leaseway tenants set acme" in answer.err


def test_a_forgotten_limit_is_gone(place: Place) -> None:
    """A removed limit that still grants permits would hide that jobs depend on it."""
    place.ok("limits", "set", "maps", "1/second")
    assert place.ok("limits", "forget", "maps").out == "limit maps: forgotten\n"
    assert place.json("limits") == {"limits": []}
    place.ok("limits", "set", "maps", "1/second")
    assert place.json("limits", "forget", "maps") == {"name": "maps", "forgotten": True}


# -- where ------------------------------------------------------------------------------------------------------------


def test_limits_may_be_kept_elsewhere_than_the_jobs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teams with high rates keep limits in Valkey and jobs in PostgreSQL."""
    place.ok("migrate", "--store", "sqlite:///other.db")
    place.ok("limits", "set", "maps", "1/second", "--limits", "sqlite:///other.db")
    assert place.json("limits") == {"limits": []}
    assert len(place.json("limits", "--limits", "sqlite:///other.db")["limits"]) == 1
    monkeypatch.setenv("LEASEWAY_LIMITS", "sqlite:///other.db")
    assert len(place.json("limits")["limits"]) == 1


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("memory://", "exists only within one process"),
        ("oracle://x", "keeps no limits"),
        ("sqlite:///nowhere.db", "there is no store at sqlite:///nowhere.db"),
        ("work.db", "did you mean sqlite:///work.db?"),
    ],
)
def test_an_address_that_keeps_no_limits_is_explained(place: Place, url: str, complaint: str) -> None:
    """A URL without a limiter must be told apart from an empty limiter."""
    for argv in (["limits"], ["limits", "set", "maps", "1/second"]):
        answer = place.run(*argv, "--limits", url)
        assert answer.code == 2
        assert complaint in answer.err


def test_a_server_that_is_not_there_is_unavailable_and_not_a_mistake(place: Place) -> None:
    """Exit code 3 tells a script that the same command may succeed later."""
    answer = place.run("limits", "--limits", "redis://127.0.0.1:1/0")
    assert answer.code == 3


def test_a_limit_is_paused_and_resumed(place: Place) -> None:
    """A change of the rate must not resume a paused limit."""
    place.ok("limits", "set", "maps", "100/minute")
    assert place.ok("limits", "pause", "maps").out == "limit maps: paused\n"
    assert "was already paused" in place.ok("limits", "pause", "maps").out
    assert place.ok("limits", "set", "maps", "50/minute").out.startswith("limit maps: 50/minute, paused")
    assert "when it is resumed" in place.ok("limits").out
    assert place.json("limits", "resume", "maps") == {"name": "maps", "paused": False, "version": 4}
    assert place.run("limits", "pause", "unknown").code == 2


def test_the_start_of_a_limit_is_set_shown_and_removed(place: Place) -> None:
    """A new file starts full. A user whose old system called the provider until now must be able to say so."""
    place.ok("limits", "set", "maps", "100/day")
    assert "5 of 5 permits" in place.ok("limits", "explain", "maps").out
    assert "100/day, starts empty" in place.ok("limits", "set", "mail", "100/day", "--start", "empty").out
    assert "0 of 5 permits" in place.ok("limits", "explain", "mail").out
    assert (
        "100/day, starts full (was 100/day, starts empty)" in place.ok("limits", "set", "mail", "--start", "full").out
    )
    assert place.ok("limits", "set", "mail", "--start", "none").out.startswith("limit mail: 100/day (was")


@pytest.mark.parametrize("limits", [(), ("--limits", "sqlite:///limits.db")])
@pytest.mark.parametrize("verb", [["set", "maps", "9/second"], ["resume", "maps"], ["forget", "maps"]])
def test_a_command_opens_the_lanes_of_its_limit(place: Place, verb: list[str], limits: tuple[str, ...]) -> None:
    """The jobs of a raised limit waited for up to a minute, because a worker had closed their lane. The limits may be
    kept elsewhere than the jobs."""
    if limits:
        place.ok("migrate", "--store", "sqlite:///limits.db")
    place.ok("limits", "set", "maps", "1/day", *limits)
    place.ok("limits", "pause", "maps", *limits)
    assert with_store(submit_and_close) == 1
    place.ok("limits", *verb, *limits)
    assert with_store(count_closed) == (1 if verb[0] == "set" else 0), "a paused limit keeps its lanes closed"


async def submit_and_close(store: Store) -> int:
    await store.jobs.submit([new_job(1, needs=render_needs(Needs((PermitRequest("maps", "maps"),))))])
    return await close_lanes(store)


def test_limits_can_be_changed_where_the_jobs_are_not_in_reach(place: Place) -> None:
    """The limiter may be the only server that the operator's machine reaches."""
    place.ok("migrate", "--store", "sqlite:///limits.db")
    there = ("--limits", "sqlite:///limits.db", "--store", "sqlite:///elsewhere.db")
    assert "are tried again within a minute" in place.ok("limits", "set", "maps", "1/day", *there).err
    assert not (place.folder / "elsewhere.db").exists()
