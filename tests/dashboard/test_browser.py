"""The browser of these tests complains when it should: a harness that hears nothing would find every page good."""

from pathlib import Path

import pytest
from playwright.async_api import Browser
from tests.dashboard.browser import paged
from tests.dashboard.fetched import AXE, checked
from tests.dashboard.filled import Filled

WRONG = {
    "console.error('said by a page')": "said by a page",
    "missing()": "missing is not defined",
    "fetch('https://elsewhere.test/').catch(() => 0)": "connect-src",
    "document.body.append(Object.assign(new Image(), {src: 'https://elsewhere.test/x.png'}))": "img-src",
    "document.body.setAttribute('style', 'color: red')": "style-src",
    "document.body.setAttribute('onclick', '1')": "TrustedScript",
    "document.body.innerHTML = '<b>bold</b>'": "TrustedHTML",
}
ELSEWHERE = "http://elsewhere.test/"


async def test_what_is_wrong_on_a_page_fails_the_test(browser: Browser, shown: Filled) -> None:
    """A browser harness that ignores errors would pass every page."""
    with pytest.raises(AssertionError) as told:
        await do_wrong(browser, shown.served.url)
    for complaint in (*WRONG.values(), f"asked elsewhere: {ELSEWHERE}"):
        assert complaint in str(told.value)


async def do_wrong(browser: Browser, url: str) -> None:
    async with paged(browser, []) as page:
        await page.goto(url)
        await page.locator("h1").wait_for()
        for script in WRONG:
            await page.evaluate(f"() => new Promise((done) => setTimeout(() => {{ done(); {script}; }}))")
        await page.route(ELSEWHERE, lambda route: route.fulfill(body=""))
        await page.goto(ELSEWHERE)


async def test_what_is_allowed_does_not(browser: Browser) -> None:
    """Expected messages must not hide the unexpected ones by failing every test."""
    async with paged(browser, ["by a page"]) as page:
        await page.evaluate("() => console.error('said by a page')")


def test_a_package_that_is_not_what_it_was_is_refused(tmp_path: Path) -> None:
    """A changed download would run foreign code in the test environment."""
    archive = tmp_path / "axe-core.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(ValueError, match="is not what it was"):
        checked(archive, AXE)
