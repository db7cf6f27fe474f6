"""A TCP proxy between a group of processes and the server. It forwards, and injects faults on request.

hold        accept and keep connections, forward nothing; data sent meanwhile arrives after the release, even
            if its sender has gone, as in real networks
delay       everything takes a while
reset       every connection ends with RST
forget      the connections that are open now forward nothing any more, and no side is told; new ones work:
            what a firewall does that lost its state
swallow     requests go through, replies are lost, and a moment later the connection ends: the call was
            executed, and the client does not know
trap        the same, for the next statement that contains a certain text
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from chaos.link import Link, Trap
from chaos.wire import PostgresTraffic, Traffic


class Proxy:
    def __init__(self, upstream_port: int, new_traffic: Callable[[], Traffic] = PostgresTraffic) -> None:
        self._upstream_port = upstream_port
        self._new_traffic = new_traffic
        self._links: set[Link] = set()
        self._traps: list[Trap] = []
        self._server: asyncio.Server | None = None
        self.port = 0
        self.is_holding = False
        self.delay_seconds = 0.0
        self.answers_lost = 0
        """Connections on which at least one reply was swallowed."""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self, self._upstream_port).client, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        await asyncio.sleep(0)  # a cut connection is closed in the next turn of the loop

    # -- called by the nemesis --------------------------------------------------------------------------------------

    def hold(self) -> None:
        self.is_holding = True

    def release(self) -> None:
        self.is_holding = False
        for link in list(self._links):
            link.flush()

    def delay(self, seconds: float) -> None:
        self.delay_seconds = seconds

    def reset(self) -> int:
        """End all connections; returns how many."""
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def forget(self) -> int:
        """Let the connections that are open now be silent for ever; returns how many."""
        links = list(self._links)
        for link in links:
            link.forget()
        return len(links)

    def swallow(self, seconds: float) -> int:
        """No reply arrives any more on the connections that are open now, and after this time they end."""
        links = list(self._links)
        for link in links:
            link.swallow(seconds)
        return len(links)

    def trap(self, text: str, cut_seconds: float) -> Trap:
        return self.arm(Trap(text, cut_seconds))

    def arm(self, trap: Trap) -> Trap:
        self._traps.append(trap)
        return trap

    def disarm(self) -> None:
        self._traps.clear()

    def heal(self) -> None:
        """Forward everything again."""
        self.disarm()
        self.delay(0)
        self.release()

    # -- called by links -------------------------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        self._links.add(link)

    def closed(self, link: Link) -> None:
        self._links.discard(link)

    def lost_an_answer(self) -> None:
        self.answers_lost += 1

    def new_traffic(self) -> Traffic:
        return self._new_traffic()

    def trap_for(self, statement: bytes) -> Trap | None:
        for trap in self._traps:
            if not trap.is_sprung and trap.text in statement.lower():
                self._traps.remove(trap)
                trap.is_sprung = True
                return trap
        return None
