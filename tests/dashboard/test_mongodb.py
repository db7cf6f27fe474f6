"""The pages over a MongoDB store."""

from playwright.async_api import Page, expect
from tests.dashboard.sample_service import sample_service
from tests.mongodb_collections import empty_database

from leaseway.testing.mongodb import MongoServer

ROWS = {"Jobs": "add", "broken": "ValueError", "Limits": "maps", "Budgets": "maps", "Workers": "a-name-that-is"}
"""By page, what it must show."""


async def test_the_pages_show_what_is_stored(page: Page, mongodb: MongoServer) -> None:
    """A team that changes the URL of its store must not lose the page that it watches at night."""
    url = mongodb.url.replace("/leaseway", "/dashboard")
    await empty_database(url)
    async with sample_service(url) as shown:
        addresses = shown.addresses()
        await page.goto(f"{shown.served.url}/#{addresses['Overview']}")
        await expect(page.locator(".live-mark")).to_have_text("live")
        await expect(page.locator("main")).to_contain_text("slow")
        for heading, text in ROWS.items():
            await page.goto(f"{shown.served.url}/#{addresses[heading]}")
            await expect(page.locator("h1")).to_have_text(heading)
            await expect(page.locator("main")).to_contain_text(text)
            await expect(page.locator("main .waiting")).to_have_count(0)
        # Streams end with the page, so that the service does not have to wait for them.
        await page.goto("about:blank")
