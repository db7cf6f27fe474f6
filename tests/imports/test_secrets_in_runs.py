"""The errors of an import are stored in the sink and with its jobs, and shown in reports. A source that echoes its key
in any encoding must not make the key readable there."""

import base64
import html
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest
from tests.imports.apps import import_app

from leaseway.domain.inspection import JobFilter
from leaseway.domain.outcome import Backoff
from leaseway.imports.domain.partition import make_shard
from leaseway.imports.run import shard_jobs
from leaseway.imports.run.assembly import load_import
from leaseway.imports.run.finish_run import finish_run
from leaseway.imports.run.start import start_planned
from leaseway.system import wall_clock_us
from leaseway.testing.provider import Provider, provider

SCHEMA = "secrets_in_runs"
KEY = 'hunter2 "k"/7&8'
SPEC = """
version = 1
[source]
name = "things"
base_url = "{url}"
auth = {{ param = "k", env = "THINGS_SIGN" }}
[resource]
path = "things"
key = "id"
page = {{ cursor = "link", limit = 2 }}
[sink]
url = "{sink}"
table = "things"
"""
ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": lambda key: quote(key, safe=""),
    "json": lambda key: json.dumps(json.dumps(key)),
    "basic": lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
    "html": html.escape,
}


@pytest.fixture
async def it() -> AsyncIterator[Provider]:
    async with provider() as it:
        yield it


@pytest.fixture(params=["sqlite", "postgres"])
async def sink_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/data.db"
    server = request.getfixturevalue("server")
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    await connection.close()
    return f"{server.url}?options=-csearch_path%3D{SCHEMA}"


@pytest.mark.parametrize("status", [400, 403, 500, 200])
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_no_key_is_stored_with_a_run(
    it: Provider, tmp_path: Path, sink_url: str, monkeypatch: pytest.MonkeyPatch, encoding: str, status: int
) -> None:
    """The variable is not named like a secret, and neither is the parameter: only its value is known."""
    monkeypatch.setattr(shard_jobs, "ATTEMPTS", 1)
    monkeypatch.setattr(shard_jobs, "BACKOFF", Backoff(first_seconds=0))
    monkeypatch.setenv("THINGS_SIGN", KEY)
    path = tmp_path / "things.toml"
    path.write_text(SPEC.format(url=it.url, sink=sink_url))
    it.answer(status, body=f"no page for {ENCODINGS[encoding](KEY)} here", times=50)
    parts = load_import(path)
    await parts.sink.open()
    app, handle = import_app(parts, f"sqlite:///{tmp_path}/jobs.db")
    run = f"{encoding}-{status}"
    async with app:
        await start_planned(parts, handle, run, [make_shard("things", "all", {})], wall_clock_us())
        await app.run_worker(queues=[parts.queue], until_empty=True)
        await finish_run(parts, run)
        store = await app.store()
        (job,) = await store.reads.jobs(JobFilter())
        errors = await store.reads.errors(job.id)
    stored = f"{await parts.sink.runs.find(run)} {await parts.sink.shards.find_all(run)} {job} {errors}"
    await parts.sink.close()
    assert "***" in stored
    for part in (KEY, ENCODINGS[encoding](KEY), "hunter", "aHVudGVy", "h1bnRlcj", "odW50ZX"):
        assert part not in stored
