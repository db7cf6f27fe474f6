"""page ─► [network] ─► service: blocks some of the transports between them."""

from playwright.async_api import Page, Route, WebSocketRoute

ALL = frozenset({"socket", "stream", "request"})


class Network:
    """Use it as `await Network(page).install()`, before the page is opened."""

    def __init__(self, page: Page, *blocked: str) -> None:
        self.page = page
        self.blocked = set(blocked)
        self.silent: set[str] = set()
        """Requests that are neither passed on nor refused."""
        self.sockets: list[WebSocketRoute] = []

    async def install(self) -> "Network":
        await self.page.route_web_socket("**/v1/**", self._socket)
        await self.page.route("**/v1/**", self._request)
        return self

    async def cut(self, *blocked: str) -> None:
        """From now on, until `mend` is called."""
        self.blocked |= set(blocked)
        for socket in self.sockets if "socket" in blocked else ():
            await socket.close(code=1001)
        self.sockets.clear()

    def mend(self) -> None:
        self.blocked.clear()

    async def _socket(self, socket: WebSocketRoute) -> None:
        if "socket" in self.blocked:
            await socket.close(code=1001)
        else:
            self.sockets.append(socket)
            socket.connect_to_server()

    async def _request(self, route: Route) -> None:
        kind = "stream" if "text/event-stream" in route.request.headers.get("accept", "") else "request"
        if kind in self.blocked:
            await route.abort()
        elif kind not in self.silent:
            await route.continue_()
