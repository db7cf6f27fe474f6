"""Events reach the page over a WebSocket, otherwise over a stream, otherwise by polling; a small indicator
shows which.
"""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.api.running_service import Served
from tests.dashboard.dashboard_page import open_dashboard, submit
from tests.dashboard.network import ALL, Network


@pytest.fixture(autouse=True)
def refusals(allowed: list[str]) -> None:
    """Blocked requests are logged in the console by the browser."""
    allowed.extend(["net::ERR_FAILED", "The service does not respond."])


async def test_without_websockets_events_come_over_a_stream(page: Page, tmp_path: Path) -> None:
    """Many proxies block WebSockets, and the user cannot change that."""
    await Network(page, "socket").install()
    async with open_dashboard(tmp_path, page) as served:
        await expect_way(page, "stream", "live")
        await expect_news(page, served)


async def test_without_any_stream_the_page_polls(page: Page, tmp_path: Path) -> None:
    """Some proxies block WebSockets and event streams, and the page must stay current there."""
    await Network(page, "socket", "stream").install()
    async with open_dashboard(tmp_path, page) as served:
        await expect_way(page, "polling", "polling")
        await expect_news(page, served)


async def test_a_stream_without_frames_is_abandoned(page: Page, tmp_path: Path) -> None:
    """A proxy that buffers responses never passes on one that does not end."""
    await page.clock.install()
    line = await Network(page, "socket").install()
    line.silent.add("stream")
    async with page.expect_request("**/v1/events"), open_dashboard(tmp_path, page) as served:
        await page.clock.fast_forward(6_000)
        await expect_way(page, "polling", "polling")
        await expect_news(page, served)


async def test_a_disconnect_loses_nothing_with_any_transport(page: Page, tmp_path: Path) -> None:
    """The page resumes with any transport that works, without a reload and with correct figures."""
    line = await Network(page).install()
    async with open_dashboard(tmp_path, page) as served:
        await expect_way(page, "live", "live")
        await page.evaluate("() => { window.isTheSame = true; }")
        await line.cut("socket")
        await submit(served, "add", 2, arguments={"a": 1})
        await expect_way(page, "stream", "live")
        await expect_ready(page, 2)
        await expect_news(page, served, 3)
        assert await page.evaluate("() => window.isTheSame")


async def test_a_better_transport_is_tried_again(page: Page, tmp_path: Path) -> None:
    """A page that was opened on a bad network must not keep the worst transport all day."""
    await page.clock.install()
    line = await Network(page, "socket").install()
    async with open_dashboard(tmp_path, page):
        await expect_way(page, "stream", "live")
        line.mend()
        await page.clock.fast_forward(61_000)
        await expect_way(page, "live", "live")


async def test_an_unreachable_service_is_reported_until_it_returns(page: Page, tmp_path: Path) -> None:
    """Outdated figures that look current are worse than none."""
    line = await Network(page).install()
    async with open_dashboard(tmp_path, page) as served:
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
