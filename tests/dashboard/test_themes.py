"""Light, dark, and before the key."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.api.keys import key_for
from tests.dashboard.eyes import hindrances
from tests.dashboard.showing import dashboard, open_at

PAGES = ["", "jobs", "dead", "imports", "lanes", "limits", "budgets", "workers"]

BACKGROUND = "() => getComputedStyle(document.documentElement).backgroundColor"
LIGHT, DARK = "rgb(245, 246, 248)", "rgb(13, 17, 22)"


async def test_it_follows_the_system_until_somebody_chooses(page: Page, tmp_path: Path) -> None:
    """A choice that a reload forgets is annoying at night."""
    await page.emulate_media(color_scheme="dark")
    async with dashboard(tmp_path, page):
        assert await page.evaluate(BACKGROUND) == DARK
        await page.get_by_role("button", name="Theme: as the system").click()
        assert await page.evaluate(BACKGROUND) == LIGHT
        await page.reload()
        await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        assert await page.evaluate(BACKGROUND) == LIGHT
        await page.keyboard.press("t")
        await page.keyboard.press("t")
        await page.emulate_media(color_scheme="light")
        assert await page.evaluate(BACKGROUND) == LIGHT, "as the system, again"


async def test_nothing_serious_hinders_who_has_nothing_yet(page: Page, tmp_path: Path, axe: str) -> None:
    """The first who comes sees every page empty, and each says what to do next."""
    async with dashboard(tmp_path, page) as served:
        for name in PAGES:
            await open_at(page, served, f"/{name}")
            await expect(page.locator("main .waiting")).to_have_count(0)
            await expect(page.locator("main .empty").first).to_be_visible()
            assert await hindrances(page, axe) == [], name


async def test_nothing_serious_hinders_who_is_asked(page: Page, tmp_path: Path, axe: str) -> None:
    """Forms, questions and the help for the keyboard lie above the page."""
    async with dashboard(tmp_path, page, "/limits"):
        await page.keyboard.press("?")
        await expect(page.locator("dialog[open] h2")).to_have_text("Keyboard")
        assert await hindrances(page, axe) == []
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="New limit").click()
        await page.locator("dialog[open] button[type=submit]").click()
        await expect(page.locator("dialog .wrong").first).not_to_be_empty()
        assert await hindrances(page, axe) == []


async def test_nothing_serious_hinders_who_logs_in(page: Page, tmp_path: Path, axe: str) -> None:
    """An inaccessible login page locks users out of everything else."""
    async with dashboard(tmp_path, page, auth=True):
        await page.get_by_label("Key", exact=True).fill("lw_wrong")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator(".said")).to_contain_text("not valid")
        assert await hindrances(page, axe) == []


async def test_a_key_opens_a_session_and_is_kept_nowhere(page: Page, tmp_path: Path) -> None:
    """What a script can read, a foreign script can send away."""
    async with dashboard(tmp_path, page, auth=True) as served:
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
