"""The light and the dark theme, dialogs, and the login page."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.api.keys import key_for
from tests.dashboard.accessibility import accessibility_problems
from tests.dashboard.dashboard_page import open_at, open_dashboard

PAGES = ["", "jobs", "dead", "imports", "lanes", "limits", "budgets", "workers"]

BACKGROUND = "() => getComputedStyle(document.documentElement).backgroundColor"
LIGHT, DARK = "rgb(245, 246, 248)", "rgb(13, 17, 22)"


async def test_the_theme_follows_the_system_until_it_is_chosen(page: Page, tmp_path: Path) -> None:
    """A choice that a reload forgets is annoying at night."""
    await page.emulate_media(color_scheme="dark")
    async with open_dashboard(tmp_path, page):
        assert await page.evaluate(BACKGROUND) == DARK
        await page.get_by_role("button", name="Theme: system").click()
        assert await page.evaluate(BACKGROUND) == LIGHT
        await page.reload()
        await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        assert await page.evaluate(BACKGROUND) == LIGHT
        await page.keyboard.press("t")
        await page.keyboard.press("t")
        await page.emulate_media(color_scheme="light")
        assert await page.evaluate(BACKGROUND) == LIGHT, "as the system, again"


async def test_empty_pages_are_accessible(page: Page, tmp_path: Path, axe: str) -> None:
    """A new installation has only empty pages; each of them says what to do next."""
    async with open_dashboard(tmp_path, page) as served:
        for name in PAGES:
            await open_at(page, served, f"/{name}")
            await expect(page.locator("main .waiting")).to_have_count(0)
            await expect(page.locator("main .empty").first).to_be_visible()
            assert await accessibility_problems(page, axe) == [], name


async def test_dialogs_are_accessible(page: Page, tmp_path: Path, axe: str) -> None:
    """Forms, confirmations and the keyboard help are displayed above the page."""
    async with open_dashboard(tmp_path, page, "/limits"):
        await page.keyboard.press("?")
        await expect(page.locator("dialog[open] h2")).to_have_text("Keyboard")
        assert await accessibility_problems(page, axe) == []
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="New limit").click()
        await page.locator("dialog[open] button[type=submit]").click()
        await expect(page.locator("dialog .wrong").first).not_to_be_empty()
        assert await accessibility_problems(page, axe) == []


async def test_the_login_page_is_accessible(page: Page, tmp_path: Path, axe: str) -> None:
    """An inaccessible login page locks users out of everything else."""
    async with open_dashboard(tmp_path, page, auth=True):
        await page.get_by_label("Key", exact=True).fill("lw_wrong")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator(".said")).to_contain_text("not valid")
        assert await accessibility_problems(page, axe) == []


async def test_a_key_opens_a_session_and_is_not_stored(page: Page, tmp_path: Path) -> None:
    """A key that scripts can read can be stolen by a foreign script."""
    async with open_dashboard(tmp_path, page, auth=True) as served:
        made = (await key_for(served, "acme")).text
        await page.get_by_label("Key", exact=True).fill("lw_wrong")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator(".said")).to_contain_text("not valid")
        await page.get_by_label("Key", exact=True).fill(made)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("h1")).to_have_text("Overview")
        await expect(page.locator(".who")).to_have_text("acme")
        kept = await page.evaluate("() => JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])")
        assert made not in kept
        assert kept.startswith('["",')
        assert await page.locator("[data-nav='/limits']").count() == 0, "of operators"
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("button", name="Log in")).to_be_visible()
