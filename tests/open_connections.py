"""Reports connections that are still open when their event loop closes.

Python itself notices them only when the garbage collector runs, which may be during another test.
"""

from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any

GRPC_POLLER = "PollerCompletionQueue"
"""grpcio has one per process. It watches every loop that was used, and belongs to no connection."""
_found: list[str] = []
_close = BaseSelectorEventLoop.close


def watch_event_loops() -> None:
    """From now on, check every event loop when it closes, in any thread."""
    BaseSelectorEventLoop.close = _check_and_close  # type: ignore[method-assign, assignment]


def take_open_connections() -> list[str]:
    """Connections found since the last call."""
    found, _found[:] = list(_found), []
    return found


def _check_and_close(loop: Any) -> None:
    if not loop.is_closed() and not loop.is_running():
        _found.extend(open_connections(loop))
    _close(loop)


def open_connections(loop: Any) -> list[str]:
    """Transports that still have a socket, and whatever else the loop waits for, for example servers and pipes.

    A transport keeps its socket until the loop has run once more after `close()`.
    """
    transports = {each._sock_fd: repr(each) for each in loop._transports.values() if each._sock is not None}
    awaited = {
        fd: repr(key)
        for fd, key in loop._selector.get_map().items()
        if fd != loop._ssock.fileno() and GRPC_POLLER not in repr(key)
    }
    return [*{**awaited, **transports}.values()]
