"""Every page in both themes, on a desktop and on a phone, for the eyes and for screen readers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect
from tests.dashboard.accessibility import accessibility_problems, resize
from tests.dashboard.browser import open_page
from tests.dashboard.sample_service import PAGES, SampleService

BRIGHT = """() => [...document.querySelectorAll("body, #app *")].filter((element) => {
  const {width, height} = element.getBoundingClientRect();
  const [red, green, blue, opacity = 1] = getComputedStyle(element).backgroundColor.match(/[\\d.]+/g).map(Number);
  return width * height > 5_000 && opacity > 0.5 && red + green + blue > 300;
}).map((element) => element.outerHTML.slice(0, 100))"""
SIDEWAYS = """() => {
  const page = document.documentElement;
  return [...document.querySelectorAll("body *")]
    .filter((element) => page.scrollWidth > innerWidth && element.getBoundingClientRect().right > innerWidth)
    .map((element) => element.outerHTML.slice(0, 100));
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=PAGES)
async def page(browser: Browser, shown: SampleService, request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    """Opened once for all checks."""
    async with open_page(browser, ["/v1/imports/ocm/runs/first"]) as page:  # its jobs are all that is known of it
        await page.goto(f"{shown.served.url}/#{shown.addresses()[request.param]}")
        await expect(page.locator("h1")).to_have_text(request.param)
        await expect(page.locator(".live-mark")).to_have_text("live")
        await expect(page.locator("main .waiting")).to_have_count(0)
        yield page


async def test_pages_have_no_serious_accessibility_problems(page: Page, axe: str) -> None:
    """axe finds problems of contrast, labels and headings that exclude users."""
    assert await accessibility_problems(page, axe) == []


async def test_the_dark_theme_has_no_bright_areas(page: Page, tmp_path: Path) -> None:
    """One white box blinds users who work at night. See the screenshots in the folder of the test."""
    await page.emulate_media(color_scheme="dark")
    await page.screenshot(path=tmp_path / "dark.png", full_page=True)
    assert await page.evaluate(BRIGHT) == []


@pytest.mark.parametrize("width", [390, 1280])
async def test_nothing_is_wider_than_the_screen(page: Page, width: int) -> None:
    """On a phone, a page that scrolls sideways hides its buttons."""
    await resize(page, width)
    assert await page.evaluate(SIDEWAYS) == []
    assert await page.evaluate("() => document.documentElement.scrollWidth") <= width


async def test_foreign_text_is_never_markup(page: Page) -> None:
    """Payloads, errors and names of queues on these pages try to be markup: see MARKUP in the app of the tests."""
    assert await page.locator("img[src=x]").count() == 0
    assert (await page.title()).endswith(" · leaseway")
