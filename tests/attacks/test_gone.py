"""Clients that leave in the middle: their affair, and no fault of ours."""

import asyncio
from collections.abc import Callable

import pytest
from tests.api.serving import Served
from tests.attacks.lines import SECONDS, line_to, request

HALF = {
    "a submission": request("POST", "/v1/jobs", "Content-Length: 100"),
    "a change": request("PUT", "/v1/limits/maps", "Content-Length: 100"),
    "work": request("POST", "/v1/work/exchange", "Content-Length: 100"),
    "a question that waits": request("GET", "/v1/events?wait_seconds=0.05&after=1"),
    "a stream": request("GET", "/v1/events", "Accept: text/event-stream"),
}


async def test_who_leaves_in_the_middle_is_no_failure(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Else whoever likes fills the log with tracebacks and rings the alarm."""
    requests = served.api.state.requests
    for half in HALF.values():
        before = sum(requests.counts.values())
        await leave_after(served, half)
        assert (requests.in_progress, sum(requests.counts.values())) == (0, before + 1)
    assert not [count for (_, status), count in requests.counts.items() if status == "5xx" and count]
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


async def leave_after(served: Served, half: bytes) -> None:
    """When it has been heard; and waits until that is over."""
    requests = served.api.state.requests
    before = sum(requests.counts.values())
    async with line_to(served) as line:
        await line.say(half)
        await until(lambda: requests.in_progress == 1 or sum(requests.counts.values()) > before)
    await until(lambda: sum(requests.counts.values()) > before)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
