"""Clients that disconnect in the middle of a request are not server errors."""

import asyncio
from collections.abc import Callable

import pytest
from tests.api.running_service import Served
from tests.attacks.raw_connections import SECONDS, connect_raw, request

HALF = {
    "a submission": request("POST", "/v1/jobs", "Content-Length: 100"),
    "a change": request("PUT", "/v1/limits/maps", "Content-Length: 100"),
    "work": request("POST", "/v1/work/exchange", "Content-Length: 100"),
    "a question that waits": request("GET", "/v1/events?wait_seconds=0.05&after=1"),
    "a stream": request("GET", "/v1/events", "Accept: text/event-stream"),
}


async def test_a_client_that_disconnects_is_not_a_server_error(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise any client could fill the log with tracebacks and trigger alarms."""
    requests = served.api.state.requests
    for half in HALF.values():
        before = sum(requests.counts.values())
        await leave_after(served, half)
        assert (requests.in_progress, sum(requests.counts.values())) == (0, before + 1)
    assert not [count for (_, status), count in requests.counts.items() if status == "5xx" and count]
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


async def leave_after(served: Served, half: bytes) -> None:
    """Disconnects when the request has arrived, and waits until the service has finished it."""
    requests = served.api.state.requests
    before = sum(requests.counts.values())
    async with connect_raw(served) as line:
        await line.say(half)
        await until(lambda: requests.in_progress == 1 or sum(requests.counts.values()) > before)
    await until(lambda: sum(requests.counts.values()) > before)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
