"""A page of a real browser for each test, and one browser for all tests."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NoReturn

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from tests.dashboard.browser import WAIT_MS_MAX, open_browser, open_page
from tests.dashboard.jobs_app import sqlite_url
from tests.dashboard.sample_service import SampleService, sample_service
from tests.npm_packages import AXE, TYPESCRIPT, NotFetchedError, Package, fetch_package

HERE = Path(__file__).parent
expect.set_options(timeout=WAIT_MS_MAX)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests run in the event loop of the browser, and the first of them may have to fetch it. tests/conftest.py
    makes them run in one process.
    """
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(360))
        if HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print a message immediately."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def said(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\ntests/dashboard: {line}", file=sys.stderr, flush=True)

    return said


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> AsyncIterator[Browser]:
    try:
        async with open_browser(tmp_path_factory.mktemp("browser"), say) as browser:
            yield browser
    except NotFetchedError as error:
        go_without("browser", error, say)


def had(package: Package, say: Callable[[str], None]) -> Path:
    try:
        return fetch_package(package, say)
    except NotFetchedError as error:
        go_without(package.name, error, say)


def go_without(what: str, error: NotFetchedError, say: Callable[[str], None]) -> NoReturn:
    """Without a network the tests are skipped. On continuous integration they fail."""
    if os.environ.get("CI"):
        raise error
    why = f"there is no {what}, and it cannot be fetched: {error}"
    say(why)
    pytest.skip(why)


@pytest.fixture
def allowed() -> list[str]:
    """Parts of messages that are allowed in the browser's console. The browser logs every 4xx response; the pages
    handle them.
    """
    return ["status of 4"]


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, allowed: list[str]) -> AsyncIterator[Page]:
    """An empty page without any state of other tests. Messages in the browser's console fail the test."""
    async with open_page(browser, allowed) as page:
        yield page


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SampleService]:
    """For tests that only read."""
    async with sample_service(sqlite_url(tmp_path_factory.mktemp("shown"))) as shown:
        yield shown


@pytest.fixture(scope="session")
def axe(say: Callable[[str], None]) -> str:
    """axe, which finds accessibility problems."""
    return (had(AXE, say) / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def typescript(say: Callable[[str], None]) -> Path:
    """The TypeScript compiler, used as a type checker only."""
    return had(TYPESCRIPT, say) / "lib" / "tsc.js"
