"""An opening that fails leaves nothing open: whoever asked for it has nothing that he could close."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def closed_if_it_fails(close: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await close()
        raise
