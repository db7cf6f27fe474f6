"""Health and readiness checks for load balancers."""

from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.api.running_service import Served, run_service

from leaseway import App
from leaseway.api.routes import health
from leaseway.testing.postgres import PostgresServer


async def test_the_process_lives(served: Served) -> None:
    """A liveness probe that fails restarts a healthy process."""
    answer = await served.client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_the_service_is_ready_when_its_store_answers(served: Served) -> None:
    """Each check is listed, so that an operator sees what was checked."""
    answer = await served.client.get("/readyz")
    assert answer.status_code == 200
    assert [(check["name"], check["ok"]) for check in answer.json()["checks"]] == [
        ("store", True), ("schema", True), ("limits", True),
    ]  # fmt: skip


async def test_readiness_needs_no_key(served_with_keys: Served) -> None:
    """Load balancers do not have a key."""
    assert (await served_with_keys.client.get("/healthz")).status_code == 200
    assert (await served_with_keys.client.get("/readyz")).status_code == 200


async def test_a_store_that_is_gone_is_said_without_naming_it(tmp_path: Path) -> None:
    """The process is alive but must not receive traffic, and its response must not reveal the store's address."""
    async with run_service(App(f"sqlite:///{tmp_path / 'secret-place.db'}")) as served:
        await take_away(served.service.world.store, tmp_path / "secret-place.db")
        answer = await served.client.get("/readyz")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["code"] == "not_ready"
        assert "secret-place" not in answer.text
        assert (await served.client.get("/healthz")).status_code == 200
        (tmp_path / "secret-place.db").rmdir()


async def test_an_older_schema_is_said_with_the_way_out(tmp_path: Path) -> None:
    """After a rollback of the database, for example, the service must not write to a schema that does not match."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        store: Any = served.service.world.store
        await store.connection.write(lambda connection: connection.execute("PRAGMA user_version = 0"))
        answer = await served.client.get("/readyz")
        assert answer.status_code == 503
        assert "leaseway migrate" in answer.json()["detail"]


async def test_a_service_that_stops_is_not_ready(served: Served) -> None:
    """New requests must go to other processes while the last requests finish."""
    served.service.stopping.set()
    assert (await served.client.get("/readyz")).status_code == 503


async def test_a_limiter_that_is_away_is_told_and_keeps_nobody_away(tmp_path: Path) -> None:
    """Jobs can be submitted without the limiter, and taking all replicas out of service would do more harm."""
    limits = tmp_path / "secret-limits.db"
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}", limits=f"sqlite:///{limits}")) as served:
        await take_away(served.service.world.limiter, limits)
        answer = await served.client.get("/readyz")
        assert answer.status_code == 200
        assert answer.json()["checks"][2]["ok"] is False
        assert "secret-limits" not in answer.text
        limits.rmdir()


async def test_a_store_that_hangs_is_not_waited_for(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe has a timeout of its own and would give up before it gets the response."""
    monkeypatch.setattr(health, "DEADLINE_SECONDS", 0.2)
    async with run_service(App(f"{server.url}?schema=hanging")) as served:
        other = await asyncpg.connect(server.url)
        async with other.transaction():
            await other.execute("LOCK TABLE hanging.schedules, hanging.migrations IN ACCESS EXCLUSIVE MODE")
            answer = await served.client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert [check["ok"] for check in answer.json()["checks"]] == [False, False, True]
        await other.execute("DROP SCHEMA hanging CASCADE")
        await other.close()


async def take_away(closing: Any, path: Path) -> None:
    """An open file stays readable after it is deleted; a file that must be reopened does not."""
    await closing.close()
    replace_by_folder(path)


def replace_by_folder(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    path.mkdir()
