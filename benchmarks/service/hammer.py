"""Many connections that submit without pauses, in a process of their own: the load must cost less than the service.

    echo '{"host": …, "port": …, "connections": 64, "seconds": 5, "request": …}' | python -m benchmarks.service.hammer

The request is built once and sent repeatedly; each connection waits for its response. Only the status and the length of
a response are read; a response that is not a success ends the run. The parameters come on stdin.
"""

import asyncio
import json
import re
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.service.place import Served

LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
HEAD_END = b"\r\n\r\n"
RUN_SECONDS_MAX = 300


class Line(asyncio.Protocol):
    """One connection: it sends a request when the previous response is complete."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._rest = b""
        self._sent_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._load.lines.append(self)
        self._load.seated()

    def send(self) -> None:
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if not is_whole(self._rest):
            return
        now_ns = time.perf_counter_ns()
        answer, self._rest = self._rest, b""
        if self._load.took(answer, now_ns - self._sent_ns, now_ns):
            self._sent_ns = now_ns
            self._transport.write(self._load.request)
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.left(error)


class Load:
    def __init__(self, asked: dict[str, Any]) -> None:
        self.request: bytes = asked["request"].encode()
        self.lines: list[Line] = []
        self._wanted = int(asked["connections"])
        self._calls_max = asked.get("calls", float("inf"))
        self._warm_ns, self._seconds_ns = int(asked["warm_seconds"] * 1e9), int(asked["seconds"] * 1e9)
        self._begun_ns = self._ends_ns = self._ended_ns = 0
        self._is_ending = False
        self._status = f"HTTP/1.1 {asked['status']} ".encode()
        self._waits_ns: list[int] = []
        self._under_way = 0
        self.over = asyncio.get_running_loop().create_future()

    def seated(self) -> None:
        """All connections start together."""
        if len(self.lines) < self._wanted:
            return
        self._begun_ns = time.perf_counter_ns() + self._warm_ns
        self._ends_ns = self._begun_ns + self._seconds_ns
        self._under_way = self._wanted
        for line in self.lines:
            line.send()

    def took(self, answer: bytes, wait_ns: int, now_ns: int) -> bool:
        """Whether to continue."""
        if not answer.startswith(self._status) and not self.over.done():
            self.over.set_exception(RuntimeError(f"answered {answer[:600]!r}"))
        if self._is_ending or self.over.done():
            return False
        if now_ns - wait_ns >= self._begun_ns:
            self._waits_ns.append(wait_ns)
        self._is_ending = self._has_enough(now_ns)
        self._ended_ns = now_ns
        return not self._is_ending

    def _has_enough(self, now_ns: int) -> bool:
        """A slow machine gets more time, until there are enough requests."""
        count = len(self._waits_ns)
        return count >= self._calls_max or (now_ns >= self._ends_ns and count >= self._wanted)

    def left(self, error: Exception | None) -> None:
        self._under_way -= 1
        if not self.over.done() and (error is not None or self._under_way == 0):
            self.over.set_exception(error) if error is not None else self.over.set_result(None)

    @property
    def figures(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "count": len(self._waits_ns),
            "seconds": (self._ended_ns - self._begun_ns) / 1e9,
            "waits_ms": [round(wait / 1e6, 3) for wait in self._waits_ns],
            "own_cpu_seconds": used.ru_utime + used.ru_stime,
        }


def is_whole(data: bytes) -> bool:
    head, found, body = data.partition(HEAD_END)
    if not found:
        return False
    length = LENGTH.search(head)
    return length is not None and len(body) >= int(length[1])


async def hammer(asked: dict[str, Any]) -> dict[str, Any]:
    load, loop = Load(asked), asyncio.get_running_loop()
    for _ in range(asked["connections"]):
        await loop.create_connection(lambda: Line(load), asked["host"], asked["port"])
    await load.over
    return load.figures


# -- for callers -----------------------------------------------------------------------------------------------------


def request_of(served: Served, path: str, body: bytes, headers: tuple[str, ...] = ()) -> str:
    address = served.url.removeprefix("http://")
    key = [f"Authorization: Bearer {served.key}"] if served.key else []
    lines = [
        f"POST {path} HTTP/1.1", f"Host: {address}", *key, "Content-Type: application/json",
        f"Content-Length: {len(body)}", *headers,
    ]  # fmt: skip
    return "\r\n".join(lines) + "\r\n\r\n" + body.decode()


def hammered(served: Served, request: str, **asked: Any) -> dict[str, Any]:
    """The result of one run in a process of its own."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    known = {"host": host, "port": int(port), "request": request, "status": 200, "warm_seconds": 1.0, **asked}
    command = [sys.executable, "-m", "benchmarks.service.hammer"]
    answer = subprocess.run(
        command, input=json.dumps(known), capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    if answer.returncode:
        raise RuntimeError(f"the load ended early: {answer.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(hammer(json.load(sys.stdin)))))
