"""A page function is called: in the event loop if it is async, else in a thread, with an `http` that simply returns."""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from leaseway.imports.sources.port import RequestClient
from leaseway.worker.provider_http import Http, SyncHttp
from leaseway.worker.threads import HandlerThreads


class PageFunctionCaller:
    def __init__(self) -> None:
        self._threads = HandlerThreads()

    async def __call__(self, function: Callable[..., Any], given: dict[str, Any], http: RequestClient | None) -> Any:
        if http is not None:
            given = {**given, "http": PageFunctionHttp(http)}
        if is_async(function):
            return await function(**given)
        if http is not None:
            given = {**given, "http": SyncHttp(given["http"], asyncio.get_running_loop())}
        return await self._threads.run(partial(function, **given))


def is_async(function: Callable[..., Any]) -> bool:
    """Also if it is an object that can be called, or stands behind a decorator."""
    inner = inspect.unwrap(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


class PageFunctionHttp(Http):
    """All the ways to ask of `ctx.http`, through whoever admits and counts the requests of an import."""

    def __init__(self, asker: RequestClient) -> None:
        self._asker = asker

    async def request(self, method: str, url: str, **options: Any) -> Any:
        return await self._asker.request(method, url, **options)
