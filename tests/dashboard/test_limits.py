"""Limits and budgets: changes are confirmed, and never overwrite a concurrent change."""

from pathlib import Path

from playwright.async_api import Locator, Page, expect
from tests.dashboard.dashboard_page import open_dashboard

from leaseway.domain.limits.buckets import Notice


async def test_a_limit_is_made_and_used_at_once(page: Page, tmp_path: Path) -> None:
    """A limit that differs from what the user typed would be noticed only by the provider."""
    async with open_dashboard(tmp_path, page, "/limits") as served:
        await page.get_by_role("button", name="New limit").click()
        await fill_in(page, name="maps", rates="100/minute, 5,000/day", concurrency="8")
        await expect(page.get_by_role("heading", name="maps", exact=True)).to_be_visible()
        await expect(page.locator(".window")).to_have_count(3)
        made = (await served.client.get("/v1/limits/maps")).json()
        assert made["definition"]["rates"] == ["100/minute", "5,000/day"]
        assert made["concurrency"] == 8


async def test_an_open_circuit_breaker_is_shown_until_it_is_removed(page: Page, tmp_path: Path) -> None:
    """Permits are there and nothing leaves: an operator must see why. A change of the rates must keep the breaker."""
    async with open_dashboard(tmp_path, page, "/limits") as served:
        await served.client.put("/v1/limits/maps", json={"rates": ["100/minute"], "breaker": 1})
        await served.service.world.limiter.observe(Notice("maps", "maps", 0, failed=True))
        await expect(page.locator(".board", has_text="maps")).to_contain_text("circuit breaker open until")
        await page.get_by_role("button", name="Change maps").click()
        await fill_in(page, rates="200/minute")
        await page.get_by_role("button", name="Change the limit").click()
        await expect(page.locator(".window", has_text="200 per minute")).to_be_visible()
        assert (await served.client.get("/v1/limits/maps")).json()["definition"]["breaker"] == 1


async def test_errors_are_shown_beside_their_fields(page: Page, tmp_path: Path) -> None:
    """A form that only says "invalid" has to be filled in by guessing."""
    async with open_dashboard(tmp_path, page, "/limits"):
        await page.get_by_role("button", name="New limit").click()
        await fill_in(page, rates="many")
        await expect(field(page, "name").locator(".wrong")).not_to_be_empty()
        await fill_in(page, name="maps", rates="many")
        await expect(field(page, "rates").locator(".wrong")).to_contain_text("cannot read the rate")
        await expect(page.locator("dialog [name=rates]")).to_be_focused()
        await expect(page.locator("dialog [name=name]")).to_have_value("maps")


async def test_a_change_is_confirmed(page: Page, tmp_path: Path) -> None:
    """A change affects the whole fleet immediately: one misplaced click must not be sufficient."""
    async with open_dashboard(tmp_path, page, "/limits") as served:
        await served.client.put("/v1/limits/maps", json={"rates": ["100/minute", "5000/day"], "cost_max": 3})
        await page.get_by_role("button", name="Change maps").click()
        await fill_in(page, rates="50/minute, 5000/day")
        question = page.locator("dialog", has_text="for all workers?")
        await expect(question).to_contain_text("100/minute, 5000/day→50/minute, 5000/day")
        await question.get_by_role("button", name="Back").click()
        assert (await served.client.get("/v1/limits/maps")).json()["version"] == 1
        await expect(page.locator("dialog [name=rates]")).to_have_value("50/minute, 5000/day")
        await page.locator("dialog").get_by_role("button", name="Review").click()
        await question.get_by_role("button", name="Change the limit").click()
        await expect(page.locator(".window", has_text="50 per minute")).to_be_visible()
        changed = (await served.client.get("/v1/limits/maps")).json()
        assert changed["definition"]["rates"] == ["50/minute", "5,000/day"]
        assert changed["cost_max"] == 3, "what was not asked stays as it is"


async def test_a_concurrent_change_is_not_overwritten(page: Page, tmp_path: Path) -> None:
    """Two operators may edit the same limit during an incident."""
    async with open_dashboard(tmp_path, page, "/limits") as served:
        await served.client.put("/v1/limits/maps", json={"rates": ["100/minute"]})
        await page.get_by_role("button", name="Change maps").click()
        await served.client.put("/v1/limits/maps", json={"rates": ["10/minute"]})
        await fill_in(page, rates="900/minute")
        await page.get_by_role("button", name="Change the limit").click()
        await expect(page.locator("dialog .said", has_text="version 2")).to_be_visible()
        assert (await served.client.get("/v1/limits/maps")).json()["definition"]["rates"] == ["10/minute"]


async def test_removing_is_confirmed_and_the_safe_button_has_the_focus(page: Page, tmp_path: Path) -> None:
    """One key press must not remove the limit of a running system."""
    async with open_dashboard(tmp_path, page, "/limits") as served:
        await served.client.put("/v1/limits/maps", json={"rates": ["100/minute"]})
        await page.get_by_role("button", name="Forget maps").click()
        await expect(page.locator("dialog").get_by_role("button", name="Keep it")).to_be_focused()
        await page.keyboard.press("Escape")
        assert (await served.client.get("/v1/limits/maps")).status_code == 200
        await page.get_by_role("button", name="Forget maps").click()
        await page.locator("dialog").get_by_role("button", name="Forget").click()
        await expect(page.locator(".empty-title")).to_have_text("No limits yet")
        assert (await served.client.get("/v1/limits/maps")).status_code == 404


async def test_a_budget_is_made_and_changed(page: Page, tmp_path: Path) -> None:
    """A misread amount is real money."""
    async with open_dashboard(tmp_path, page, "/budgets") as served:
        await page.get_by_role("button", name="New budget").click()
        await fill_in(page, name="spend", limit="25")
        await expect(page.locator(".board-figure strong")).to_have_text("$25.00")
        await page.get_by_role("button", name="Change spend").click()
        await fill_in(page, limit="40.5")
        await expect(page.locator("dialog", has_text="for all workers?")).to_contain_text("$25.00→$40.50")
        await page.get_by_role("button", name="Change the budget").click()
        await expect(page.locator(".board-figure strong")).to_have_text("$40.50")
        assert (await served.client.get("/v1/budgets/spend")).json()["definition"]["limit"] == "40.5"


def field(page: Page, name: str) -> Locator:
    return page.locator(f"dialog [data-field={name}]")


async def fill_in(page: Page, **values: str) -> None:
    """Submit the form."""
    for name, value in values.items():
        await page.locator(f"dialog [name={name}]").fill(value)
    await page.locator("dialog button[type=submit]").last.click()
