"""Errors are stored, shown to tenants and kept in backups. Keys that a provider, a client library or a traceback put
into them would be readable there for as long as the job is kept."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.postgres_tables import empty_schema

from leaseway import App, Fail

KEY = 'hunter2 "k/ey"'


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "postgres":
        server = request.getfixturevalue("server")
        await empty_schema(server.url, "secrets")
        yield f"{server.url}?schema=secrets"
    else:
        yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db"


@pytest.fixture
async def app(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setenv("MAPS_API_KEY", KEY)
    async with App(url, secrets=["given-to-the-app"]) as app:
        yield app


async def stored(app: App, error: BaseException, **options: Any) -> str:
    """Everything that the store keeps of a job that failed with this error."""

    @app.job(attempts=1)
    async def failing() -> None:
        raise error

    job = await failing.submit()
    await app.run_worker(until_empty=True)
    store = await app.store()
    (record,) = await store.reads.errors(job.id)
    assert "***" in record.message + record.traceback + record.code
    found = await app.find(job)
    assert found is not None
    return f"{record.code}\n{record.message}\n{record.traceback}\n{found.last_error_code}"


TEXTS = {
    "query": "401 for url 'https://x.example/?q=1&api_key=unknown2key'",
    "userinfo": "cannot connect to redis://app:unknown2key@cache:6379/0",
    "header": "request headers: {'authorization': 'Bearer unknown2key'}",
    "plain": f"refused key {KEY}",
    "percent": f"refused {quote(KEY, safe='')}",
    "json": json.dumps({"echo": json.dumps({"q": KEY})}),
    "repr": f"refused {KEY!r} {KEY.encode()!r}",
    "basic": f"refused {base64.b64encode(f'user:{KEY}'.encode()).decode()}",
    "of the app": "refused given-to-the-app",
}
SECRETS = ("unknown2key", "hunter2", "ey", "aHVudGVyMi", "h1bnRlcjIg", "odW50ZXIyI", "given-to-the-app")


@pytest.mark.parametrize("text", TEXTS)
async def test_a_stored_error_contains_no_secret(app: App, text: str) -> None:
    """Message, traceback and code come from the provider's client, which repeats what it sent."""
    try:
        try:
            raise ValueError(TEXTS[text])
        except ValueError as cause:
            raise RuntimeError("the call failed: " + TEXTS[text]) from cause
    except RuntimeError as error:
        kept = await stored(app, error)
    for secret in SECRETS:
        assert secret not in kept.replace("they", "").replace("key", "")


async def test_a_code_contains_no_secret(app: App) -> None:
    """Codes are shown in lists and counted in metrics."""
    assert "hunter2" not in await stored(app, Fail("no", code=f"refused {KEY}"))


async def test_a_secret_at_the_end_of_the_kept_text_leaves_no_part(app: App) -> None:
    """Messages are cut. A cut through a key would leave the first half of it."""
    assert "hunt" not in await stored(app, ValueError("x" * 1_995 + KEY))


async def test_arguments_that_cannot_be_read_show_no_secret(app: App) -> None:
    """The parser's error repeats a part of the arguments."""

    @app.job(attempts=1, name="strict")
    async def old(value: Any) -> None: ...

    job = await old.submit(value={f"https://a:{KEY[:7]}@x": 1})
    app.kinds.clear()

    @app.job(attempts=1, name="strict")
    async def new(value: dict[str, str]) -> None: ...

    await app.run_worker(until_empty=True)
    store = await app.store()
    (record,) = await store.reads.errors(job.id)
    assert record.code == "bad_payload"
    assert "hunter2" not in record.message
