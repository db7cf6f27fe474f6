"""News reach the page by a WebSocket, else by a stream, else by asking; people see that by a small mark only."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.api.serving import Served
from tests.dashboard.line import ALL, Line
from tests.dashboard.showing import dashboard, submit


@pytest.fixture(autouse=True)
def refusals(allowed: list[str]) -> None:
    """That something is blocked is told in the console: by the browser, and by pages that cannot ask."""
    allowed.extend(["net::ERR_FAILED", "The service does not answer."])


async def test_without_websockets_news_come_as_a_stream(page: Page, tmp_path: Path) -> None:
    """Many a proxy lets no WebSocket through, and nobody who looks at a dashboard can change it."""
    await Line(page, "socket").lay()
    async with dashboard(tmp_path, page) as served:
        await expect_way(page, "stream", "live")
        await expect_news(page, served)


async def test_without_any_stream_the_page_asks(page: Page, tmp_path: Path) -> None:
    """Some proxies block WebSockets and event streams, and the page must stay current there."""
    await Line(page, "socket", "stream").lay()
    async with dashboard(tmp_path, page) as served:
        await expect_way(page, "polling", "polling")
        await expect_news(page, served)


async def test_a_stream_in_which_nothing_comes_is_left(page: Page, tmp_path: Path) -> None:
    """A proxy that gathers a whole answer before it hands it on never hands on one without an end."""
    await page.clock.install()
    line = await Line(page, "socket").lay()
    line.silent.add("stream")
    async with page.expect_request("**/v1/events"), dashboard(tmp_path, page) as served:
        await page.clock.fast_forward(6_000)
        await expect_way(page, "polling", "polling")
        await expect_news(page, served)


async def test_a_cut_loses_nothing_whichever_way_comes_after_it(page: Page, tmp_path: Path) -> None:
    """The page goes on where it was, by what there is: it is not loaded again, and no figure is wrong for it."""
    line = await Line(page).lay()
    async with dashboard(tmp_path, page) as served:
        await expect_way(page, "live", "live")
        await page.evaluate("() => { window.isTheSame = true; }")
        await line.cut("socket")
        await submit(served, "add", 2, arguments={"a": 1})
        await expect_way(page, "stream", "live")
        await expect_ready(page, 2)
        await expect_news(page, served, 3)
        assert await page.evaluate("() => window.isTheSame")


async def test_the_better_way_is_tried_again(page: Page, tmp_path: Path) -> None:
    """Who opened the page in a train shall not stay with the worst way all day."""
    await page.clock.install()
    line = await Line(page, "socket").lay()
    async with dashboard(tmp_path, page):
        await expect_way(page, "stream", "live")
        line.mend()
        await page.clock.fast_forward(61_000)
        await expect_way(page, "live", "live")


async def test_a_service_that_is_gone_is_said_and_its_return_is_seen(page: Page, tmp_path: Path) -> None:
    """Old figures that look like new ones are worse than none."""
    line = await Line(page).lay()
    async with dashboard(tmp_path, page) as served:
        await expect_way(page, "live", "live")
        await line.cut(*ALL)
        await submit(served, "add", 2, arguments={"a": 1})
        await expect_way(page, "offline", "offline")
        line.mend()
        await page.evaluate("() => dispatchEvent(new Event('online'))")
        await expect(page.locator(".live-mark")).not_to_have_attribute("data-way", "offline")
        await expect_ready(page, 2)


async def expect_way(page: Page, way: str, word: str) -> None:
    mark = page.locator(".live-mark")
    await expect(mark).to_have_attribute("data-way", way)
    await expect(mark).to_have_text(word)
    await expect(page.locator("#toasts")).to_be_empty()


async def expect_news(page: Page, served: Served, ready: int = 1) -> None:
    await submit(served, "add", arguments={"a": 1})
    await expect_ready(page, ready)


async def expect_ready(page: Page, count: int) -> None:
    await expect(page.locator(".state-legend li", has_text="ready").locator("a")).to_have_text(str(count))
