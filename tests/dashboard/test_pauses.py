"""Pauses, which affect all tenants, are confirmed, and the pages show what is paused."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.dashboard.dashboard_page import open_at, open_dashboard, submit


async def test_a_limit_is_paused_and_resumed(page: Page, tmp_path: Path) -> None:
    """A pause stops the work of all workers, so one mistaken click must not be enough."""
    async with open_dashboard(tmp_path, page, "/limits") as served:
        await served.client.put("/v1/limits/maps", json={"rates": ["100/minute"]})
        board = page.get_by_label("maps", exact=True)
        await page.get_by_role("button", name="Pause maps").click()
        await page.get_by_role("button", name="Leave it running").click()
        assert not (await served.client.get("/v1/limits/maps")).json()["paused"]
        await page.get_by_role("button", name="Pause maps").click()
        await page.locator("dialog button[type=submit]").click()
        await expect(board).to_contain_text("no permits are granted until it is resumed")
        assert (await served.client.get("/v1/limits/maps")).json()["paused"]
        await page.get_by_role("button", name="Resume maps").click()
        await page.locator("dialog button[type=submit]").click()
        await expect(board.locator(".chip")).to_be_hidden()
        assert not (await served.client.get("/v1/limits/maps")).json()["paused"]


async def test_a_lane_is_resumed_by_the_pause_that_holds_it(page: Page, tmp_path: Path) -> None:
    """Resuming one tenant does not end a pause of all tenants: the confirmation says which pause ends."""
    async with open_dashboard(tmp_path, page, "/jobs") as served:
        await submit(served, "add", arguments={"a": 1})
        await served.client.post("/v1/lanes/pause", json={"queue": "default"})
        await open_at(page, served, "/lanes")
        row = page.locator("tr", has_text="default")
        await expect(row.locator(".waits")).to_contain_text("it is paused")
        await row.get_by_role("button", name="Resume default").click()
        await expect(page.locator("dialog")).to_contain_text("all tenants")
        await page.locator("dialog button[type=submit]").click()
        await expect(row.get_by_role("button", name="Pause default")).to_be_visible()
        assert (await served.client.get("/v1/lanes/pauses")).json()["items"] == []


async def test_outdated_figures_are_reported(page: Page, tmp_path: Path, allowed: list[str]) -> None:
    """A page that looks current while the service does not respond is worse than none."""
    allowed.append("ERR_FAILED")
    async with open_dashboard(tmp_path, page) as served:
        notice = page.locator(".notice")
        await expect(page.locator(".live-mark")).to_have_text("live")
        await page.route("**/v1/lanes*", lambda route: route.abort())
        await open_at(page, served, "/lanes")
        await expect(notice).to_be_visible()
        await expect(notice).to_contain_text("The service does not respond. The data shown is from ")
        await page.unroute("**/v1/lanes*")
        await open_at(page, served, "/workers")
        await expect(notice).to_be_hidden()
