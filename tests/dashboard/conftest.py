"""A page of a real browser for each test, and one browser for all of them."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NoReturn

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from tests.dashboard.browser import WAIT_MS_MAX, browsing, paged
from tests.dashboard.fetched import AXE, TYPESCRIPT, NotFetchedError, Package, fetched
from tests.dashboard.filled import Filled, filled

HERE = Path(__file__).parent
expect.set_options(timeout=WAIT_MS_MAX)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests run in the loop to which the browser belongs, and the first of them may have to fetch it. That they
    run in one process is seen to in tests/conftest.py."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(360))
        if HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """To whoever watches the tests, at once."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def said(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\ntests/dashboard: {line}", file=sys.stderr, flush=True)

    return said


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> AsyncIterator[Browser]:
    try:
        async with browsing(tmp_path_factory.mktemp("browser"), say) as browser:
            yield browser
    except NotFetchedError as error:
        go_without("browser", error, say)


def had(package: Package, say: Callable[[str], None]) -> Path:
    try:
        return fetched(package, say)
    except NotFetchedError as error:
        go_without(package.name, error, say)


def go_without(what: str, error: NotFetchedError, say: Callable[[str], None]) -> NoReturn:
    """Who works without a network is not kept from working. Where changes are checked, nothing is left out."""
    if os.environ.get("CI"):
        raise error
    why = f"there is no {what}, and it cannot be fetched: {error}"
    say(why)
    pytest.skip(why)


@pytest.fixture
def allowed() -> list[str]:
    """Parts of what may be said in the browser's console. An answer with 4xx is told there by the browser itself; the
    pages say it where it belongs."""
    return ["status of 4"]


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, allowed: list[str]) -> AsyncIterator[Page]:
    """An empty page, with nothing kept from any other test, and about which the browser does not complain."""
    async with paged(browser, allowed) as page:
        yield page


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Filled]:
    """Look at it, and change nothing."""
    async with filled(tmp_path_factory.mktemp("shown")) as shown:
        yield shown


@pytest.fixture(scope="session")
def axe(say: Callable[[str], None]) -> str:
    """The program that looks for what hinders people with other eyes and hands."""
    return (had(AXE, say) / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def typescript(say: Callable[[str], None]) -> Path:
    """The compiler, which only reads."""
    return had(TYPESCRIPT, say) / "lib" / "tsc.js"
