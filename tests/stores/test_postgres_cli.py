"""leaseway migrate, doctor and other commands against a server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.place import Place
from tests.stores.postgres_support import address, new_name, new_role, value

from leaseway.ports.store import require_inspection
from leaseway.stores.postgres.health import SNAPSHOT_SECONDS_MAX, room, sizes, snapshot
from leaseway.stores.postgres.schema import MIGRATIONS
from leaseway.testing.postgres import PostgresServer
from leaseway.testing.server import free_port

SECRET = "hush-hush"
HELD = 5
"""Sessions that the test keeps open, so that a reader of `pg_stat_activity` must see several."""


class ServerPlace(Place):
    """The command line in a folder, with its store on the server."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], server: PostgresServer) -> None:
        super().__init__(folder, capsys)
        self.server = server
        self.schema = new_name()
        self.url = address(server, self.schema)

    def ask(self, sql: str, *values: object) -> Any:
        return asyncio.run(value(self.server, sql.format(self.schema), *values))

    def findings(self, *more: str) -> dict[str, dict[str, str]]:
        told = self.run("doctor", "--json", *more).json["findings"]
        return {finding["check"]: finding for finding in told}


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: PostgresServer
) -> Iterator[ServerPlace]:
    place = ServerPlace(tmp_path, capsys, server)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LEASEWAY_STORE", place.url)
    for name in ("LEASEWAY_TRACEBACK", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.MonkeyPatch.context() as modules:
        modules.delitem(__import__("sys").modules, "tasks", raising=False)
        yield place
        __import__("sys").modules.pop("tasks", None)


# -- what may be wrong ------------------------------------------------------------------------------------------------

LOOKING = [["jobs", "list"], ["lanes"], ["jobs", "cancel", "x"]]


@pytest.mark.parametrize("argv", LOOKING, ids=" ".join)
def test_reading_commands_do_not_create_a_schema(place: ServerPlace, argv: list[str]) -> None:
    """A typing error in a URL must not create an empty schema that looks like lost jobs."""
    answer = place.run(*argv)
    assert answer.code == 2
    assert "there is no store" in answer.err
    assert "leaseway migrate" in answer.err
    assert place.ask("SELECT to_regnamespace('{0}')") is None


@pytest.mark.parametrize(
    "argv", [*LOOKING, ["migrate"], ["migrate", "--check"], ["submit", "tasks", "add", "x=1"]], ids=" ".join
)
def test_an_unreachable_server_exits_with_code_3(place: ServerPlace, argv: list[str]) -> None:
    """Scripts may run the same command again. The password is not shown."""
    url = f"postgresql://ada:{SECRET}@127.0.0.1:{free_port()}/db"
    answer = place.run(*argv, "--store", url)
    assert answer.code == 3, answer.err
    assert "check that PostgreSQL is running" in answer.err
    assert SECRET not in answer.err + answer.out


@pytest.mark.parametrize("argv", [*LOOKING, ["migrate"], ["doctor"]], ids=" ".join)
def test_no_command_shows_the_password(place: ServerPlace, argv: list[str]) -> None:
    """Terminals are shared, and logs have many readers."""
    for more in ([], ["--json"]):
        url = place.url.replace("postgres@", f"postgres:{SECRET}@")
        answer = place.run(*argv, *more, "--store", url)
        assert SECRET not in answer.err + answer.out


def test_a_newer_schema_asks_for_a_newer_leaseway(place: ServerPlace) -> None:
    """Old code must not write to a schema that it does not know."""
    place.ok("migrate")
    place.ask("INSERT INTO {0}.migrations (version, name, needs) VALUES (99, 'later', 99)")
    for argv in ([*LOOKING[0]], ["migrate"], ["migrate", "--check"], ["submit", "tasks", "add", "x=1"]):
        answer = place.run(*argv)
        assert answer.code == 2
        assert "version 99" in answer.err
        assert "install a newer leaseway" in answer.err


def test_a_role_without_rights_is_told_how_to_migrate(place: ServerPlace) -> None:
    """The role of a worker usually cannot create a schema."""
    role = asyncio.run(new_role(place.server))
    answer = place.run("migrate", "--store", address(place.server, place.schema, role))
    assert answer.code == 2
    assert "permission denied" in answer.err
    assert "Run as a role that may create it: leaseway migrate" in answer.err


# -- migrate ----------------------------------------------------------------------------------------------------------


def test_migrate_check_changes_nothing(place: ServerPlace) -> None:
    """Deployment scripts rely on exit code 1 before and 0 after."""
    answer = place.run("migrate", "--check")
    assert answer.code == 1
    assert "run: leaseway migrate" in answer.out
    assert place.ask("SELECT to_regnamespace('{0}')") is None
    assert f"created with schema version {len(MIGRATIONS)}" in place.ok("migrate").out
    assert f"schema version {len(MIGRATIONS)}, the newest" in place.ok("migrate", "--check").out
    assert "nothing to do" in place.ok("migrate").out
    assert place.json("migrate") == {"store": place.url, "from": len(MIGRATIONS), "to": len(MIGRATIONS)}


def test_a_job_runs_from_submit_to_done_on_the_command_line(place: ServerPlace) -> None:
    """After changing the URL, everything works as with SQLite."""
    id_ = place.submit("add", "x=1")
    lost = place.submit("hopeless")
    place.ok("work", "tasks:app", "--until-empty")
    assert place.json("jobs", "show", id_)["state"] == "done"
    assert place.json("jobs", "show", lost)["state"] == "failed"
    place.ok("jobs", "retry", lost)
    place.ok("jobs", "cancel", lost)
    place.ok("jobs", "discard", lost)
    assert id_ in place.ok("jobs", "list").out
    assert "default" in place.ok("lanes").out
    assert "nightly" in place.ok("cron").out
    assert not place.database.exists()


# -- doctor -----------------------------------------------------------------------------------------------------------


def test_a_healthy_store_has_no_findings(place: ServerPlace) -> None:
    """Users ignore a doctor that always finds something."""
    place.ok("migrate")
    place.submit("add", "x=1")
    answer = place.ok("doctor", "--deep")
    assert "no problems found" in answer.out
    told = place.findings()
    assert {finding["level"] for finding in told.values()} == {"ok"}
    assert {"server", "primary", "schema", "connections", "snapshots", "counters", "leases", "failed"} <= set(told)


def test_a_missing_schema_is_a_problem_with_advice(place: ServerPlace) -> None:
    """A finding must say what to do."""
    answer = place.run("doctor")
    assert answer.code == 1
    assert f"there is no schema '{place.schema}'" in answer.out
    assert "leaseway migrate" in answer.out
    assert place.ask("SELECT to_regnamespace('{0}')") is None


def test_the_doctor_reports_an_unreachable_server(place: ServerPlace) -> None:
    """It must report the failure instead of failing itself."""
    answer = place.run("doctor", "--store", f"postgresql://ada:{SECRET}@127.0.0.1:{free_port()}/db")
    assert answer.code == 1
    assert "connection refused" in answer.out
    assert SECRET not in answer.out


def miscount(place: ServerPlace) -> None:
    place.ask("UPDATE {0}.lanes SET done = done + 1")


def strand_a_lease(place: ServerPlace) -> None:
    place.ask("UPDATE {0}.jobs SET state = 'leased', until = 1, owner = 'gone', token = 't'")
    place.ask("INSERT INTO {0}.lane_changes (lane, ready, leased) VALUES (1, -1, 1)")


def wait_long(place: ServerPlace) -> None:
    place.ask("UPDATE {0}.jobs SET run_at = run_at - 3600000000")


def be_overdue(place: ServerPlace) -> None:
    place.ask("UPDATE {0}.jobs SET state = 'scheduled', run_at = run_at - 3600000000")
    place.ask("INSERT INTO {0}.lane_changes (lane, ready, scheduled) VALUES (1, -1, 1)")


def fail(place: ServerPlace) -> None:
    place.submit("hopeless", "--priority", "9")
    place.ok("work", "tasks:app", "--until-empty")


@pytest.mark.parametrize(
    ("sicken", "check", "level", "text", "advice"),
    [
        (miscount, "counters", "problem", "1 of 1 lanes have wrong counters: default/default", "Report it"),
        (strand_a_lease, "leases", "problem", "1 expired", "No worker is running"),
        (wait_long, "waiting", "warning", "a job has been ready for 60 min; no worker", "--queue default"),
        (be_overdue, "waiting", "warning", "no worker serves it", "leaseway work MODULE:APP --queue default"),
        (fail, "failed", "warning", "1 dead letter", "leaseway jobs list --state failed"),
    ],
)
def test_each_problem_is_reported_with_advice(
    place: ServerPlace, sicken: Any, check: str, level: str, text: str, advice: str
) -> None:
    """A finding must say what to do."""
    place.submit("add", "x=1")
    sicken(place)
    told = place.findings()
    assert [name for name, finding in told.items() if finding["level"] != "ok"] == [check]
    assert (told[check]["level"], text in told[check]["text"]) == (level, True), told[check]
    assert advice in told[check]["advice"]


def test_a_reader_gets_the_same_answers_as_the_owner(place: ServerPlace) -> None:
    """pg_stat_activity hides other sessions from a plain role; that must not look healthy."""
    place.ok("migrate")
    role = asyncio.run(new_role(place.server))
    place.ask("SELECT {0}.grant_reader($1)", role)

    async def hold_sessions() -> tuple[str, str]:
        import asyncpg

        held = [await asyncpg.connect(place.server.url) for _ in range(HELD)]
        try:
            told = [await asyncio.to_thread(connections_told, url) for url in (place.url, parse_address(place, role))]
        finally:
            for connection in held:
                await connection.close()
        return told[0], told[1]

    by_owner, by_reader = asyncio.run(hold_sessions())
    assert int(by_owner.split()[0]) >= HELD  # sessions of other tests come and go, so the two may differ
    assert "cannot" in by_reader or int(by_reader.split()[0]) >= HELD, by_reader


def parse_address(place: ServerPlace, role: str) -> str:
    return address(place.server, place.schema, role)


def connections_told(url: str) -> str:
    from leaseway.stores.postgres.store import PostgresStore

    async def look() -> str:
        store = PostgresStore(url)
        try:
            (finding,) = [
                finding for finding in await require_inspection(store).health() if finding.check == "connections"
            ]
            return finding.text
        finally:
            await store.close()

    return asyncio.run(look())


def test_figures_that_are_too_large_are_warnings() -> None:
    """Situations that a test cannot create are judged by their figures."""
    assert room(10, 100).level == "ok"
    assert "pooler=transaction" in (room(90, 100).advice or "")
    assert snapshot(None).level == snapshot((1, "psql", SNAPSHOT_SECONDS_MAX - 1)).level == "ok"
    old = snapshot((7, "psql", 7_200))
    assert "'psql' (pid 7) has been open for 2 h" in old.text
    assert "pg_terminate_backend(7)" in (old.advice or "")
    assert sizes(1, 1, 99_999, 0).level == "ok"
    assert sizes(1, 1, 1_000_000, 1).level == "warning"
