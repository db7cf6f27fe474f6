"""Who leaves a connection open is told so himself: Python finds it at some later time, and would blame another test."""

from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any

_left: list[str] = []
_close = BaseSelectorEventLoop.close


def watch() -> None:
    """From now on every event loop is looked at when it ends, whoever made it, and in whatever thread."""
    BaseSelectorEventLoop.close = _look_and_close  # type: ignore[method-assign, assignment]


def left_open() -> list[str]:
    """By loops that have ended since somebody asked last."""
    left, _left[:] = list(_left), []
    return left


def _look_and_close(loop: Any) -> None:
    if not loop.is_closed() and not loop.is_running():
        _left.extend(open_in(loop))
    _close(loop)


def open_in(loop: Any) -> list[str]:
    """Its transports that have a socket: those too that were told to close, and not given the turn in which they do.
    And whatever else it waits for, as servers and pipes."""
    found = {each._sock_fd: repr(each) for each in loop._transports.values() if each._sock is not None}
    awaited = {fd: repr(key) for fd, key in loop._selector.get_map().items() if fd != loop._ssock.fileno()}
    return [*{**awaited, **found}.values()]
