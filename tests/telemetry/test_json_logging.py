"""JSON logging: each line is one JSON object with its job or request, and without secrets."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api.keys import key_for
from tests.api.live_clients import SECONDS, by_socket
from tests.api.running_service import run_service
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from leaseway import AesGcm, App
from leaseway.domain.errors import BadValue
from leaseway.telemetry.log import JsonLines


class Lines(logging.StreamHandler[io.StringIO]):
    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.setFormatter(JsonLines())

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@contextmanager
def lines_of(name: str) -> Iterator[Lines]:
    logger, lines = logging.getLogger(name), Lines()
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)


async def test_lines_of_handlers_know_their_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log of a worker with a hundred concurrent jobs, a line without its job id is useless."""
    monkeypatch.setenv("LEASEWAY_LOG", "json")
    app, log = App("memory://"), logging.getLogger("shop")

    @app.job
    async def waits() -> None:
        log.info("async", extra={"fields": {"price": 3}})

    @app.job
    def blocks() -> None:
        log.info("plain")

    with lines_of("shop") as lines:
        ids = {"async": (await waits.options(tenant="acme").submit()).id, "plain": (await blocks.submit()).id}
        await app.run_worker(until_empty=True)
        log.info("nobody's")
    shown = {line.get("event") or line["message"]: line for line in lines.read()}
    assert {name: shown[name]["job"] for name in ids} == ids
    assert (shown["async"]["tenant"], shown["async"]["kind"], shown["async"]["attempt"]) == ("acme", "waits", 1)
    assert shown["async"]["price"] == 3
    assert "job" not in shown["nobody's"]


def test_without_the_variable_nothing_is_done_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON logging must not cost anything when it is off."""
    monkeypatch.delenv("LEASEWAY_LOG", raising=False)
    assert App("memory://").world.tracing is None


def test_a_kind_of_lines_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo in LEASEWAY_LOG must not fall back to text silently."""
    monkeypatch.setenv("LEASEWAY_LOG", "xml")
    with pytest.raises(BadValue, match="LEASEWAY_LOG: must be json or text"):
        App("memory://")


async def test_the_access_log_says_who_asked_for_what_and_no_secrets(tmp_path: Path) -> None:
    """Logs are read by many people, kept for a long time and sent to other systems."""
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    async with run_service(app, auth=True) as served:
        key = await key_for(served, "acme")
        with lines_of("leaseway") as lines, lines_of("leaseway.access"):
            async with served.with_key(key.text) as client:
                sent = {"kind": "charge", "arguments": {"card": "s3cret card"}, "key": "s3cret-key"}
                made = await client.post("/v1/jobs", json=sent)
                await client.get(f"/v1/jobs/{made.json()['id']}")
                await client.get("/v1/jobs?cursor=t1cket")
            await served.client.get("/v1/jobs", headers={"Authorization": "Bearer lw_wr0ng"})
            await served.client.get("/nowhere%0A")
        shown = lines.read()
    submitted, looked, listed, refused, lost = shown
    assert {name: submitted[name] for name in ("event", "logger", "method", "route", "status", "tenant")} == {
        "event": "request", "logger": "leaseway.access", "method": "POST", "route": "/v1/jobs", "status": 202,
        "tenant": "acme",
    }  # fmt: skip
    assert submitted["request_id"] == made.headers["x-request-id"]
    assert submitted["seconds"] > 0
    assert submitted["job"] == looked["job"] == made.json()["id"]
    assert (looked["route"], looked["status"]) == ("/v1/jobs/{id}", 200)
    assert (listed["status"], listed["path"]) == (400, "/v1/jobs")
    assert (refused["status"], refused["tenant"]) == (401, None)
    assert (lost["status"], lost["route"]) == (404, None)
    everything = json.dumps(shown)
    secret = key.text.rpartition("_")[2]
    assert [word for word in (secret, "s3cret card", "s3cret-key", "t1cket", "wr0ng") if word in everything] == []


async def test_a_socket_is_logged_when_it_ends(tmp_path: Path) -> None:
    """The log must contain the subscriber and the duration but never the ticket, for accepted and refused clients."""
    async with run_service(App(f"sqlite:///{tmp_path / 'work.db'}")) as served:
        ticket = (await served.client.post("/v1/tickets")).json()["ticket"]
        with lines_of("leaseway.access") as lines:
            async with by_socket(served.url, ticket=ticket) as watcher:
                await watcher.frame()
            with pytest.raises(InvalidStatus):
                await connect(f"ws{served.url.removeprefix('http')}/v1/live?ticket={ticket}", proxy=None)
            async with asyncio.timeout(SECONDS):
                while len(ended := [line for line in lines.read() if line["method"] == "WEBSOCKET"]) < 2:
                    await served.client.get("/healthz")
    assert sorted(line["status"] for line in ended) == [101, 401]
    assert {(line["route"], line["tenant"]) for line in ended} == {("/v1/live", "default")}
    assert ticket not in json.dumps(ended)


# -- errors of jobs ---------------------------------------------------------------------------------------------------


async def failed_line(app: App, error: BaseException) -> dict[str, Any]:
    """The line that a worker logs for a job that fails with this error."""

    @app.job(attempts=1)
    async def failing() -> None:
        raise error

    with lines_of("leaseway") as lines:
        await failing.submit()
        await app.run_worker(until_empty=True)
    (line,) = [line for line in lines.read() if line.get("event") == "attempt_failed"]
    return line


async def test_the_line_of_a_failed_attempt_has_the_message_of_the_error() -> None:
    """`code=ValueError` alone does not tell an operator what to mend."""
    line = await failed_line(App("memory://"), ValueError("no such city: Atlantis"))
    assert (line["code"], line["state"], line["error"]) == ("ValueError", "failed", "no such city: Atlantis")


async def test_a_logged_error_is_one_short_line_without_secrets() -> None:
    """An error repeats what the provider sent: newlines that look like other events, colours, keys, megabytes."""
    app = App("memory://", secrets=["corr3ct horse"])
    text = "a\nworker_stopped\r\n\tb\u2028 \x1b[31m corr3ct horse ?api_key=unknown2key " + "x" * 10_000
    line = await failed_line(app, ValueError(text))
    assert line["error"].startswith("a worker_stopped b \\x1b[31m *** ?api_key=*** xxx")
    assert len(line["error"]) <= 310
    assert line["error"].isprintable()


async def test_an_encrypted_error_stays_out_of_the_log() -> None:
    """An app that encrypts its errors must not find them in plain text in the log of a worker."""
    app = App("memory://", codec=AesGcm({"k1": AesGcm.new_key()}))
    assert (await failed_line(app, ValueError("patient 7")))["error"] == "(encrypted)"


async def test_text_lines_quote_values_of_several_words() -> None:
    """`error=it state=done` must not look like another field."""
    stream = io.StringIO()
    handler, logger = logging.StreamHandler(stream), logging.getLogger("leaseway")
    logger.addHandler(handler)
    try:
        await failed_line(App("memory://"), ValueError("it state=done"))
    finally:
        logger.removeHandler(handler)
    assert re.search(r' state=failed error="it state=done"\n', stream.getvalue())
