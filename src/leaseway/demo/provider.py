"""Somebody else's API, on this machine: charges an order once per idempotency key and keeps a journal of it.

    POST /charge/ORDER   Idempotency-Key, X-Worker   a known key is answered again and charges nothing
    GET /seen                                        what came in so far, as JSON

The journal has one line for every request, `ORDER charged|repeated KEY`. It is the judge's only witness: leaseway never
writes it. Run as a process: prints its port, ends when its stdin does.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import TextIO

HOST = "127.0.0.1"
HEAD_END = b"\r\n\r\n"
HEAD_BYTES_MAX = 8_192
WAIT_SHORTEST = 0.5
"""Waits are spread from this share of the usual wait to as much above it."""


class Ledger:
    """Who was charged. The only state of the provider."""

    def __init__(self, journal: TextIO) -> None:
        self._journal = journal
        self._keys: set[str] = set()
        self.requests: Counter[str] = Counter()
        self.repeated = 0

    def charge(self, order: str, key: str, worker: str) -> bool:
        """False: this key was charged before, and nothing happens."""
        is_new = key not in self._keys
        self._keys.add(key)
        self._journal.write(f"{order} {'charged' if is_new else 'repeated'} {key}\n")
        self.requests[worker] += 1
        self.repeated += not is_new
        return is_new

    def seen(self) -> dict[str, object]:
        return {"requests": dict(self.requests), "charged": len(self._keys), "repeated": self.repeated}


class Connection(asyncio.Protocol):
    """One keep-alive connection. Requests have no body, so a request is its head."""

    def __init__(self, ledger: Ledger, wait_seconds: float, chance: random.Random) -> None:
        self._ledger = ledger
        self._wait_seconds = wait_seconds
        self._chance = chance
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while HEAD_END in self._buffer:  # ends: each turn shortens the buffer
            head, _, self._buffer = self._buffer.partition(HEAD_END)
            self._answer(head.decode("latin-1"))
        if len(self._buffer) > HEAD_BYTES_MAX and self._transport is not None:
            self._transport.close()

    def _answer(self, head: str) -> None:
        request, *lines = head.split("\r\n")
        method, path, *_ = [*request.split(" "), "", ""]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        match method, path.strip("/").split("/"):
            case "POST", ["charge", order] if key := headers.get("idempotency-key"):
                # The charge happens now, the answer comes later: who dies in between must ask again.
                is_new = self._ledger.charge(order, key, headers.get("x-worker", ""))
                spread = self._chance.uniform(WAIT_SHORTEST, 2 - WAIT_SHORTEST)
                reply = response(200, {"order": order, "charged": is_new})
                asyncio.get_running_loop().call_later(self._wait_seconds * spread, self._send, reply)
            case "GET", ["seen"]:
                self._send(response(200, self._ledger.seen()))
            case _:
                self._send(response(404, {"error": f"there is no {method} {path}"}))

    def _send(self, reply: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(reply)


def response(status: int, body: dict[str, object]) -> bytes:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Not Found'}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


async def serve(ledger: Ledger, wait_seconds: float, seed: int) -> None:
    loop = asyncio.get_running_loop()
    chance = random.Random(seed)
    server = await loop.create_server(lambda: Connection(ledger, wait_seconds, chance), HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    stdin_ended = asyncio.Event()
    loop.add_reader(sys.stdin, stdin_ended.set)
    await stdin_ended.wait()
    server.close()


def main(journal: str, wait_seconds: str, seed: str) -> None:
    with Path(journal).open("w") as file:
        asyncio.run(serve(Ledger(file), float(wait_seconds), int(seed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
