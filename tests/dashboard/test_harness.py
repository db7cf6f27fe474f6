"""The test harness reports what it should: one that notices nothing would accept every page."""

from pathlib import Path

import pytest
from playwright.async_api import Browser
from tests.dashboard.browser import open_page
from tests.dashboard.sample_service import SampleService
from tests.npm_packages import AXE, check_hash

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


async def test_errors_on_a_page_fail_the_test(browser: Browser, shown: SampleService) -> None:
    """A browser harness that ignores errors would pass every page."""
    with pytest.raises(AssertionError) as told:
        await do_wrong(browser, shown.served.url)
    for complaint in (*WRONG.values(), f"asked elsewhere: {ELSEWHERE}"):
        assert complaint in str(told.value)


async def do_wrong(browser: Browser, url: str) -> None:
    async with open_page(browser, []) as page:
        await page.goto(url)
        await page.locator("h1").wait_for()
        for script in WRONG:
            await page.evaluate(f"() => new Promise((done) => setTimeout(() => {{ done(); {script}; }}))")
        await page.route(ELSEWHERE, lambda route: route.fulfill(body=""))
        await page.goto(ELSEWHERE)


async def test_allowed_messages_do_not_fail_the_test(browser: Browser) -> None:
    """Some tests provoke errors; if those failed them, the check for unexpected messages would be switched off."""
    async with open_page(browser, ["by a page"]) as page:
        await page.evaluate("() => console.error('said by a page')")


def test_a_package_with_another_hash_is_refused(tmp_path: Path) -> None:
    """The package is downloaded and its script runs in the tests; only the reviewed version may."""
    archive = tmp_path / "axe-core.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(ValueError, match="is not what it was"):
        check_hash(archive, AXE)
