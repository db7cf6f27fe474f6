"""The overview: what exists, what waits and why, updated without a reload."""

from pathlib import Path

from playwright.async_api import Locator, Page, Request, expect
from tests.dashboard.dashboard_page import HTML, open_dashboard, submit

PLACES = {
    "j": "Jobs",
    "d": "Dead letters",
    "i": "Imports",
    "a": "Lanes",
    "l": "Limits",
    "b": "Budgets",
    "w": "Workers",
    "o": "Overview",
}


async def test_an_empty_overview_says_what_to_do_next(page: Page, tmp_path: Path) -> None:
    """A newcomer who sees empty boxes closes the page."""
    async with open_dashboard(tmp_path, page) as served:
        commands = page.locator(".copyable code")
        await expect(commands).to_have_count(4)
        said = " ".join(await commands.all_text_contents())
        for part in (f"curl {served.url}/v1/jobs", "leaseway limits set", "leaseway budgets set", "leaseway work"):
            assert part in said


async def test_the_command_that_it_shows_works(page: Page, tmp_path: Path) -> None:
    """Users copy it and cannot know what is wrong with it."""
    async with open_dashboard(tmp_path, page) as served:
        command = await page.locator(".copyable code", has_text="curl").text_content()
        assert command is not None
        body = command.split(" -d ")[1].strip("'").replace('"hello"', '"add"').replace('{"name": "world"}', '{"a": 1}')
        reply = await served.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 202


async def test_a_change_is_seen_without_a_reload(page: Page, tmp_path: Path) -> None:
    """Operators leave the overview open and trust that it is current."""
    async with open_dashboard(tmp_path, page) as served:
        await expect(page.locator(".live-mark")).to_have_text("live")
        await submit(served, "add", 3, arguments={"a": 1})
        await submit(served, "broken", 2)
        await expect(state(page, "ready")).to_have_text("5")
        await served.settle()
        await expect(state(page, "done")).to_have_text("3")
        await expect(state(page, "failed")).to_have_text("2")
        await expect(page.locator(".nav .badge")).to_have_text("2")
        await expect(page.locator(".tile", has_text="Latency, p50").locator(".tile-value")).not_to_have_text("–")


async def test_a_lane_says_what_it_waits_for(page: Page, tmp_path: Path) -> None:
    """Jobs do not start, and the user wants to know why: the main purpose of this page."""
    async with open_dashboard(tmp_path, page) as served:
        await submit(served, "rare", 2, arguments={"n": 1})
        await page.reload()  # or wait until the page polls again
        row = page.locator("tr", has_text="slow")
        await expect(row.locator(".waits")).to_contain_text("limit rare it is not defined")
        await expect(row.locator(".waits")).to_contain_text("leaseway limits set rare")


async def test_a_name_that_tries_to_be_markup_stays_text(page: Page, tmp_path: Path) -> None:
    """A tenant chooses queue names, and a script in one would run with the operator's rights."""
    async with open_dashboard(tmp_path, page) as served:
        await submit(served, "add", arguments={"a": 1}, queue=HTML)
        await expect(page.locator("td.name")).to_contain_text(HTML)
        assert await page.locator("main b").count() == 0


async def test_markup_made_from_text_is_refused_by_the_browser(page: Page, tmp_path: Path, allowed: list[str]) -> None:
    """The second line of defence: code that does not use textContent is stopped by the content security policy."""
    allowed.append("TrustedHTML")
    async with open_dashboard(tmp_path, page):
        refused = await page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } }"
        )
        assert refused


async def test_the_overview_loads_few_bytes(page: Page, tmp_path: Path) -> None:
    """An operator on call uses a phone."""
    requests: list[Request] = []
    page.on("requestfinished", lambda request: requests.append(request))
    async with open_dashboard(tmp_path, page):
        await expect(page.locator(".live-mark")).to_have_text("live")
        await expect(page.locator("main .waiting")).to_have_count(0)
        sizes = [await each.sizes() for each in requests]
    assert len(sizes) > 10, "the page is made of parts"
    assert sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes) <= 150_000


async def test_everything_can_be_reached_by_keys(page: Page, tmp_path: Path) -> None:
    """Users without a mouse need every page."""
    await page.clock.set_fixed_time(
        0
    )  # the time between two keys of one shortcut does not matter, on the slowest machine
    async with open_dashboard(tmp_path, page) as served:
        await submit(served, "add", arguments={"a": 1})
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.keyboard.press("j")
        await expect(page.locator("tbody tr")).to_be_focused()
        for key, title in PLACES.items():
            await page.keyboard.press("g")
            await page.keyboard.press(key)
            await expect(page.locator("h1")).to_have_text(title)
            await expect(page.locator("h1")).to_be_focused()
        await page.keyboard.press("?")
        await expect(page.locator("dialog[open] h2")).to_have_text("Keyboard")
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog")).to_have_count(0)


async def test_keyboard_users_can_skip_the_menu(page: Page, tmp_path: Path) -> None:
    """Keyboard users would otherwise pass the whole menu on every page."""
    async with open_dashboard(tmp_path, page):
        # The target of the first Tab differs between versions of the browser; in the page, nothing precedes the link.
        first = page.locator("a, button, input, [tabindex]").first
        await expect(first).to_have_class("skip")
        await first.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#main")).to_be_focused()
        await expect(page.locator("h1")).to_have_text("Overview")


def state(page: Page, name: str) -> Locator:
    return page.locator(".state-legend li", has_text=name).locator("a")
