"""Live clients for tests: WebSocket, event stream and polling. Each returns frames one by one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from msgspec.structs import replace
from tests.api.running_service import Served
from websockets.asyncio.client import ClientConnection, connect

Frame = dict[str, Any]
Event = dict[str, Any]
SECONDS = 60.0
"""A safety limit, not a measurement: it only ends a test that would otherwise wait forever."""


class LiveClient:
    """The state that a live client has received: the latest value of each item."""

    def __init__(self, frames: AsyncIterator[Frame]) -> None:
        self._frames = frames
        self.seq: int | None = None
        self.events: list[Event] = []
        self.jobs: dict[str, Event] = {}
        self.totals: Event = {}
        self.resets = 0

    async def frame(self) -> Frame:
        async with asyncio.timeout(SECONDS):
            frame = await anext(self._frames)
        self.seq = frame["seq"] if frame["seq"] is not None else self.seq
        for event in frame["events"]:
            self.hear(event)
        return frame

    def hear(self, event: Event) -> None:
        self.events.append(event)
        if event["kind"] == "reset":
            self.resets += 1
        elif event["kind"] == "job":
            self.jobs[event["job"]["id"]] = event["job"]
        elif event["kind"] == "totals":
            self.totals = event["totals"]

    async def until(self, is_so: Callable[["LiveClient"], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not is_so(self):
                await self.frame()

    def state_of(self, job: str) -> str | None:
        return self.jobs[job]["state"] if job in self.jobs else None


@asynccontextmanager
async def by_socket(url: str, headers: dict[str, str] | None = None, **query: Any) -> AsyncIterator[LiveClient]:
    async with socket(url, headers, **query) as line:
        yield LiveClient(socket_frames(line))


@asynccontextmanager
async def socket(url: str, headers: dict[str, str] | None = None, **query: Any) -> AsyncIterator[ClientConnection]:
    address = f"{url.replace('http', 'ws', 1)}/v1/live?{httpx2.QueryParams(query)}"
    async with connect(address, additional_headers=headers, proxy=None) as line:
        yield line


async def socket_frames(line: ClientConnection) -> AsyncIterator[Frame]:
    while True:
        yield json.loads(await line.recv())


@asynccontextmanager
async def by_stream(url: str, headers: dict[str, str] | None = None, **query: Any) -> AsyncIterator[LiveClient]:
    given = {"Accept": "text/event-stream", **(headers or {})}
    async with (
        httpx2.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False) as client,
        client.stream("GET", "/v1/events", params=query, headers=given) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        yield LiveClient(stream_frames(answer))


async def stream_frames(answer: httpx2.Response) -> AsyncIterator[Frame]:
    """The id of a frame is its sequence number. A frame without an id is not the last part of its snapshot."""
    id_ = None
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            id_ = int(value)
        elif name == "data" and value.startswith("{"):
            frame = json.loads(value)
            assert frame["seq"] == id_
            yield frame
            id_ = None


@asynccontextmanager
async def by_polling(url: str, headers: dict[str, str] | None = None, **query: Any) -> AsyncIterator[LiveClient]:
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=SECONDS, trust_env=False) as client:
        yield LiveClient(polled_frames(client, query))


async def polled_frames(client: httpx2.AsyncClient, query: dict[str, Any]) -> AsyncIterator[Frame]:
    while True:
        answer = await client.get("/v1/events", params={"wait_seconds": 5, **query})
        assert answer.status_code == 200, answer.text
        frame = answer.json()
        query = {**query, "after": frame["seq"]}
        yield frame


TRANSPORTS = {"socket": by_socket, "stream": by_stream, "polling": by_polling}


async def submit_job(served: Served, **headers: str) -> str:
    answer = await served.client.post("/v1/jobs", json={"kind": "add", "arguments": {"a": 1}}, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def has(job: str, state: str) -> Callable[[LiveClient], bool]:
    return lambda watcher: watcher.state_of(job) == state


def change_settings(served: Served, **bounds: Any) -> None:
    served.service.live.settings = replace(served.service.live.settings, **bounds)
