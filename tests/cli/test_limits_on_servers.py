"""The same commands where servers store limits, budgets and jobs."""

from collections.abc import Iterator

import pytest
from tests.cli.place import Place
from tests.cli.test_waits import GATED
from tests.stores.postgres_support import address, new_name

from leaseway.testing.postgres import PostgresServer
from leaseway.testing.valkey import ValkeyServer, valkey_server


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with valkey_server() as server:
        yield server


@pytest.fixture
def place(place: Place, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A schema of its own that does not exist yet."""
    (place.folder / "tasks.py").write_text(GATED)
    monkeypatch.setenv("LEASEWAY_STORE", address(server, new_name()))
    return place


@pytest.mark.parametrize("argv", [["limits"], ["budgets"], ["tenants"], ["limits", "set", "maps", "1/second"]])
def test_a_schema_that_is_missing_is_not_made_by_looking(place: Place, argv: list[str]) -> None:
    """Reading must not create tables in a database that was named by mistake."""
    for _ in range(2):
        answer = place.run(*argv)
        assert answer.code == 2
        assert "there is no store at" in answer.err


def test_limits_and_budgets_in_postgresql_are_told_like_those_in_a_file(place: Place) -> None:
    """Users move from SQLite to PostgreSQL and must find the same commands."""
    place.ok("migrate")
    assert (place.json("limits"), place.json("budgets"), place.json("tenants")) == (
        {"limits": []},
        {"budgets": []},
        {"tenants": []},
    )
    place.ok("limits", "set", "maps", "100/day", "--start", "empty")
    place.ok("limits", "set", "seats:{tenant}", "--concurrency", "2")
    place.ok("budgets", "set", "spend", "--usd", "25", "--every", "day")
    place.ok("tenants", "set", "acme", "--weight", "2", "--starts", "5/day")
    assert "0 of 5 permits" in place.ok("limits", "explain", "maps").out
    assert "0 of 25 usd" in place.ok("budgets").out
    id_ = place.submit("both", "--tenant", "acme")
    told = place.json("jobs", "why", id_)
    assert [(shut["what"], shut["name"]) for shut in told["waits_for"]] == [("limit", "maps")]
    assert "limit maps: " in place.ok("lanes").out
    assert "defined are: maps, seats:{tenant}, tenant:acme" in place.run("limits", "forget", "nothing").err


def test_limits_in_a_server_of_their_own_are_found_by_their_address(
    place: Place, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading limits must not require the store of the jobs."""
    monkeypatch.setenv("LEASEWAY_LIMITS", valkey.url)
    assert place.json("limits") == {"limits": []}
    assert valkey.command("DBSIZE") == ":0", "looking leaves nothing behind"
    assert place.ok("limits", "set", "maps", "100/day").out == "limit maps: 100/day, new\n"
    assert "0 of 5 permits" in place.ok("limits", "explain", "maps").out
    place.ok("migrate")
    assert place.json("jobs", "why", place.submit("geocode"))["code"] == "limit"
    assert place.ok("limits", "forget", "maps").out == "limit maps: forgotten\n"
